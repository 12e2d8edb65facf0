"""Perplexity per word from bits per byte, by the text's own counts."""

import math

import pytest

from slm.data.config import DataConfig
from slm.data.sources import wikitext as text_of
from slm.train.predict import ngram
from slm.train.predict.wikitext import BYTES_PER_WORD, DIFFICULTY, can_say, word_perplexity


def test_the_constants_are_those_of_the_text(shared_data):
    text = text_of.load(shared_data / "wikitext" / "wiki.test.raw")
    assert pytest.approx(len(text.encode()) / len(text.split()), rel=1e-3) == BYTES_PER_WORD
    assert pytest.approx(ngram.difficulty(text), rel=1e-2) == DIFFICULTY
    nll = 1.2 * math.log(2) * len(text.encode())
    assert word_perplexity(1.2) == pytest.approx(math.exp(nll / len(text.split())), rel=1e-2)


def test_the_law_speaks_of_wikipedia_alone():
    assert can_say(DataConfig(kind="hub", name="wikitext", path="a/b"))
    assert not can_say(DataConfig(kind="tales", name="tales"))
