"""Guesses at a sequence's next tokens, and how many of them are worth checking. Pure Python: no model, no clock.

A step checks guesses by computing them beside the newest token: each row's logits then belong to the token that the
sequence's own sampler picks there, for as long as the picks are the guesses. A row more makes a step longer, so
guesses are checked only where they are expected to make more tokens per second (``Planner``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from serve.engine.sequence import Sequence

NGRAMS = (3, 2)
"""Lengths of what is looked up, the longest first."""

LENGTHS = (1, 2, 3, 5, 7, 11, 15, 16, 23, 31, 32)
"""How many guesses a sequence may get in a step. Matrix kernels take rows by fours or sixteens: with or without its
newest token, most make a multiple of these."""

MIN_GAIN = 1.05
"""Guesses must be expected to make so many times the tokens per second of a step without."""

_MAX_MATCH = 16

_RATES = (0.2, 0.5, 0.75)
"""Sequences are chosen together, those that are right at least so often."""


class NgramIndex:
    """Where each pair and each triple of a sequence's tokens was seen last; kept up as the sequence grows."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        """The sequence's own list, which only grows."""
        self._next: dict[tuple[int, ...], int] = {}
        """n-gram -> the place after it."""
        self._done = 1

    def guess(self, n: int) -> tuple[tuple[int, ...], int]:
        """The ``n`` tokens that followed the last time, and how many tokens before them were the same (at most 16).
        Empty where the newest tokens have not been seen before. What ends in the present goes round: the tokens of
        a loop are guessed on and on."""
        tokens, after = self._tokens, self._next
        for at in range(self._done, len(tokens)):
            for length in NGRAMS:
                if at >= length:
                    after[tuple(tokens[at - length : at])] = at
        self._done = max(self._done, len(tokens))
        for length in NGRAMS:
            at = after.get(tuple(tokens[-length:])) if len(tokens) >= length else None
            if at is not None:
                break
        else:
            return (), 0
        match = length
        while match < min(_MAX_MATCH, at) and tokens[at - 1 - match] == tokens[-1 - match]:
            match += 1
        period = len(tokens) - at
        return tuple(tokens[at + i % period] for i in range(n)), match


_CLASSES = (3, 5, 8, 16)
"""Matches are classed by length: below the first of these, below the second and so on."""

_FIRST = ((0.4, 1.6), (0.8, 1.2), (1.4, 0.6), (1.86, 0.14), (1.94, 0.06))
"""Right and wrong guesses that each class begins with. High for long matches: only guesses that are tried teach."""


@dataclass(slots=True)
class Acceptance:
    """How often guesses of one sequence have been right, by how much of the text before them was the same."""

    hits: list[float] = field(default_factory=lambda: [hits for hits, _ in _FIRST])
    """Per class, discounted."""
    misses: list[float] = field(default_factory=lambda: [misses for _, misses in _FIRST])

    @staticmethod
    def _class(match: int) -> int:
        return bisect_right(_CLASSES, match)

    def rate(self, match: int) -> float:
        """The probability that the next guess is right, given that those before it in the step were."""
        i = self._class(match)
        return self.hits[i] / (self.hits[i] + self.misses[i])

    def relax(self, match: int) -> None:
        """No guess was checked: what was learned counts a little less, so that another is tried some time."""
        i = self._class(match)
        hits, misses = _FIRST[i]
        self.hits[i] += 0.01 * (hits - self.hits[i])
        self.misses[i] += 0.01 * (misses - self.misses[i])

    def learn(self, match: int, n_checked: int, n_right: int) -> None:
        """Of ``n_checked`` guesses the first ``n_right`` were right. What was learned before counts a little less."""
        i = self._class(match)
        self.hits[i] = 0.8 * self.hits[i] + n_right + 0.02
        self.misses[i] = 0.8 * self.misses[i] + (n_right < n_checked) + 0.02


@dataclass(frozen=True)
class StepCost:
    """Seconds of a pass through the graph by its number of rows, all with logits; measured for some numbers."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        rows, seconds = self.rows, self.seconds
        if n >= rows[-1]:
            return seconds[-1] * n / rows[-1]
        i = max(bisect_right(rows, n), 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return seconds[i - 1] + slope * (n - rows[i - 1])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence for which there may be guesses."""

    slot: int
    rate: float
    """The probability that a guess is right, given that those before it were."""
    most: int
    """How many guesses there can be."""

    def expected(self, n: int) -> float:
        """Guesses of ``n`` that will turn out right, on average."""
        n = min(n, self.most)
        return float(n) if self.rate >= 1 else self.rate * (1 - self.rate**n) / (1 - self.rate)


class Planner:
    """How many guesses to check, of which sequences.

    ``cost``: of a pass of the model. ``shared``: one cache for all. With a cache per slot, llama.cpp computes together
    only as many tokens of sequences that follow each other as the shortest of them has, and the rest in passes of
    their own. ``guess_cost(sequences, n)``: seconds to come by ``n`` guesses for each. ``always``: so many for every
    sequence, whatever they cost; 0: as many as pay.
    """

    def __init__(
        self,
        cost: StepCost,
        *,
        shared: bool,
        guess_cost: Callable[[int, int], float] = lambda sequences, n: 0.0,
        always: int = 0,
    ) -> None:
        self._cost, self._shared, self._guess_cost, self._always = cost, shared, guess_cost, always

    def choose(self, slots: Seq[int], candidates: Seq[Candidate], room: int) -> dict[int, int]:
        """Slot -> how many guesses. ``slots``: all that generate; ``room``: most rows of the batch."""
        if not candidates or not slots:
            return {}
        if self._always:
            n = min(self._always, (room - len(slots)) // len(candidates))
            return {each.slot: min(n, each.most) for each in candidates if min(n, each.most) > 0}
        best_speed = MIN_GAIN * len(slots) / self._seconds(dict.fromkeys(slots, 1))
        best: dict[int, int] = {}
        for least in _RATES:
            likely = [each for each in candidates if each.rate >= least and each.most > 0]
            for n in LENGTHS if likely else ():
                chosen = {each.slot: min(n, each.most) for each in likely}
                rows = len(slots) + sum(chosen.values())
                tokens = len(slots) + sum(each.expected(n) for each in likely)
                guessing = self._guess_cost(len(likely), n)
                # One pass is the least that it can take: most lengths are ruled out by that.
                if rows > room or tokens < best_speed * (self._cost(rows) + guessing):
                    continue
                speed = tokens / (self._seconds({slot: 1 + chosen.get(slot, 0) for slot in slots}) + guessing)
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


class Lookup:
    """Prompt lookup: guesses are what followed the newest tokens when they stood in the sequence before."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._indices: dict[str, NgramIndex] = {}
        self._acceptance: dict[str, Acceptance] = {}
        self._matches: dict[str, int] = {}

    def propose(self, sequences: Seq[Sequence], most: Mapping[str, int], room: int) -> dict[str, tuple[int, ...]]:
        """Guesses by sequence id, for sequences that generate. ``most``: how many each may get at most; those without
        an entry get none. ``room``: most rows of the batch."""
        found: dict[int, tuple[str, tuple[int, ...]]] = {}
        candidates = []
        for sequence in sequences:
            limit = min(most.get(sequence.id, 0), LENGTHS[-1])
            if limit <= 0:
                continue
            index = self._indices.get(sequence.id)
            if index is None:
                index = self._indices[sequence.id] = NgramIndex(sequence.tokens)
                self._acceptance[sequence.id] = Acceptance()
            tokens, match = index.guess(limit)
            if tokens:
                assert sequence.slot is not None
                found[sequence.slot] = sequence.id, tokens
                self._matches[sequence.id] = match
                candidates.append(Candidate(sequence.slot, self._acceptance[sequence.id].rate(match), limit))
        slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
        chosen = self._planner.choose(slots, candidates, room)
        for slot, (sequence_id, _) in found.items():
            if slot not in chosen:
                self._acceptance[sequence_id].relax(self._matches[sequence_id])
        return {found[slot][0]: found[slot][1][:n] for slot, n in chosen.items()}

    def learn(self, sequence_id: str, n_checked: int, n_right: int) -> None:
        """What became of the last guesses of a sequence."""
        self._acceptance[sequence_id].learn(self._matches[sequence_id], n_checked, n_right)

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended."""
        self._indices.pop(sequence_id, None)
        self._acceptance.pop(sequence_id, None)
        self._matches.pop(sequence_id, None)

    def close(self) -> None:
        """Nothing to free."""
