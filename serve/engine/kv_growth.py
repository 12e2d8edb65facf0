"""A cache that grows with what is written into it. llama.cpp clears a whole cache when it makes one, half a second for
every gigabyte, and then the memory is taken. So slots begin short, and longer ones are made in a thread, while the
short ones are in use, when a sequence comes near their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from slm.llama.context import Context
from slm.llama.errors import LlamaError

SMALL_BYTES = 512 << 20
"""Caches that take no more together are made at once."""
SHORTEST = 512
"""Tokens of the shortest slots."""
_RETRY_S = 10.0
"""After a failure, unless a sequence has come to the end of its slot."""
_CELLS = 256
"""llama.cpp rounds the tokens of a slot up to a multiple of these."""


def first_length(context: int, total_bytes: int) -> int:
    """Tokens of the slots with which an engine starts, where slots of ``context`` tokens take this many bytes."""
    length = context
    while total_bytes * length > SMALL_BYTES * context and length >= 2 * SHORTEST:
        length = _rounded(length / 2)
    return min(length, context)


def _rounded(n: float) -> int:
    return -int(-n // _CELLS) * _CELLS


class KvGrowth:
    """``make(length)``: a context with slots of this many tokens. ``now``: tokens of the present ones; ``most``: of the
    longest that there may be."""

    def __init__(self, make: Callable[[int], Context], *, now: int, most: int) -> None:
        self._make, self._most = make, most
        self.length = now
        self._wanted = now
        self._thread: ThreadPoolExecutor | None = None
        self._longer: Future[Context] | None = None
        self._retry_at = 0.0
        self.failure: str | None = None
        """Why the last attempt came to nothing."""

    def expect(self, n: int) -> None:
        """A sequence has ``n`` tokens: where it comes near the end of its slot, begins to make longer ones."""
        if self._longer is not None or self.length >= self._most or 4 * n <= 3 * self.length:
            return
        if n <= self.length and time.monotonic() < self._retry_at:
            return
        self._wanted = min(self._most, max(2 * self.length, _rounded(4 / 3 * n)))
        self._thread = self._thread or ThreadPoolExecutor(1, "kv-growth")
        self._longer = self._thread.submit(self._make, self._wanted)

    @property
    def pending(self) -> Future[Context] | None:
        """What is being made."""
        return self._longer

    def take(self, n: int) -> Context | None:
        """The context with longer slots, once, when it is made; waits for it where ``n`` tokens need it. The caller
        moves what the present one holds. Raises ``LlamaError`` where there is none to be had."""
        self.expect(n)
        if self._longer is None or not (self._longer.done() or n > self.length):
            return None
        made, self._longer = self._longer, None
        try:
            context = made.result()
            self.failure = None
        except LlamaError as error:
            self.failure = str(error)
            if n > self.length:
                raise
            self._retry_at = time.monotonic() + _RETRY_S
            return None
        self.length = self._wanted
        return context

    def close(self) -> None:
        """Waits for the thread, which uses the model, and frees what it has made."""
        if self._thread is not None:
            self._thread.shutdown()
        if self._longer is not None and self._longer.exception() is None:
            self._longer.result().close()
            self._longer = None
