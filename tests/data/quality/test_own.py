"""A user's filter: it is found, used in every process, and its mistakes are one line."""

import itertools

import numpy as np
import pytest

from slm.data.config import TokenizerConfig
from slm.data.errors import UserError
from slm.data.quality.own import _module, own_filter
from slm.data.sources.documents import iter_documents, make_plans
from slm.data.stream.loader import Loader
from slm.data.tokenizers.make import make_tokenizer
from tests.helpers.documents import local, write_jsonl

SOURCE = """
import numpy as np

def keep(text):
    return "even" in text

def numpy_bool(text):
    return np.bool_(len(text) > 3)

def nothing(text):
    "even" in text

def fails(text):
    return 1 / 0 > 1

some_value = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The folder of the command, with a module in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_filters_of_test.py").write_text(SOURCE)
    _module.cache_clear()
    return "own_filters_of_test"


ROWS = [f"row {n} is {'even' if n % 2 == 0 else 'odd'}" for n in range(200)]


@pytest.mark.parametrize("suffix", ["", ".py"])
def test_documents_that_it_rejects_are_not_read(tmp_path, module, suffix):
    config = local(write_jsonl(tmp_path / "a.jsonl", ROWS), filter=f"{module}{suffix}:keep")
    texts = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert sorted(texts) == sorted(ROWS[::2])


def test_worker_processes_use_it(tmp_path, module):
    config = local(write_jsonl(tmp_path / "a.jsonl", ROWS), filter=f"{module}:keep", val_files=["a.jsonl"])
    config = local(write_jsonl(tmp_path / "b.jsonl", [each + "!" for each in ROWS]), filter=f"{module}:keep")
    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=257), lambda: iter(["x"]))
    with Loader(config, tokenizer, seq_len=64, micro_batch=1, seed=1, workers=1) as loader:
        ids = np.concatenate([batch[0, :-1] for batch in itertools.islice(loader, 20)])
    text = tokenizer.decode(ids.tolist())
    assert "even" in text
    assert "odd" not in text


def test_its_source_is_part_of_the_fingerprint(tmp_path, module):
    rows = write_jsonl(tmp_path / "a.jsonl", ROWS)
    prints = []
    for name, more in (("keep", ""), ("keep", "# more\n"), ("numpy_bool", "")):
        (tmp_path / f"{module}.py").write_text(SOURCE + more)
        prints.append(make_plans(local(rows, filter=f"{module}.py:{name}"), "train")[0].fingerprint)
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("own_filters_of_test:kep", "has no function kep; did you mean 'keep'"),
        ("own_filters_of_test:some_value", "has no function some_value"),
        ("no_such_module:keep", "there is no module no_such_module in this folder"),
        ("no_such.py:keep", "there is no file no_such.py"),
        ("own_filters_of_test", "names no function"),
        ("own_filters_of_test:nothing", "returned None, not True"),
        (
            "own_filters_of_test:fails",
            r"failed \(ZeroDivisionError: division by zero, line 14 of own_filters_of_test.py",
        ),
        ("broken.py:keep", r"importing broken.py failed \(SyntaxError"),
    ],
)
def test_mistakes(tmp_path, module, name, expected):
    (tmp_path / "broken.py").write_text("def keep(text:\n")
    with pytest.raises(UserError, match=expected) as error:
        own_filter(name)("some text")
    assert "\n" not in str(error.value)


def test_numpys_bool_is_one(module):
    assert own_filter(f"{module}:numpy_bool")("long enough") is True
