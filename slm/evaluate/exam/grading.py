"""Whether a reply is right, and how sure a share of right ones is."""

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from slm.evaluate.exam.questions import Question
from slm.evaluate.exam.reading import Call, calls_in, canonical, expected_calls, json_in, same_json, without_thoughts

Z_95 = 1.959964
"""Standard deviations of a normal distribution on each side that hold 95 % of it."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The verdict on a reply."""

    right: bool
    contains: bool | None = None
    """Whether it contains the expected words; None where the score does not ask for words."""
    fields: float | None = None
    """Share of the expected JSON object's fields that are equal; None for other scores."""


def grade(question: Question, reply: str, spelled: str = "") -> Grade:
    """The verdict on a reply by the question's score. ``spelled``: the expected answer as the model's template writes
    it, for calls in a form that holds no JSON object with a name."""
    reply = without_thoughts(reply)
    expected = without_thoughts(question.expected["content"])
    if question.score == "json":
        return _json(expected, reply)
    if question.score == "tools":
        return Grade(right=_same_calls(question, reply, spelled))
    right, contained = plain(expected) == plain(reply), contains(reply, expected)
    return Grade(right=contained if question.score == "contains" else right, contains=contained)


def plain(text: str) -> str:
    """The text without differences in white space, case and Unicode's spellings of one character."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def contains(reply: str, expected: str) -> bool:
    """Whether the expected words stand in the reply, not as a part of longer ones where a script has spaces between
    words. A full stop at their end does not count."""
    wanted = plain(expected).rstrip(".!。").rstrip()
    if not wanted:
        return False
    before = r"(?<!\w)" if _ends_words(wanted[0]) else ""
    behind = r"(?!\w)" if _ends_words(wanted[-1]) else ""
    return re.search(f"{before}{re.escape(wanted)}{behind}", plain(reply)) is not None


def _ends_words(character: str) -> bool:
    """Whether it is a digit, or a letter of a script with capitals, which all have spaces between words."""
    return character.isdigit() or character != character.upper()


def _json(expected: str, reply: str) -> Grade:
    right, found = json_in(expected, whole=True), json_in(reply)
    if not isinstance(found, dict):
        return Grade(right=False, fields=0.0)
    equal = sum(key in found and same_json(value, found[key]) for key, value in right.items())
    return Grade(right=same_json(right, found), fields=equal / len(right) if right else float(not found))


def _same_calls(question: Question, reply: str, spelled: str) -> bool:
    """Whether the reply calls the same functions with the same arguments, in any order; or calls none, as expected."""
    wanted, found = expected_calls(question.expected), calls_in(reply)
    if not wanted or found:
        return _equal(wanted, found)
    return bool(spelled) and canonical(spelled) == canonical(reply)


def _equal(wanted: list[Call], found: list[Call]) -> bool:
    if Counter(name for name, _ in wanted) != Counter(name for name, _ in found):
        return False
    left = list(found)
    for name, arguments in wanted:
        at = next((i for i, call in enumerate(left) if call[0] == name and same_json(call[1], arguments)), None)
        if at is None:
            return False
        del left[at]
    return True


def interval(right: int, asked: int) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson (1927): of few questions, or none right, too, it holds.

    (0, 1) where nothing was asked.
    """
    if not asked:
        return 0.0, 1.0
    share, spread = right / asked, Z_95**2 / asked
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / asked + spread / (4 * asked))
    return (max(0.0, middle - half) if right else 0.0), (min(1.0, middle + half) if right < asked else 1.0)
