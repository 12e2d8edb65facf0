"""The log-likelihood of given continuations: what tasks with answers to choose from are scored by.

Shape suffixes: N scored tokens, V vocabulary.

Tested in tests/slm/evaluate/test_tasks.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slm.data.errors import UserError
from slm.evaluate.perplexity import Progress, Window, nll_of
from slm.evaluate.scorers import GGUFScorer, TorchScorer


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is scored: ``continuation`` after ``context``."""

    context: Sequence[int]
    """Token ids, at least one."""
    continuation: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request's score."""

    logprob: float
    """Sum over the continuation's tokens, nats."""
    greedy: bool
    """Whether each of them is the most likely one at its place."""
    truncated: int
    """Tokens of the context that were left out from its start, because the model's context is shorter."""


def score_continuations(
    scorer: TorchScorer | GGUFScorer, requests: Sequence[Request], progress: Progress | None = None
) -> list[Answer]:
    """The answers, in the order of the requests. ``progress`` is called with the tokens run.

    Requests of similar length go through the model together. UserError for a continuation that is longer than the
    model's context.
    """
    parts, windows, truncated, at = [], [], [], 0
    for request in requests:
        assert len(request.context), "a continuation needs a token before it"
        ids = np.array([*request.context, *request.continuation], np.int32)[-(scorer.max_context + 1) :]
        n_continuation = len(request.continuation)
        if n_continuation > scorer.max_context:
            raise UserError(
                f"a continuation has {n_continuation} tokens, and {scorer.name} has a context of {scorer.max_context}: "
                "leave this task out"
            )
        truncated.append(len(request.context) + n_continuation - len(ids))
        # The last token is only predicted, never an input.
        first, length = len(ids) - n_continuation - 1, len(ids) - 1
        windows.append(Window(start=at, stop=at + length, first=first, last=length))
        parts.append(ids)
        at += len(ids)
    stream = np.concatenate(parts) if parts else np.empty(0, np.int32)
    order = sorted((i for i, each in enumerate(requests) if len(each.continuation)), key=lambda i: _length(windows[i]))
    answers = [Answer(logprob=0.0, greedy=True, truncated=each) for each in truncated]
    found = scorer.ragged_logits([windows[i] for i in order], stream)
    for i, (window, logits_NV) in zip(order, found, strict=True):
        targets_N = window.targets(stream)
        answers[i] = Answer(
            logprob=-float(nll_of(logits_NV, targets_N).sum()),
            greedy=bool((logits_NV.argmax(axis=1) == targets_N).all()),
            truncated=truncated[i],
        )
        if progress:
            progress(_length(window))
    return answers


def _length(window: Window) -> int:
    return window.stop - window.start
