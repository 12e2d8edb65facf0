"""The state of one sequence as the scheduler sees it: tokens, how far they are computed, and its slot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Plain data; only the scheduler and the engine change it."""

    id: str
    tokens: list[int]
    """The prompt and what has been generated so far."""
    n_prompt: int
    n_computed: int = 0
    """Leading tokens that are in the KV cache."""
    slot: int | None = None
    """Its sequence number in the cache while it runs; None while it waits."""
    admitted: bool = False
    """Whether it has ever had a slot."""
    n_cached: int = 0
    """Leading prompt tokens that another sequence had left in the slot when this one first got it."""
    from_cache: bool = True
    """Whether it may begin with what another has left in a slot."""
    scores_prompt: bool = False
    """Whether logits of every prompt token are wanted (echo with logprobs)."""

    @property
    def n_left(self) -> int:
        """Tokens still to compute before the next one can be picked."""
        return len(self.tokens) - self.n_computed

    @property
    def generating(self) -> bool:
        """Whether only its newest token is to compute."""
        return self.n_left == 1 and self.n_computed >= self.n_prompt
