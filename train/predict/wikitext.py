"""From the law's bits per byte to the perplexity that papers print: per word of WikiText-103's test text.

The law can say it of a run that trains on text of this kind, articles of Wikipedia. What such a run is worth on other
text, or another run on WikiText, is for ``slm eval`` to measure.
"""

from slm.data.config import DataConfig

DIFFICULTY = 0.912
"""``ngram.difficulty`` of WikiText-103's raw test text."""
BYTES_PER_WORD = 1_290_590 / 241_211
"""UTF-8 bytes of that text over words between blanks."""


def can_say(data: DataConfig) -> bool:
    """Whether the text that is trained on is of WikiText's kind."""
    return data.name in ("wikitext", "wikipedia_stories")


def word_perplexity(bits_per_byte: float) -> float:
    """The perplexity per word that this many bits per byte of the test text are."""
    return float(2 ** (bits_per_byte * BYTES_PER_WORD))
