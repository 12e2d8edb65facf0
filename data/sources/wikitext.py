"""WikiText's raw test set, the text on which perplexities are compared, in its canonical form.

WikiText-2 and WikiText-103 share it: 1,290,590 bytes. Figures are comparable only on exactly these bytes.
"""

import hashlib
from pathlib import Path

from slm.data.config import SourceConfig
from slm.data.errors import UserError
from slm.data.sources import hub

BYTES = 1_290_590
SHA256 = "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"
SOURCE = SourceConfig(kind="hub", path="Salesforce/wikitext", subset="wikitext-2-raw-v1", split="test")


def load(path: str | Path | None = None) -> str:
    """The text of the file ``path``, or WikiText's raw test set from the Hub where it is None.

    A file is read as it is. Raises UserError for a missing, empty or non-UTF-8 file, for an unreachable Hub, and
    where the Hub's rows do not give the canonical text.
    """
    if path is not None:
        return _read(Path(path))
    try:
        hub.check_reachable(SOURCE)
    except UserError as error:
        reason = str(error).split(":")[0]
        raise UserError(f"{reason}: name a file instead, eval.text=path/to/wiki.test.raw") from error
    rows = hub.open_split(SOURCE, SOURCE.split)
    with hub.hub_errors(SOURCE):
        text = join_rows([row[SOURCE.text_field] for row in rows])
    if not is_canonical(text):
        raise UserError(
            f"{SOURCE.path} gave {byte_count(text):,} bytes that are not WikiText's raw test set (SHA-256 differs): "
            "name a file instead, eval.text=path/to/wiki.test.raw"
        )
    return text


def _read(path: Path) -> str:
    if not path.is_file():
        raise UserError(
            f"there is no text file {path}: give eval.text=FILE, or leave it out to use WikiText's test set"
        )
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line} is not UTF-8 (byte at offset {error.start}): convert the file to UTF-8"
        ) from error
    if not text.strip():
        raise UserError(f"{path} is empty: give a file with text")
    return text


def join_rows(rows: list[str]) -> str:
    """The canonical text from the Hub's rows, which keep their newlines but lose the space of an empty line."""
    return "".join(row or " \n" for row in rows)


def is_canonical(text: str) -> bool:
    """Whether ``text`` is WikiText's raw test set to the byte."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest() == SHA256


def describe(text: str) -> str:
    """What the text is, for the head of a table: canonical, altered, or another text."""
    if is_canonical(text):
        return "WikiText raw test set (canonical)"
    if abs(byte_count(text) - BYTES) <= BYTES // 100 and "= Robert Boulter =" in text[:200]:
        return (
            f"WikiText raw test set, ALTERED ({byte_count(text):,} bytes instead of {BYTES:,}): figures do not compare"
        )
    return f"{byte_count(text):,} bytes of text"


def byte_count(text: str) -> int:
    """UTF-8 bytes, as bits per byte counts them."""
    return len(text.encode("utf-8"))
