"""How many prompt tokens a step may compute, by how long steps have taken so far. Pure Python: no model, no clock."""

from __future__ import annotations

from typing import Literal

STREAMS_WAIT_S = 0.2
"""The most that prompt tokens may hold up sequences that generate."""
ALONE_S = 1.0
"""The longest step while nothing generates: commands are read between steps."""
_STREAM_PART = 1.5
"""The tokens of one prompt may take this many times as long as a stream waits for its next text anyway. With the
decode step behind them, and next to other work on the machine, it then waits for less than three times as long."""
_FEWEST = 4
"""Fewer tokens take about as long as one: a pass reads all weights."""
FLASH_TILE = 64
"""llama.cpp's flash attention takes this many rows together; fewer go one by one, which takes longer in all behind a
thousand tokens (measured: 0.37 s for 4 rows, 0.71 s for 64)."""
_SINGLE_ROWS = 2.0
"""What a row costs that goes by itself, in rows of a tile (measured: 1.8 with 24 layers, 16 rows behind 256 tokens)."""
_TILE_LATE = 1.5
"""A whole tile is taken where it takes up to this factor longer than it should: a stream without prompts is late by a
decode step, too. Above, rows go by themselves."""
Kind = Literal["long", "short", "alone"]
"""A step of a long prompt next to streams, of a short one, or of any while no stream waits."""
_FIRST: dict[Kind, int] = {"long": 16, "short": 16, "alone": 64}
"""Tokens before anything is measured."""
_WORST = 4.0
"""A step that took more than this many times the expected time was held up by something else."""


class PrefillPace:
    """Learns the time of a prompt token while prompts are computed.

    ``text_s``: seconds between two texts of a stream, where tokens come faster than that. ``tile``: steps have
    multiples of this number of tokens, or fewer where streams would wait too long for one.
    """

    def __init__(self, *, text_s: float, tile: int = 1) -> None:
        self._text_s, self._tile = text_s, tile
        self._token_s: float | None = None
        self._decode_s = 0.0
        self._planned = dict(_FIRST)
        """The newest answers of ``tokens``."""

    def tokens(self, kind: Kind, *, prompts: int = 1) -> int:
        """Prompt tokens of the next step. ``prompts``: how many are to be computed. A long one may hold streams up for
        as long as each of them may, since more prompts wait longer for their first text."""
        if self._token_s is None:
            return _FIRST[kind]
        wait_s = ALONE_S if kind == "alone" else STREAMS_WAIT_S
        if kind == "long":
            wait_s = min(wait_s, prompts * _STREAM_PART * max(self._text_s, self._decode_s))
        self._planned[kind] = self._fitting(wait_s, self._token_s, may_cut=kind != "alone")
        return self._planned[kind]

    def _fitting(self, wait_s: float, token_s: float, *, may_cut: bool) -> int:
        n = max(_FEWEST, int(wait_s / token_s))
        if n >= self._tile:
            return n - n % self._tile
        if may_cut and self._tile * token_s > _TILE_LATE * wait_s:
            return max(_FEWEST, int(wait_s / (_SINGLE_ROWS * token_s)))
        return self._tile

    def prefilled(self, n: int, seconds: float) -> None:
        """A step with ``n`` prompt tokens took so long."""
        token_s = seconds / n / (1.0 if n >= self._tile else _SINGLE_ROWS)
        if self._token_s is None:
            self._token_s = token_s
            return
        # Other short steps say little about a token: most of their time goes into reading the weights.
        weight = 0.5 if n in self._planned.values() else n / (n + FLASH_TILE)
        self._token_s += weight * (min(token_s, _WORST * self._token_s) - self._token_s)

    def decoded(self, seconds: float) -> None:
        """A step without prompt tokens took so long."""
        expected = self._decode_s or seconds
        self._decode_s = expected + 0.1 * (min(seconds, _WORST * expected) - expected)
