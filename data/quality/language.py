"""The language of a text, by a naive Bayes model over sequences of bytes that ``py3langid`` brings along.

It is asked about three stretches of a longer text, so that a long one takes no more time than a short one.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from slm.data.errors import UserError, nearest

VERSION = 1
"""Version of the model's use. A change changes the text that a run reads."""
STRETCH = 300
"""Characters at the beginning, in the middle and at the end of a text that the model sees."""
UNKNOWN = "none"
"""The language of a text without letters."""
_SAME = {"yue": "zh", "wuu": "zh", "zxx": UNKNOWN}
"""What the model tells apart and people do not: texts in Cantonese and Wu are Chinese; ``zxx`` is no language."""


def language_of(text: str) -> str:
    """The code of the text's most likely language (ISO 639-1 where it has one there); ``none`` without letters."""
    seen = text
    if len(text) > 3 * STRETCH:
        middle = (len(text) - STRETCH) // 2
        seen = f"{text[:STRETCH]}\n{text[middle : middle + STRETCH]}\n{text[-STRETCH:]}"
    if not any(map(str.isalpha, seen)):
        return UNKNOWN
    found: str = _model().classify(seen)[0]
    return _SAME.get(found, found)


def count(texts: Iterable[str]) -> dict[str, int]:
    """How many of the texts are in each language, the most frequent first."""
    return dict(Counter(map(language_of, texts)).most_common())


@functools.cache
def known() -> tuple[str, ...]:
    """The codes of the languages that the model knows."""
    return tuple(sorted({_SAME.get(each, each) for each in _model().labels} - {UNKNOWN}))


def check(languages: Sequence[str]) -> None:
    """UserError for a code that is not known."""
    for code in languages:
        if code not in known():
            hint = nearest(code, known()) or "codes have two letters"
            raise UserError(f"languages={code}: not a language that is known; {hint} (of {', '.join(known())})")


def identity() -> str:
    """Changes with what is found."""
    from importlib.metadata import version

    return f"{VERSION} {version('py3langid')}"


@functools.cache
def _model() -> Any:  # its module takes 0.1 s to import, and its model as long to read
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)
