"""A model's file, timed: its prompt in one batch, then token by token (the definition is ``workload.py``'s).

Tested in tests/slm/llama/speed/test_timing.py.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from slm.llama.context import Batch, Context
from slm.llama.model import Model
from slm.llama.speed.workload import Workload

ROUNDS = 7
"""A file is opened so often: where its pages lie in memory changes its speed, too."""
_LEAST_S = 0.2
"""Decoding goes on for so long in one round."""
_WARM_TOKENS = 2


class Decoder:
    """One model, ready to be timed. Close it, or use ``with``."""

    def __init__(self, path: Path, workload: Workload, threads: int, tokens: np.ndarray | None = None) -> None:
        """``tokens``: ids to run, repeated as needed; without them, token 0. The model's context bounds the workload
        (``Workload.within``) before it comes here."""
        self.workload = workload
        n_ctx = workload.prompt + workload.tokens
        self._ids = np.resize(np.zeros(1, np.int32) if tokens is None else tokens, n_ctx).tolist()
        self.model = Model(path)
        self.context = Context(self.model, n_ctx=n_ctx, n_batch=workload.prompt, n_threads=threads)
        self._batch = Batch(workload.prompt)

    def prefill(self) -> float:
        """Seconds of the prompt in one batch, into an empty cache."""
        self.context.clear()
        began = perf_counter()
        self._run(0, self.workload.prompt)
        return perf_counter() - began

    def decode(self, n_tokens: int | None = None) -> float:
        """Seconds of the workload's tokens (or of fewer) behind the prompt, one at a time."""
        prompt = self.workload.prompt
        if self.context.seq_pos_max(0) != prompt - 1 and not self.context.seq_rm(0, prompt):
            self.prefill()
        began = perf_counter()
        for position in range(prompt, prompt + (n_tokens or self.workload.tokens)):
            self._run(position, position + 1)
        return perf_counter() - began

    def _run(self, start: int, stop: int) -> None:
        self._batch.clear()
        self._batch.extend(self._ids[start:stop], start, 0, logits=True)
        self.context.decode(self._batch)
        self.context.row(len(self._batch) - 1)

    def warm_up(self) -> None:
        """Read the file and make the buffers, and fill the cache with the prompt."""
        self.prefill()
        self.decode(min(_WARM_TOKENS, self.workload.tokens))

    def close(self) -> None:
        self.context.close()
        self.model.close()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def time_file(path: Path, workload: Workload, threads: int, tokens: np.ndarray | None = None) -> tuple[float, float]:
    """One round of a file: seconds of the workload's prompt, and of its tokens."""
    with Decoder(path, workload, threads, tokens) as decoder:
        decoder.warm_up()
        return decoder.prefill(), _decode_s(decoder)


def file_rate(path: Path, workload: Workload, threads: int) -> float:
    """Tokens per second that the file decodes: the median of ``ROUNDS`` rounds, measured in this process."""
    taken = []
    for _ in range(ROUNDS):
        with Decoder(path, workload, threads) as decoder:
            decoder.warm_up()
            taken.append(_decode_s(decoder))
    return workload.tokens / float(np.median(taken))


def _decode_s(decoder: Decoder) -> float:
    """Seconds of the workload's tokens: the median, where they are decoded several times because they are quickly
    done."""
    taken: list[float] = []
    while sum(taken) < _LEAST_S:
        taken.append(decoder.decode())
    return float(np.median(taken))
