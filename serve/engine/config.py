"""Configuration of the engine: what its process gets once, at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.errors import UserError

DEFAULT_CONTEXT = 4096
"""Tokens: the most that a sequence gets where no context is configured."""

Speculate = Literal["none", "lookup", "draft"]
KvType = Literal["f32", "f16", "bf16", "q8_0"]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that the engine takes as the server's configuration has them; their defaults stand here only."""

    context: int = 0
    """Most tokens of one sequence; 0: the training context, at most ``DEFAULT_CONTEXT``."""
    kv_tokens: int = 0
    """0: every slot has a cache of its own, of one context. Above: one cache of so many tokens is shared; when it
    is full, the youngest sequence is sent back and computed again later.

    A seed gives the same text again when requests come one at a time. In company, the batch and the place of a
    sequence's cells decide in which order numbers are added, and a quantized model's rounding can make that
    visible as another text: often with a shared cache, less often with caches of their own, never with one slot.
    """
    threads: int = 0
    """0: the cores this process may use."""
    prefix_cache: bool = True
    """Whether a slot keeps what it has computed for a later prompt that begins alike (by 16 tokens or more). The
    rest is then computed in batches of another shape, whose rounding may differ (see ``kv_tokens``)."""
    exact: bool = False
    """Every sequence is computed by itself within a step, and prompts are cut in the same places whatever else is
    computed: the same request gives the same bits in company as alone. Dearer where many run at once."""
    kv_type: KvType = "f16"
    """How the cache stores numbers. "f32" with ``flash_attn=False`` makes the order of requests nearly invisible for
    an f32 model (differences of 1e-6 in the logits instead of 1e-2), at twice the memory."""
    flash_attn: bool | None = None
    """None: llama.cpp's choice. It rounds to half precision, whatever ``kv_type`` says."""
    speculate: Speculate = "none"
    """How the next tokens are guessed, to be checked several in a step: "lookup" what followed the newest tokens
    when they stood in the text before, "draft" what a smaller model says. The text is the sampler's own in any case."""
    draft_tokens: int = 0
    """How many guesses are checked in a step: 0: as many as pay, by what a row of a batch was measured to cost;
    above: always so many."""
    n_gpu_layers: int = 0
    stream_ms: float = 33.0
    """Text of running streams is told at most once in so many milliseconds; beginnings and ends at once."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineOptions):
    """What the engine process needs; plain data, sent to it once."""

    model_path: Path
    slots: int = 4
    """Sequences computed at the same time."""
    batch: int = 512
    """Most tokens of one decode call."""
    ubatch: int = 512
    """Most tokens of one pass through the graph."""
    prefill_chunk: int = 256
    """Most prompt tokens of one step while other sequences are generating."""
    draft_model: Path | None = None
    """The smaller model's file; its tokenizer must be the model's."""

    def __post_init__(self) -> None:
        limits = {
            "context": (0, 1 << 20),
            "slots": (1, 256),
            "kv_tokens": (0, 1 << 24),
            "threads": (0, 1024),
            "batch": (1, 1 << 16),
            "ubatch": (1, 1 << 16),
            "prefill_chunk": (1, 1 << 16),
            "draft_tokens": (0, 32),
            "n_gpu_layers": (-1, 1 << 16),
            "stream_ms": (0, 1000),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"serve.{name} is {value}; it must be between {low} and {high}")
        if self.speculate == "draft" and self.draft_model is None:
            raise UserError("serve.speculate=draft needs a smaller model; name it with serve.draft_model=PATH")
        if self.speculate != "draft" and self.draft_model is not None:
            raise UserError(f"serve.draft_model is for serve.speculate=draft, which is {self.speculate}; set that too")
        if self.exact and self.speculate != "none":
            raise UserError("serve.exact=true computes tokens one by one, speculation several; choose one of them")
        if self.exact and self.kv_tokens:
            raise UserError("serve.exact=true needs a cache per slot; leave serve.kv_tokens at 0")
        if self.exact and self.batch < self.slots + min(self.prefill_chunk, self.ubatch):
            most = self.batch - self.slots
            raise UserError(
                f"serve.exact=true needs room for a chunk in every batch; serve.prefill_chunk={most} or less"
            )
        if self.batch < self.slots:
            raise UserError(f"serve.batch={self.batch} is smaller than serve.slots={self.slots}; raise it")
