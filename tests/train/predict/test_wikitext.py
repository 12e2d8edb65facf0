"""Perplexity per word from bits per byte, by the text's own counts."""

import math
import re
from dataclasses import asdict

import pytest

from slm.data.config import DataConfig
from slm.data.sources import wikitext as text_of
from slm.train.predict import ngram
from slm.train.predict.wikitext import (
    BYTES,
    BYTES_PER_WORD,
    LEVELS,
    LINES,
    OTHER_FORM,
    WORDS,
    can_say,
    of_run,
    word_perplexity,
)


def test_the_constants_are_those_of_the_text(shared_data):
    text = text_of.load(shared_data / "wikitext" / "wiki.test.raw")
    assert (len(text.encode()), len(text.split()), text.count("\n")) == (BYTES, WORDS, LINES)
    articles = re.split(r"(?m)^(?= = [^=].* = $)", text)
    assert len(articles) == 63  # 62, and the empty line before the first
    found = ngram.level([each[: ngram.EXCERPT] for each in articles])
    assert asdict(found) == pytest.approx(asdict(LEVELS["wikitext"]), rel=1e-2)


def test_a_word_is_what_papers_count():
    """245,569 tokens: every line ends with one."""
    assert WORDS + LINES == 245_569
    nll = 1.2 * math.log(2) * BYTES
    assert word_perplexity(1.2) == pytest.approx(math.exp(nll / 245_569))
    assert word_perplexity(math.log2(37.5) / BYTES_PER_WORD) == pytest.approx(37.5)


def test_a_run_on_plain_articles_finds_wikitexts_form_harder():
    """Ten minutes had 1.5015 bits per byte of held-out articles, and 1.969 of WikiText."""
    same, other = (DataConfig(kind="hub", name=name, path="a/b") for name in ("wikitext", "wikipedia_stories"))
    ends = (1.4, 1.5015, 1.6)
    assert of_run(same, ends) == [word_perplexity(each) for each in ends]
    low, at, high = of_run(other, ends)
    assert at == pytest.approx(word_perplexity(1.969), rel=0.01)
    assert low < word_perplexity(1.4 * OTHER_FORM) < at < word_perplexity(1.6 * OTHER_FORM) < high


def test_the_law_speaks_of_wikipedia_alone():
    assert can_say(DataConfig(kind="hub", name="wikitext", path="a/b"))
    assert not can_say(DataConfig(kind="tales", name="tales"))
