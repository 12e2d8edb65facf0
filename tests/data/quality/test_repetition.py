"""Gopher's rules: each is broken by a text made for it, and ordinary prose keeps them all."""

import pytest

from slm.data.config import SourceConfig
from slm.data.errors import UserError
from slm.data.quality.repetition import broken_rule
from slm.data.sources.filters import make_filter
from slm.data.tales.story import story

PROSE = "\n\n".join(story(1, n) for n in range(3))
SENTENCES = [each.strip() + "." for each in PROSE.replace("\n", " ").split(".") if each.strip()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROSE, None),
        ("Too short.", "fewer than 50 words"),
        (" ".join(f"incomprehensible{n}" for n in range(60)), "mean length of words"),
        (PROSE.replace("a", "a#"), "a # or an ellipsis"),
        ("\n".join(f"- {each}" for each in SENTENCES), "lines with bullets"),
        (
            "\n".join(f"{' '.join(SENTENCES[at : at + 3])} \u2026" for at in range(0, len(SENTENCES), 3)),
            "end in an ellipsis",
        ),
        (PROSE.replace(" ", " 12 "), "words without a letter"),
        ("lorem ipsum dolor sit amet consectetur elit " * 10, "fewer than two of the words"),
    ],
)
def test_signs_of_prose(text, expected):
    found = broken_rule(text, "gopher")
    assert (found is None) == (expected is None), found
    assert expected is None or expected in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n".join(SENTENCES + SENTENCES[:20] * 2), "lines that occur twice"),
        ("\n\n".join([*SENTENCES[:6], *SENTENCES[:4], "\n".join(SENTENCES[6:])]), "paragraphs that occur twice"),
        ("\n".join([*SENTENCES[:8], PROSE.replace("\n", " "), PROSE.replace("\n", " ")]), "characters in lines"),
        (" ".join(f"good morning {each}" for each in "abcdefghijklmnopqrstuvwxyz"), "one sequence of 2 words"),
        (" ".join(SENTENCES[:12] + SENTENCES[:12]), "repeated sequences of 5 words"),
        ("Once. " + PROSE, None),
        ("", None),
    ],
)
def test_repetition(text, expected):
    found = broken_rule(text, "repetition")
    assert (found is None) == (expected is None), found
    assert expected is None or expected in found


def test_most_stories_keep_the_rules():
    assert sum(broken_rule(story(7, n), "gopher") is None for n in range(200)) > 190


def test_the_option():
    reason = make_filter(SourceConfig(kind="tales", rules="gopher"))
    assert reason(PROSE) is None
    assert reason("Short.") == "rules (fewer than 50 words or more than 100,000)"
    assert make_filter(SourceConfig(kind="tales", rules="repetition"))("Short.") is None
    with pytest.raises(UserError, match="rules=gophr must be none, repetition, gopher, c4"):
        SourceConfig(kind="tales", rules="gophr")
