"""The events of one request's sequences, as a route reads them, and the ways in which it may end without a result.

Tested in tests/serve/pool/test_engine_client.py, tests/serve/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from slm.serve.engine.protocol import Accepted, Delta, Failure, SequenceEvent


class QueueFullError(Exception):
    """The queue is full."""


class TooManySequencesError(Exception):
    """A request has more sequences than may ever be in flight together."""


class EngineDownError(Exception):
    """There is no engine at the moment; one is being started."""


class RequestFailedError(Exception):
    """The engine refused or lost the request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code, self.n_tokens, self.n_context = failure.code, failure.n_tokens, failure.n_context


class RequestStream:
    """The events of a request's sequences, in the order in which they come. Who leaves early calls ``cancel``."""

    def __init__(self, sequence_ids: list[str], cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._index = {sequence_id: i for i, sequence_id in enumerate(sequence_ids)}
        self._unfinished = set(sequence_ids)
        self._events: asyncio.Queue[SequenceEvent | Failure] = asyncio.Queue()
        self._failure: Failure | None = None
        self._not_accepted = set(sequence_ids)
        self._refusal: Failure | None = None
        self._decided = asyncio.Event()

    def put(self, event: Accepted | SequenceEvent | Failure) -> None:
        """Called by the engine client."""
        self._not_accepted.discard(event.id)
        if isinstance(event, Failure):
            self._refusal = self._refusal or event
        if self._refusal or not self._not_accepted:
            self._decided.set()
        if not isinstance(event, Accepted):
            self._events.put_nowait(event)

    def expire(self) -> None:
        """Fails the request because its time is over."""
        message = "The request's time is over, and the engine has not answered."
        self.put(Failure(id=next(iter(self._index)), code="deadline_exceeded", message=message))

    async def accepted(self, timeout_s: float) -> None:
        """Waits until the engine has accepted every sequence, or so long. Raises ``RequestFailedError`` where one has
        failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._decided.wait()
        if self._refusal is not None:
            raise RequestFailedError(self._refusal)

    @property
    def done(self) -> bool:
        """Whether every sequence has finished and all events have been read."""
        return not self._unfinished

    async def next_events(self) -> list[tuple[int, SequenceEvent]]:
        """Waits for an event and returns all that are there, each with the index of its sequence.

        Raises ``RequestFailedError`` when a sequence has failed; the request then has no result.
        """
        if self._failure is not None:
            raise RequestFailedError(self._failure)
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        out: list[tuple[int, SequenceEvent]] = []
        for event in events:
            if isinstance(event, Failure):
                if not out:
                    raise RequestFailedError(event)
                self._failure = event  # what was generated before it comes first
                return out
            if isinstance(event, Delta) and event.finish:
                self._unfinished.discard(event.id)
            out.append((self._index[event.id], event))
        return out

    def cancel(self) -> None:
        """Stops the unfinished sequences and frees their slots. Safe to call at any time, and again."""
        for sequence_id in self._index:
            self._cancel(sequence_id)
