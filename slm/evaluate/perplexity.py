"""Perplexity in three definitions: their windows over a text, and the sums. The engines are in scorers.py.

- **llama.cpp's** (its ``llama-perplexity``): the text, one trailing newline dropped, becomes tokens (with the
  beginning-of-text token first, where the model adds one); windows of ``n_ctx`` that do not overlap, the remainder
  dropped; the first token of each window replaced by the beginning-of-text token where the model adds one; only
  positions n_ctx/2 + 1 to n_ctx - 1 of each are scored.
- **sliding window** (Hugging Face's recipe): contexts of T tokens that move by T/2, every token scored exactly once,
  each with at least T/2 tokens before it (fewer at the start). The first token is predicted from the
  beginning-of-text token, else the end-of-text one, as lm-eval does.
- **contiguous windows** (asked for only): the documents of a corpus, joined by the end-of-text token (and the
  beginning-of-text one, where the tokenizer adds it); windows of T tokens that do not overlap, every token scored once,
  the first of a window with nothing before it but its own input. Bits per byte are all of its nats, end-of-text tokens
  included, over the UTF-8 bytes of the documents.

Word perplexity and the sliding window's bits per byte are lm-eval's: the sliding pass's total over the words (separated
by whitespace) and UTF-8 bytes of the original text, so that they compare across tokenizers.

Shape suffixes: V vocabulary, N scored tokens. This module loads neither torch nor llama.cpp.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slm.data.errors import UserError

Progress = Callable[[int], None]
"""Called with the number of tokens run since the last call."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """One forward pass: which tokens go in, which positions' predictions count."""

    start: int
    """First input token, an index into the stream."""
    stop: int
    """One past the last input token."""
    first: int
    """First scored position, counted from ``start``; its target is the stream's token ``start + first + 1``."""
    last: int
    """One past the last scored position."""
    head: int | None = None
    """Token that replaces the first input."""

    def inputs(self, stream: np.ndarray) -> np.ndarray:
        tokens = stream[self.start : self.stop]
        if self.head is not None:
            tokens = tokens.copy()
            tokens[0] = self.head
        return tokens

    def targets(self, stream: np.ndarray) -> np.ndarray:
        return stream[self.start + self.first + 1 : self.start + self.last + 1]


def chunked_windows(n_tokens: int, n_ctx: int, bos: int | None = None) -> list[Window]:
    """llama.cpp's windows over a stream of ``n_tokens`` (which starts with ``bos`` where there is one).

    UserError where the text is shorter than two windows, which llama.cpp refuses too.
    """
    assert n_ctx >= 4
    if n_tokens < 2 * n_ctx:
        raise UserError(
            f"the text is only {n_tokens} tokens; perplexity over windows of {n_ctx} needs at least {2 * n_ctx}: "
            f"give more text, or a smaller n_ctx (at most {n_tokens // 2})"
        )
    return [
        Window(start=start, stop=start + n_ctx, first=n_ctx // 2, last=n_ctx - 1, head=bos)
        for start in range(0, n_tokens - n_ctx + 1, n_ctx)
    ]


def sliding_windows(n_tokens: int, context: int, stride: int | None = None) -> list[Window]:
    """Overlapping windows over a stream of ``n_tokens`` that score each token but the stream's first exactly once."""
    stride = stride or context // 2
    assert 0 < stride <= context
    windows, scored = [], 1
    for start in range(0, max(n_tokens - 1, 0), stride):
        stop = min(start + context, n_tokens - 1)
        windows.append(Window(start=start, stop=stop, first=scored - 1 - start, last=stop - start))
        scored = stop + 1
        if scored >= n_tokens:
            break
    return windows


def contiguous_windows(n_tokens: int, length: int) -> list[Window]:
    """Windows of ``length`` inputs side by side (the last may be shorter); every token but the first is one target."""
    return [
        Window(start=start, stop=stop, first=0, last=stop - start)
        for start in range(0, n_tokens - 1, length)
        for stop in [min(start + length, n_tokens - 1)]
    ]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A perplexity with its standard error."""

    perplexity: float
    stderr: float
    """One standard error of the perplexity, tokens taken as independent (llama.cpp's formula)."""
    nll: float
    """Sum of negative log-likelihoods, nats."""
    tokens: int
    """Tokens scored."""


def reduce(nll_N: np.ndarray) -> Score:
    """exp of the mean of negative log-likelihoods (nats) and its standard error."""
    n = len(nll_N)
    assert n > 0
    values = nll_N.astype(np.float64)
    mean = float(values.mean())
    variance = float((values * values).mean()) - mean * mean
    perplexity = math.inf if mean >= 700 else math.exp(mean)  # NaN stays NaN
    stderr = perplexity * math.sqrt(max(variance, 0.0) / (n - 1)) if n > 1 else math.nan
    return Score(perplexity=perplexity, stderr=stderr, nll=float(values.sum()), tokens=n)


def relative_change(nll_N: np.ndarray, reference_N: np.ndarray) -> tuple[float, float]:
    """How much higher a perplexity is than another one on the same tokens, as a part of that, and its standard error.

    The tokens are paired: what makes a text hard for both counts as no error.
    """
    more_N = nll_N.astype(np.float64) - reference_N
    ratio = math.exp(min(float(more_N.mean()), 700.0))  # NaN stays NaN
    n = len(more_N)
    return ratio - 1, ratio * float(more_N.std()) / math.sqrt(n - 1) if n > 1 else math.nan


def word_perplexity(nll: float, n_words: int) -> float:
    """exp of nats per whitespace-separated word of the original text."""
    return math.exp(min(nll / n_words, 700.0)) if n_words else math.nan


def bits_per_byte(nll: float, n_bytes: int) -> float:
    """Bits per UTF-8 byte of the original text."""
    return nll / (n_bytes * math.log(2)) if n_bytes else math.nan


def nll_of(logits_NV: np.ndarray, targets_N: np.ndarray, rows: int = 16) -> np.ndarray:
    """f64 [N] negative log-likelihoods, nats, from f32 logits; a few rows at a time, so that temporaries stay small."""
    found = np.empty(len(targets_N), np.float64)
    for start in range(0, len(targets_N), rows):
        part_NV = logits_NV[start : start + rows]
        top_N = part_NV.max(axis=1, keepdims=True)
        total_N = np.exp(part_NV - top_N).sum(axis=1, dtype=np.float64)
        picked_N = part_NV[np.arange(len(part_NV)), targets_N[start : start + rows]]
        found[start : start + rows] = np.log(total_N) + top_N[:, 0].astype(np.float64) - picked_N
    return found


class Scorer(Protocol):
    """An engine that runs windows."""

    engine: str
    name: str
    max_context: int
    """The longest window it can run, tokens."""
    bos: int | None
    """The beginning-of-text token, where the tokenizer adds one by itself."""
    document_start: int | None
    """The token that stands before a text: beginning-of-text, else end-of-text."""
    document_end: int | None
    """The token that ends a document."""

    def tokenize(self, text: str) -> np.ndarray:
        """int32 ids of ``text``, without special tokens."""
        ...

    def logits(self, windows: Sequence[Window], stream: np.ndarray) -> Iterator[tuple[Window, np.ndarray]]:
        """f32 [last - first, V] logits of each window's scored positions, in order; the model's own."""
        ...

    def nll(self, windows: Sequence[Window], stream: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """f64 [N] negative log-likelihoods of all the windows' targets, in order."""
        ...


def chunked_plan(
    scorer: Scorer, ids: np.ndarray, n_ctx: int, max_chunks: int | None = None
) -> tuple[np.ndarray, list[Window]]:
    """The stream and windows of llama.cpp's definition."""
    stream = ids if scorer.bos is None else np.concatenate([np.array([scorer.bos], ids.dtype), ids])
    windows = chunked_windows(len(stream), min(n_ctx, scorer.max_context), scorer.bos)
    return stream, windows[:max_chunks]


def sliding_plan(scorer: Scorer, ids: np.ndarray, context: int) -> tuple[np.ndarray, list[Window]]:
    """The stream and windows of the sliding definition."""
    start = scorer.document_start
    stream = ids if start is None else np.concatenate([np.array([start], ids.dtype), ids])
    return stream, sliding_windows(len(stream), min(context, scorer.max_context))


def _around(scorer: Scorer) -> tuple[int | None, int | None]:
    """What stands before and after a document. A tokenizer that adds no beginning-of-text token has one token between
    two documents."""
    return (scorer.document_start, None) if scorer.bos is None else (scorer.bos, scorer.document_end)


def contiguous_plan(scorer: Scorer, documents: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, list[Window]]:
    """The stream of ``documents`` (ids of each) as training packs them, and its windows: each after the token that
    starts one, and before the one that ends it where these are two."""
    starts, ends = ([] if token is None else [np.array([token], np.int32)] for token in _around(scorer))
    stream = np.concatenate([part for ids in documents for part in (*starts, ids, *ends)])
    return stream, contiguous_windows(len(stream), min(length, scorer.max_context))
