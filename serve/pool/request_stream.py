"""A request on its way through the engine, as its route sees it, and how it may end without a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serve.engine.messages import Delta, Failure, Prompted


class QueueFullError(Exception):
    """As many requests wait as may."""


class EngineDownError(Exception):
    """There is no engine at the moment; one is being started."""


class RequestFailedError(Exception):
    """The engine refused or lost the request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code = failure.code


class RequestStream:
    """A request's sequences on their way: their events as they come. ``cancel`` it when leaving early."""

    def __init__(self, sequence_ids: list[str], cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._index = {sequence_id: i for i, sequence_id in enumerate(sequence_ids)}
        self._left = set(sequence_ids)
        self._events: asyncio.Queue[Prompted | Delta | Failure] = asyncio.Queue()

    def put(self, event: Prompted | Delta | Failure) -> None:
        """Called by the engine client."""
        self._events.put_nowait(event)

    def expire(self) -> None:
        """Fails it for want of time."""
        message = "The request's time is over, and the engine has not answered."
        self.put(Failure(id=next(iter(self._index)), code="deadline_exceeded", message=message))

    @property
    def done(self) -> bool:
        """Whether every sequence has finished and all its events were taken."""
        return not self._left

    async def next_events(self) -> list[tuple[int, Prompted | Delta]]:
        """All events that are there, at least one, each with the index of its sequence.

        Raises ``RequestFailedError`` when a sequence failed; the others then are of no use.
        """
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        out = []
        for event in events:
            if isinstance(event, Failure):
                raise RequestFailedError(event)
            if isinstance(event, Delta) and event.finish:
                self._left.discard(event.id)
            out.append((self._index[event.id], event))
        return out

    def cancel(self) -> None:
        """Nothing more is wanted; frees the slots of what is unfinished. Safe to call at any time."""
        for sequence_id in self._index:
            self._cancel(sequence_id)
