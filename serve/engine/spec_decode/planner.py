"""How many draft tokens are worth verifying. Pure Python: no model, no clock.

A step verifies draft tokens by computing them next to the newest token. Each row's logits then belong to the token
that the sequence's own sampler picks there, for as long as its picks equal the draft. Every row makes a step longer,
so draft tokens are verified only where they are expected to give more tokens per second (``Planner``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

DRAFT_LENGTHS = (1, 2, 3, 5, 7, 11, 15, 16, 23, 31, 32)
"""How many draft tokens a sequence may get in a step. Matrix kernels take rows by fours or sixteens: with or without
the newest token, most of these make a multiple of that."""

MIN_GAIN = 1.05
"""A step with draft tokens must be expected to give this many times the tokens per second of a step without."""

_MIN_RATES = (0.2, 0.5, 0.75)
"""Sequences with at least this share of accepted draft tokens are chosen together."""

_MATCH_BOUNDS = (3, 5, 8, 16)
"""Matches are classed by length: below the first of these, below the second and so on."""

_PRIORS = ((0.4, 1.6), (0.8, 1.2), (1.4, 0.6), (1.86, 0.14), (1.94, 0.06))
"""Accepted and rejected draft tokens that each class begins with. High for long matches: nothing is learned about
draft tokens that are never tried."""


@dataclass(slots=True)
class Acceptance:
    """How often draft tokens of one sequence were accepted, by the length of the match before them."""

    hits: list[float] = field(default_factory=lambda: [hits for hits, _ in _PRIORS])
    """Accepted draft tokens per class, older ones discounted."""
    misses: list[float] = field(default_factory=lambda: [misses for _, misses in _PRIORS])
    """Rejected ones, likewise."""

    @staticmethod
    def _class(match: int) -> int:
        return bisect_right(_MATCH_BOUNDS, match)

    def rate(self, match: int) -> float:
        """The probability that the next draft token is accepted, given that those before it in the step were."""
        i = self._class(match)
        return self.hits[i] / (self.hits[i] + self.misses[i])

    def relax(self, match: int) -> None:
        """Nothing was verified: moves the class a little towards its prior, so that it is tried again some time."""
        i = self._class(match)
        hits, misses = _PRIORS[i]
        self.hits[i] += 0.01 * (hits - self.hits[i])
        self.misses[i] += 0.01 * (misses - self.misses[i])

    def observe(self, match: int, n_drafted: int, n_accepted: int) -> None:
        """Record that the first ``n_accepted`` of ``n_drafted`` draft tokens were accepted. Older observations are
        discounted."""
        i = self._class(match)
        self.hits[i] = 0.8 * self.hits[i] + n_accepted + 0.02
        self.misses[i] = 0.8 * self.misses[i] + (n_accepted < n_drafted) + 0.02


@dataclass(frozen=True)
class StepCost:
    """Seconds of a forward pass by its number of rows, all with logits; measured for some numbers of rows."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        """Seconds of a pass of ``n`` rows: interpolated, and proportional beyond the largest that was measured."""
        rows, seconds = self.rows, self.seconds
        if n >= rows[-1]:
            return seconds[-1] * n / rows[-1]
        i = max(bisect_right(rows, n), 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return seconds[i - 1] + slope * (n - rows[i - 1])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence for which there may be draft tokens."""

    slot: int
    rate: float
    """The probability that a draft token is accepted, given that those before it were."""
    most: int
    """How many draft tokens there can be."""

    def expected(self, n: int) -> float:
        """How many of ``n`` draft tokens will be accepted, on average."""
        n = min(n, self.most)
        return float(n) if self.rate >= 1 else self.rate * (1 - self.rate**n) / (1 - self.rate)


class Planner:
    """Decides how many draft tokens to verify, and of which sequences.

    ``cost``: of a forward pass of the model. ``shared``: whether there is one cache for all sequences. With a cache per
    slot, llama.cpp computes sequences in neighbouring slots together only for as many tokens as the shortest of them
    has, and the rest in their own passes. ``draft_cost(sequences, n)``: seconds to make ``n`` draft tokens for each.
    ``always``: number of draft tokens for every sequence, whatever they cost; 0: as many as pay.
    """

    def __init__(
        self,
        cost: StepCost,
        *,
        shared: bool,
        draft_cost: Callable[[int, int], float] = lambda sequences, n: 0.0,
        always: int = 0,
    ) -> None:
        self._cost, self._shared, self._draft_cost, self._always = cost, shared, draft_cost, always

    def choose(self, slots: Seq[int], candidates: Seq[Candidate], room: int) -> dict[int, int]:
        """How many draft tokens each slot gets; slots without an entry get none. ``slots``: of all sequences that
        generate; ``room``: most rows of the batch."""
        if not candidates or not slots:
            return {}
        if self._always:
            n = min(self._always, (room - len(slots)) // len(candidates))
            return {each.slot: min(n, each.most) for each in candidates if min(n, each.most) > 0}
        best_speed = MIN_GAIN * len(slots) / self._seconds(dict.fromkeys(slots, 1))
        best: dict[int, int] = {}
        for min_rate in _MIN_RATES:
            likely = [each for each in candidates if each.rate >= min_rate and each.most > 0]
            for n in DRAFT_LENGTHS if likely else ():
                chosen = {each.slot: min(n, each.most) for each in likely}
                rows = len(slots) + sum(chosen.values())
                tokens = len(slots) + sum(each.expected(n) for each in likely)
                drafting = self._draft_cost(len(likely), n)
                # One pass is the least that the step can take: that alone rules most lengths out.
                if rows > room or tokens < best_speed * (self._cost(rows) + drafting):
                    continue
                speed = tokens / (self._seconds({slot: 1 + chosen.get(slot, 0) for slot in slots}) + drafting)
                if speed > best_speed:
                    best_speed, best = speed, chosen
        return best

    def _seconds(self, lengths: Mapping[int, int]) -> float:
        return sum(self._cost(rows) for rows in passes(lengths, shared=self._shared))


def passes(lengths: Mapping[int, int], *, shared: bool) -> list[int]:
    """Rows of each pass in which llama.cpp computes a batch of ``lengths`` tokens by slot."""
    if shared:
        return [sum(lengths.values())]
    left = sorted(lengths.items())
    out = []
    while left:
        together = [left[0]]
        for each in left[1:]:
            if each[0] == together[-1][0] + 1:
                together.append(each)
        shortest = min(n for _, n in together)
        out.append(shortest * len(together))
        done = {slot for slot, _ in together}
        left = [(slot, n - shortest * (slot in done)) for slot, n in left if n > shortest or slot not in done]
    return out
