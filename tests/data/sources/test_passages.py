"""The held-out passage of a document: never empty, between paragraphs, nested for larger shares."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm.data.sources.passages import middle, without

PROSE = "\n\n".join(f"Paragraph {i}. " + "Some words follow, and some more. " * 6 for i in range(400))


def test_it_is_whole_paragraphs_around_the_middle():
    passage = middle(PROSE, 0.01)
    text = PROSE[passage]
    assert text.startswith("Paragraph ")
    assert text.endswith("\n\n")
    assert 0.01 * len(PROSE) <= len(text) <= 0.01 * len(PROSE) + 2000
    assert passage.start < len(PROSE) / 2 < passage.stop
    assert without(PROSE, passage) == PROSE.replace(text, "")


@given(st.integers(0, 10**6), st.integers(2, 5000), st.floats(0.001, 0.9), st.floats(0.001, 0.9))
def test_the_passage_of_a_larger_share_contains_that_of_a_smaller_one(seed, length, one, other):
    chance = random.Random(seed)
    text = "".join(chance.choices(["a", " ", "\n", "\n\n", "\r\n\r\n"], (60, 10, 2, 1, 1), k=length))
    small, large = (middle(text, share) for share in sorted((one, other)))
    assert large.start <= small.start < small.stop <= large.stop
    assert text[small]


@pytest.mark.parametrize("text", ["x" * 5000, "word " * 1000, "line\n" * 1000])
def test_text_without_paragraphs(text):
    passage = middle(text, 0.1)
    assert 0.1 <= (passage.stop - passage.start) / len(text) < 0.15
    assert text[passage.start - 1] in "x \n"
