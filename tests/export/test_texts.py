import unicodedata
from collections import Counter

import pytest

from slm import runs
from slm.data.errors import UserError
from slm.export.__main__ import main
from slm.export.texts import GENERAL_TEXT, calibration_text, read_text, validation_text
from tests.helpers import tiny_checkpoint as tiny


def test_without_any_text_the_general_text_serves_and_it_is_said(tmp_path, capsys):
    folder = tiny.checkpoint(tmp_path / "bare")
    assert main([f"run={folder}", "quant=q8_0", "threads=1", "calibration.chunks=2", "proof.chunks=2"]) == 0
    assert "using slm's general text" in capsys.readouterr().out


def test_the_general_text_is_of_many_kinds():
    """Enough for the importance matrix, and no script or kind of text that most models know is missing."""
    text = GENERAL_TEXT.read_text(encoding="utf-8")
    assert 30_000 < len(text.encode()) < 60_000
    scripts = Counter(unicodedata.name(character).split()[0] for character in text if character.isalpha())
    others = "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "DEVANAGARI", "BENGALI", "THAI", "CJK", "HIRAGANA", "HANGUL"
    assert min(scripts[script] for script in others) > 60, scripts
    assert scripts["LATIN"] > 0.6 * scripts.total()
    for part in ("```python", "```c\n", "```javascript", "```sql", "```json", "User: ", "|---", "$$", "🐝"):
        assert part in text, part


def test_a_named_text_comes_first_and_the_runs_own_next(tmp_path):
    run = runs.resolve(tiny.run(tmp_path / "run"))
    named = tmp_path / "named.txt"
    named.write_text("named", encoding="utf-8")
    said: list[str] = []
    assert calibration_text(named, run, said.append).content == "named"
    assert validation_text(named, run).origin == "named.txt"
    assert calibration_text(None, run, said.append).origin == "calibration.txt"
    assert validation_text(None, run).origin == "validation.txt"
    assert said == []


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b"\n", "is empty"), (b"caf\xe9", r"not UTF-8 text \(byte 3\)")]
)
def test_a_text_that_cannot_be_used_is_refused_with_its_option(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"text\.txt .*{message}.*proof\.text=FILE"):
        read_text(path, "proof.text")
