"""From the law's bits per byte to the perplexity that papers print: per word of WikiText-103's test text.

Papers divide the nats of the whole text by its 245,569 tokens: 241,211 words between blanks, and an end of line for
each of its 4,358 lines (Merity et al. 2016, arXiv 1609.07843). Tokens of a model are parts of words, and so the
perplexity per word is exp(nats per byte * bytes per word), with the bytes of the raw text.

The law can say it of a run that trains on text of this kind, articles of Wikipedia. What such a run is worth on other
text, or another run on WikiText, is for ``slm eval`` to measure.
"""

from collections.abc import Sequence

from slm.data.config import DataConfig
from slm.data.sources.wikitext import BYTES
from slm.train.predict.ngram import Level

WORDS, LINES = 241_211, 4_358
"""Words between blanks and ends of line of WikiText-103's raw test text."""
BYTES_PER_WORD = BYTES / (WORDS + LINES)
LEVELS = {"wikitext": Level(0.992, 1.074), "wikipedia_stories": Level(1.081, 1.149)}
"""``ngram.level`` of the articles, by the name of the data: WikiText's raw test text, and plain ones."""
OTHER_FORM, FORM_ERROR = 1.31, 0.06
"""Bits per byte of WikiText's raw test text relative to held-out plain articles for a model that has read plain
articles alone, and its relative error (one standard deviation). WikiText's words and marks stand apart, as in
``1 @,@ 000 ( m )``. A run of ten minutes had 1.31, one of thirty 1.32, other trainers' 1.16 to
1.27 (docs/results/recipe-comparison.md)."""


def can_say(data: DataConfig) -> bool:
    """Whether the text that is trained on is of WikiText's kind."""
    return data.name in LEVELS


def word_perplexity(bits_per_byte: float) -> float:
    """The perplexity per word that this many bits per byte of the raw test text are."""
    return float(2 ** (bits_per_byte * BYTES_PER_WORD))


def of_run(data: DataConfig, ends: Sequence[float]) -> list[float]:
    """The perplexity per word for the lower end, the prediction and the upper end of a run's bits per byte on held-out
    text of ``data``. Wider than these where the run has read articles of another form than WikiText's."""
    if data.name == "wikitext":
        return [word_perplexity(each) for each in ends]
    forms = (OTHER_FORM / (1 + FORM_ERROR), OTHER_FORM, OTHER_FORM * (1 + FORM_ERROR))
    return [word_perplexity(each * form) for each, form in zip(ends, forms, strict=True)]
