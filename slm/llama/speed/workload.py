"""What a decode speed is the speed of: one definition for what is promised, measured and shown. Nothing here loads
llama.cpp.

Tested in tests/slm/llama/speed/test_timing.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Tokens per second of one sequence: ``tokens`` tokens, one after another, behind a prompt of ``prompt`` tokens.
    Every token's logits are computed over the whole vocabulary; choosing from them (the sampler) is not part of it."""

    prompt: int = 512
    tokens: int = 64

    def within(self, n_ctx: int) -> Workload:
        """Cut to a model's context: at most half of it are the tokens that are timed."""
        tokens = max(1, min(self.tokens, n_ctx // 2))
        return Workload(prompt=max(1, min(self.prompt, n_ctx - tokens)), tokens=tokens)

    def spelled(self, threads: int) -> str:
        """For a person: ``one sequence behind a prompt of 512 tokens, 2 threads``."""
        return f"one sequence behind a prompt of {self.prompt:,} tokens, {threads} thread{'s' * (threads != 1)}"

    def record(self) -> dict[str, int]:
        """For records."""
        return asdict(self)


USUAL = Workload()
"""What decode speeds are the speeds of, where nothing else is said."""
