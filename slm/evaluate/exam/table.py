"""How replies are printed next to what was expected.

Tested in tests/slm/evaluate/exam/test_own.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slm.report import plain

ASKED_CHARS, SAID_CHARS = 300, 300
"""Most characters of a question, and of an answer, that are printed."""


@dataclass(frozen=True)
class Wrong:
    """A reply that is not what was expected."""

    asked: str
    expected: str
    given: str


def show_wrong(wrong: Sequence[Wrong], n_shown: int, title: str = "wrong") -> None:
    """Print the first so many, three lines each."""
    for each in wrong[:n_shown]:
        print(f"  {title}: {shortened(each.asked, ASKED_CHARS)}")
        print(f"    expected: {shortened(each.expected, SAID_CHARS)}")
        print(f"    given:    {shortened(each.given, SAID_CHARS) or '(nothing)'}", flush=True)


def shortened(text: str, most: int) -> str:
    """The text in one line that can do nothing to a terminal; of a long one beginning and end, which often hold the
    question of a story or document."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-(most // 2) :]}"


def too_long_line(name: str, count: int, context: int) -> str:
    """What is said of questions that a model cannot be asked."""
    return f"{name}: {count:,} questions do not fit its context of {context:,} tokens: they count as wrong"
