"""Keys from the command line, a file and the environment."""

import pytest

from slm.data.errors import UserError
from slm.serve.keys import Key, Limits, all_keys


def test_all_in_order(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# people\n\nann  s3cret\r\nbare-key\nbob@home other\n")
    keys = all_keys(["first\n"], str(path), " last ")
    assert keys == [Key("first"), Key("s3cret", "ann"), Key("bare-key"), Key("other", "bob@home"), Key("last")]
    assert all_keys([], None, None) == all_keys([], None, "") == []


def test_limits_of_a_key(tmp_path):
    path = tmp_path / "keys"
    path.write_text("ann s3cret= parallel=2 tokens_per_minute=9000\nparallel=1 requests_per_minute=5\n")
    assert all_keys([], str(path), None) == [
        Key("s3cret=", "ann", Limits(parallel=2, tokens_per_minute=9000)),
        Key("parallel=1", "", Limits(requests_per_minute=5)),  # the first word is no limit
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("ann key\na b c\n", "line 2 has 3 words; write KEY, or NAME KEY"),
        ("ann key parallel=two\n", "line 1: parallel is 'two'; it must be a whole number above 0"),
        ("ann key parallel=0\n", "line 1: parallel is '0'"),
        ("ann key parallel=1 parallel=2\n", "line 1: parallel is given twice"),
        ("ann key\nann other\n", "line 2: there is a key named ann already"),
        ("a/b key\n", "line 1: the name may have letters"),
    ],
)
def test_files_that_are_refused(tmp_path, text, said):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        all_keys([], str(path), None)
    assert "key\n" not in str(caught.value)  # no secret is shown
    with pytest.raises(UserError, match="cannot be read: No such file"):
        all_keys([], str(tmp_path / "other"), None)
    with pytest.raises(UserError, match="SLM_API_KEY holds blanks only"):
        all_keys([], None, "  ")
