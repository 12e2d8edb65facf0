"""The text that is scored.

Tested in tests/slm/evaluate/test_evaluate.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm.evaluate.perplexity import Scorer


@dataclass(frozen=True, kw_only=True)
class Text:
    """What is scored."""

    content: str
    name: str

    @property
    def n_words(self) -> int:
        return len(self.content.split())

    @property
    def n_bytes(self) -> int:
        return len(self.content.encode("utf-8"))


def read_text(path: Path | None) -> Text:
    """The text to score. A file is taken as it is; without one, WikiText-2's raw test set."""
    from data.sources import wikitext

    return Text(content=wikitext.load(path), name="WikiText-2 raw test" if path is None else path.name)


def shorten(scorer: Scorer, content: str, max_tokens: int | None) -> tuple[str, np.ndarray]:
    """The text, or its whole words from the start with about ``max_tokens`` at most; and its ids."""
    ids = scorer.tokenize(content)
    if max_tokens is None or len(ids) <= max_tokens:
        return content, ids
    part = content[: int(len(content) * max_tokens / len(ids))]
    while part and not part[-1].isspace():
        part = part[:-1]
    part = part.rstrip() or content
    return part, scorer.tokenize(part)
