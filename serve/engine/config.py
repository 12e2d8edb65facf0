"""Configuration of the engine: what its process gets once, at the start.

Tested in tests/serve/engine/test_batch_invariant.py, tests/serve/engine/spec_decode/test_draft_model.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slm.data.errors import UserError
from slm.serve.engine.sampling_options import SamplingOptions

DEFAULT_CONTEXT = 4096
"""Tokens: the most that a sequence gets where no context is configured."""

Speculate = Literal["none", "lookup", "draft"]
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0"]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that the engine takes as the server's configuration has them; their defaults stand here only."""

    context: int = 0
    """Most tokens of one sequence; 0: the training context, at most ``DEFAULT_CONTEXT``."""
    kv_tokens: int = 0
    """0: every slot has its own cache, for one context. Above 0: the slots share one cache of this many tokens; when
    it is full, the youngest sequence is preempted and computed again later.

    When requests come one at a time, a seed gives the same text again. When several run at once, the order in which
    numbers are added depends on the batch and on the place of a sequence's cells. The rounding of a quantized model
    can turn that into another text: often with a shared cache, less often with a cache per slot, never with one slot.
    """
    threads: int = 0
    """0: the cores this process may use."""
    adapt_threads: bool = True
    """Whether the engine computes with fewer threads while other programs use cores. The number of threads can change
    the rounding of a sequence's attention; with ``exact`` it stays the same, and so does it without this option."""
    prefix_cache: bool = True
    """Whether a slot keeps what it has computed, for later prompts with the same prefix (of 16 tokens or more). The
    rest of such a prompt is computed in batches of another shape. Their rounding may differ (see ``kv_tokens``)."""
    cache_ram: int = 1024
    """MiB, at most, of prompts that had to leave their slots for others: they are put back where they are asked for
    again, while the machine has memory to spare. 0: they are computed again. Not for ``kv_tokens``."""
    cache_disk: int = 0
    """MiB, at most, of such prompts that memory has no room for, in files in ``~/.cache/slm/prompts``: they are there
    after a restart, too. 0: none is written."""
    context_shift: bool = False
    """Whether a text goes on when the context is full: its oldest tokens are dropped, and what is left is computed
    again. Without it, the text ends there."""
    exact: bool = False
    """Batch-invariant: a request gives the same bits whatever else is computed. Every sequence is computed by itself
    within a step, and prompts are always cut into the same chunks. It costs speed where many sequences run at once."""
    kv_type: KvType = "f16"
    """How the cache stores numbers. For an f32 model, "f32" with ``flash_attn=False`` makes other requests nearly
    invisible (differences of 1e-6 in the logits instead of 1e-2), at twice the memory."""
    kv_type_v: KvType | None = None
    """How it stores values, where not as keys. Blocks (q8_0 and below) need flash attention."""
    flash_attn: bool | None = None
    """None: what was measured, else llama.cpp chooses. Flash attention rounds to half precision, whatever ``kv_type``
    says."""
    speculate: Speculate = "none"
    """Where draft tokens come from, of which several are verified in a step. "lookup": what followed the newest tokens
    when they stood in the text before (prompt lookup). "draft": a smaller model. The text is the same in any case."""
    draft_tokens: int = 0
    """How many draft tokens are verified in a step. 0: as many as pay, by the measured cost of a batch's rows; above
    0: always this many."""
    n_gpu_layers: int = 0
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """What holds where a request says nothing of it."""
    stream_ms: float = 33.0
    """Text of running streams is sent at most once in this many milliseconds; beginnings and ends at once."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineOptions):
    """What the engine process needs; plain data, sent to it once."""

    model_path: Path
    slots: int = 4
    """Sequences computed at the same time."""
    slot_bytes: int = 0
    """Memory of a slot of ``context`` tokens, by estimate. Where all slots take much, they begin shorter."""
    batch: int = 512
    """Most tokens of one decode call."""
    ubatch: int = 512
    """Most tokens of one pass through the graph."""
    prefill_chunk: int = 256
    """Most prompt tokens of one step while other sequences generate."""
    draft_model: Path | None = None
    """The smaller model's file; its tokenizer must be the model's."""
    chat_template: str | None = None
    """A template in place of the model's own."""
    adapters: tuple[Path, ...] = ()
    """Files of LoRA adapters of which a request may choose some."""
    adapter: Path | None = None
    """The one that holds where a request chooses none."""
    adapter_scale: float = 1.0
    """By what its part is multiplied: 0 is the model without it."""

    @property
    def adapter_files(self) -> tuple[Path, ...]:
        """The files of all adapters that the engine loads, each once."""
        return tuple(dict.fromkeys([*self.adapters, *([self.adapter] if self.adapter is not None else [])]))

    def __post_init__(self) -> None:
        limits = {
            "context": (0, 1 << 20),
            "slots": (1, 256),
            "kv_tokens": (0, 1 << 24),
            "threads": (0, 1024),
            "batch": (1, 1 << 16),
            "ubatch": (1, 1 << 16),
            "prefill_chunk": (1, 1 << 16),
            "cache_ram": (0, 1 << 20),
            "cache_disk": (0, 1 << 24),
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
        if self.exact and self.context_shift:
            raise UserError(
                "serve.exact=true cuts prompts at fixed places, serve.context_shift=true moves them; choose"
            )
        if self.exact and self.kv_tokens:
            raise UserError("serve.exact=true needs a cache per slot; leave serve.kv_tokens at 0")
        if self.exact and self.batch < self.slots + min(self.prefill_chunk, self.ubatch):
            most = self.batch - self.slots
            remedy = f"serve.prefill_chunk={most} or less" if most >= 1 else f"raise serve.batch={self.batch}"
            raise UserError(f"serve.exact=true needs room for a chunk in every batch; {remedy}")
        if self.flash_attn is False and (self.kv_type_v or self.kv_type) not in ("f32", "f16", "bf16"):
            name = "kv_type" if self.kv_type_v is None else "kv_type_v"
            raise UserError(
                f"serve.{name}={getattr(self, name)} needs flash attention for the values; leave serve.flash_attn "
                "open, or give serve.kv_type_v=f16"
            )
        if self.batch < self.slots:
            raise UserError(f"serve.batch={self.batch} is smaller than serve.slots={self.slots}; raise it")
