"""What the engine has to say, held for a moment so that several steps make one message.

With one stream a token takes 3 ms, and carrying it to the client alone takes a third of that on a core that the next
token needs. Nobody reads that fast: text is told some tens of times a second, all else at once.
"""

from __future__ import annotations

from dataclasses import replace

from serve.engine.messages import Delta, Event


class Outbox:
    """Events in order; more text of a sequence is added to what is held of it."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._events: list[Event] = []
        self._place: dict[str, int] = {}
        """Where a sequence's text is held."""
        self._urgent = False
        self._told_at = -float("inf")

    def add(self, events: list[Event]) -> None:
        """Takes the events of a step."""
        for event in events:
            plain = isinstance(event, Delta)
            if plain and (place := self._place.get(event.id)) is not None:
                self._events[place] = _joined(self._events[place], event)
            else:
                if plain:
                    self._place[event.id] = len(self._events)
                self._events.append(event)
            # The first text comes with word of the prompt, and the last with the end: both go out at once.
            self._urgent = self._urgent or not plain or event.finish is not None

    def due(self, now: float) -> list[Event]:
        """What is to be told at this time, in seconds of any clock; nothing while it can wait."""
        if not self._events or not (self._urgent or now - self._told_at >= self._interval_s):
            return []
        events, self._events = self._events, []
        self._place.clear()
        self._urgent, self._told_at = False, now
        return events


def _joined(first: Event, more: Delta) -> Delta:
    assert isinstance(first, Delta)
    return replace(more, text=first.text + more.text, logprobs=first.logprobs + more.logprobs)
