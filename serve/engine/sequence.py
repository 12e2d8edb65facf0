"""The state of one sequence as the scheduler sees it: its tokens, how many of them are computed, and its slot.

Tested in tests/serve/engine/test_scheduler.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Plain data; only the scheduler and the engine change it."""

    id: str
    tokens: list[int]
    """The prompt and what has been generated so far."""
    n_prompt: int
    n_forced: int = 0
    """Its newest tokens that a grammar forced, behind the one that was sampled last."""
    n_computed: int = 0
    """Leading tokens that are in the KV cache."""
    slot: int | None = None
    """Its sequence number in the KV cache while it runs; None while it waits."""
    admitted: bool = False
    """Whether it has ever had a slot."""
    n_cached: int = 0
    """Leading prompt tokens that were a prefix-cache hit when it first got a slot."""
    use_prefix_cache: bool = True
    """Whether it may begin with what another sequence computed."""
    stops: tuple[int, ...] = ()
    """Numbers of prompt tokens after which the slot's state is kept: a chunk ends there."""
    scores_prompt: bool = False
    """Whether logits of every prompt token are wanted (echo with logprobs)."""

    @property
    def reuses(self) -> bool:
        """Whether its prompt's beginning may come from the cache. A scored prompt needs the logits of every token."""
        return self.use_prefix_cache and not self.scores_prompt

    @property
    def n_to_compute(self) -> int:
        """Tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self.n_computed

    @property
    def generating(self) -> bool:
        """Whether its prompt is computed, so that only its newest token remains to compute, and what a grammar forced
        behind it."""
        return 1 <= self.n_to_compute <= 1 + self.n_forced and self.n_computed >= self.n_prompt
