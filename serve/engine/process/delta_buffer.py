"""Holds the text of running streams back for a moment, so that several steps make one message.

With one stream a token takes 3 ms, and carrying it to the client takes a third of that again, on a core that the next
token needs. Nobody reads that fast: text goes out some tens of times a second, everything else at once.
"""

from __future__ import annotations

from dataclasses import replace

from slm.serve.engine.protocol import Delta, Event


class DeltaBuffer:
    """Events in order. New text of a sequence is added to the text that is already held of it."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._events: list[Event] = []
        self._deltas: dict[str, tuple[int, Delta]] = {}
        """Sequence id -> the index of its delta in the events, and the delta."""
        self._urgent = False
        self._flushed_at = -float("inf")

    def add(self, events: list[Event]) -> None:
        """Takes the events of a step."""
        for event in events:
            # The first text comes together with PrefillDone, and the last has a finish: both go out at once.
            if not isinstance(event, Delta):
                self._urgent = True
                self._events.append(event)
                continue
            self._urgent = self._urgent or event.finish is not None
            index, delta = len(self._events), event
            if event.id in self._deltas:
                index, held = self._deltas[event.id]
                delta = replace(
                    event,
                    text=held.text + event.text,
                    logprobs=held.logprobs + event.logprobs,
                    tokens=held.tokens + event.tokens,
                )
                self._events[index] = delta
            else:
                self._events.append(delta)
            self._deltas[event.id] = index, delta

    def take_due(self, now: float) -> list[Event]:
        """The events that are due at this time (seconds of any clock); none while they can wait."""
        if not self._events or not (self._urgent or now - self._flushed_at >= self._interval_s):
            return []
        events, self._events = self._events, []
        self._deltas.clear()
        self._urgent, self._flushed_at = False, now
        return events
