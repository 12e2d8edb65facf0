"""Prompt lookup decoding: draft tokens are what followed the newest tokens when they stood in the text before.

Pure Python: no model, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from slm.serve.engine.batch_plan import Sequence
from slm.serve.engine.spec_decode.planner import DRAFT_LENGTHS, Acceptance, Candidate, Planner

NGRAM_LENGTHS = (3, 2)
"""Lengths of the n-grams that are looked up, the longest first."""

_MAX_MATCH = 16


class NgramIndex:
    """Where each pair and each triple of a sequence's tokens was seen last; it is kept up as the sequence grows."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        """The sequence's own list, which only grows."""
        self._next: dict[tuple[int, ...], int] = {}
        """n-gram -> the position after it."""
        self._n_indexed = 1

    def draft(self, n: int) -> tuple[tuple[int, ...], int]:
        """The ``n`` tokens that followed the last occurrence of the newest n-gram, and the length of the match: how
        many tokens before them equal the newest ones (at most 16).

        The draft is empty where the newest tokens have not been seen before. A draft that reaches the end of the
        sequence goes on with itself, so that the tokens of a loop are drafted again and again.
        """
        tokens, after = self._tokens, self._next
        for at in range(self._n_indexed, len(tokens)):
            for length in NGRAM_LENGTHS:
                if at >= length:
                    after[tuple(tokens[at - length : at])] = at
        self._n_indexed = max(self._n_indexed, len(tokens))
        for length in NGRAM_LENGTHS:
            found = after.get(tuple(tokens[-length:])) if len(tokens) >= length else None
            if found is not None:
                break
        else:
            return (), 0
        at, match = found, length
        while match < min(_MAX_MATCH, at) and tokens[at - 1 - match] == tokens[-1 - match]:
            match += 1
        period = len(tokens) - at
        return tuple(tokens[at + i % period] for i in range(n)), match


class NgramProposer:
    """Proposes draft tokens that the sequence's own text holds; see ``Proposer``."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._indices: dict[str, NgramIndex] = {}
        self._acceptance: dict[str, Acceptance] = {}
        self._matches: dict[str, int] = {}
        """Sequence id -> the length of its last match."""

    def propose(self, sequences: Seq[Sequence], most: Mapping[str, int], room: int) -> dict[str, tuple[int, ...]]:
        """See ``Proposer.propose``."""
        found: dict[int, tuple[str, tuple[int, ...]]] = {}
        candidates = []
        for sequence in sequences:
            limit = min(most.get(sequence.id, 0), DRAFT_LENGTHS[-1])
            if limit <= 0:
                continue
            index = self._indices.get(sequence.id)
            if index is None:
                index = self._indices[sequence.id] = NgramIndex(sequence.tokens)
                self._acceptance[sequence.id] = Acceptance()
            tokens, match = index.draft(limit)
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

    def observe(self, sequence_id: str, n_drafted: int, n_accepted: int) -> None:
        """See ``Proposer.observe``."""
        self._acceptance[sequence_id].observe(self._matches[sequence_id], n_drafted, n_accepted)

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended."""
        self._indices.pop(sequence_id, None)
        self._acceptance.pop(sequence_id, None)
        self._matches.pop(sequence_id, None)

    def close(self) -> None:
        """There is nothing to free."""
