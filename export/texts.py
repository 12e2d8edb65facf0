"""The texts that an export measures on: one for the importance matrix, one for the proof."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slm import runs
from slm.data.errors import UserError

GENERAL_TEXT = Path(__file__).with_name("general_text.txt")
"""Prose, conversations, code and tables in 23 languages: for a model with unknown training text."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text and where it came from."""

    content: str
    origin: str


def calibration_text(named: Path | None, run: runs.Run, log: Callable[[str], None]) -> Text:
    """The text to measure importance on: named, else the run's training documents, else slm's general text."""
    if named:
        return read_text(named, "calibration.text")
    if run.calibration_text:
        return read_text(run.calibration_text, "calibration.text")
    log(
        "no calibration text (no calibration.txt in the run, no calibration.text=FILE): using slm's general text "
        "(prose, conversations and code in 23 languages)"
    )
    return Text(content=GENERAL_TEXT.read_text(encoding="utf-8"), origin="slm's general text")


def validation_text(named: Path | None, run: runs.Run) -> Text | None:
    """The text to compare perplexity on: named, else the run's held-out documents; None where there are none."""
    if named:
        return read_text(named, "proof.text")
    if run.validation_text:
        return read_text(run.validation_text, "proof.text")
    return None


def read_text(path: Path, option: str) -> Text:
    """A UTF-8 file. ``UserError`` names the option where it is missing, empty, or not UTF-8."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a text file as {option}=FILE") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); give another file as {option}=FILE") from error
    if not content.strip():
        raise UserError(f"{path} is empty; give a file with text as {option}=FILE")
    return Text(content=content, origin=path.name)
