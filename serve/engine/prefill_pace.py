"""How many prompt tokens a step may compute, by how long steps have taken so far. Pure Python: no model, no clock."""

from __future__ import annotations

STREAMS_WAIT_S = 0.2
"""The most that prompt tokens may hold up sequences that generate."""
ALONE_S = 1.0
"""The longest step while nothing generates: commands are read between steps."""
_STREAM_PART = 2.0
"""Prompt tokens may take so many times as long as a stream waits for its next text anyway."""
_FEWEST = 4
"""Fewer tokens take about as long as one: a pass reads all weights."""
_FIRST = 64
"""Before anything is measured."""
_WORST = 4.0
"""A step that took more than so many times the expected time was held up by something else."""


class PrefillPace:
    """Learns the time of a prompt token while prompts are computed.

    ``text_s``: seconds between two texts of a stream, where tokens come faster than that.
    """

    def __init__(self, *, text_s: float) -> None:
        self._text_s = text_s
        self._token_s: float | None = None
        self._decode_s = 0.0
        self._planned = {True: _FIRST, False: _FIRST}
        """The newest answers of ``tokens``, by whether there were streams."""

    def tokens(self, *, streams: bool) -> int:
        """Prompt tokens of the next step. ``streams``: whether sequences that generate wait for it."""
        if self._token_s is None:
            return _FIRST
        wait_s = min(STREAMS_WAIT_S, _STREAM_PART * max(self._text_s, self._decode_s)) if streams else ALONE_S
        self._planned[streams] = max(_FEWEST, int(wait_s / self._token_s))
        return self._planned[streams]

    def prefilled(self, n: int, seconds: float) -> None:
        """A step with ``n`` prompt tokens took so long."""
        if self._token_s is None:
            self._token_s = seconds / n
            return
        # Other short steps say little about a token: most of their time goes into reading the weights.
        weight = 0.5 if n in self._planned.values() else n / (n + _FIRST)
        self._token_s += weight * (min(seconds / n, _WORST * self._token_s) - self._token_s)

    def decoded(self, seconds: float) -> None:
        """A step without prompt tokens took so long."""
        expected = self._decode_s or seconds
        self._decode_s = expected + 0.1 * (min(seconds, _WORST * expected) - expected)
