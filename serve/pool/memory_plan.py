"""How much memory a model takes, estimated from its file before it is loaded, and how much models may take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.llama.gguf_check import GgufHeader, parts, read_header
from slm.machine.memory import available_bytes
from slm.serve.engine.config import DEFAULT_CONTEXT, EngineConfig, KvType

_KV_BYTES: dict[KvType, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "iq4_nl": 18 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}
_KV_PROJECTION = re.compile(r"blk\.\d+\.attn_([kv])\.weight")
_PROCESS = 80 << 20
"""Bytes of Python, NumPy, llama.cpp and llguidance without a model (52 MiB measured), and their allocations."""
_FEW_SLOTS = 4
"""Minimum slots per model. Below this number another model is unloaded first."""
_EMBEDDING_BATCH = 128
"""Tokens of one batch in the context that computes embeddings, where texts may be cut."""
_EMBEDDINGS = 2048
"""Embeddings of one request, which wait for each other."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the header of a GGUF file says about the model."""

    architecture: str
    n_params: int
    size_bytes: int
    """Bytes of all tensors."""
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    has_template: bool
    kv_values: int
    """Numbers that the KV cache stores for one token."""
    v_values: int
    """Numbers per token in the value cache; the rest belong to the key cache."""
    file_bytes: int
    causal: bool
    """False for an encoder: it has no KV cache, and computes texts as a whole."""
    sampling: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Its metadata ``general.sampling.*``."""

    def context(self, wanted: int) -> int:
        """Most tokens of one sequence, where ``wanted`` are configured (0: the default)."""
        return wanted or min(self.n_ctx_train, DEFAULT_CONTEXT)

    def kv_bytes(self, kv_type: KvType, kv_type_v: KvType | None = None) -> float:
        """Bytes of one token in the cache. ``kv_type_v``: the values' type, where not the keys'."""
        n_values = self.v_values
        return (self.kv_values - n_values) * _KV_BYTES[kv_type] + n_values * _KV_BYTES[kv_type_v or kv_type]


def read_facts(path: Path) -> ModelFacts:
    """From the header alone. Raises ``UserError`` for a missing or damaged file."""
    header = read_header(path)
    others = [read_header(part) for part in parts(path, header)[1:]]
    tensors = [tensor for each in (header, *others) for tensor in each.tensors]
    architecture = str(header.metadata.get("general.architecture", "?"))

    def number(key: str, default: int) -> int:
        value: Any = header.metadata.get(f"{architecture}.{key}", default)
        return value if isinstance(value, int) and value >= 0 else default

    n_embd, n_heads = number("embedding_length", 0), max(number("attention.head_count", 1), 1)
    head_dim = n_embd // n_heads
    n_heads_kv = number("block_count", 0) * number("attention.head_count_kv", n_heads)
    # The projections tell layers with few heads, or with none, apart; some architectures have them in one tensor.
    projected = {"k": 0, "v": 0}
    for tensor in tensors:
        if (found := _KV_PROJECTION.fullmatch(tensor.name)) is not None:
            projected[found[1]] += tensor.shape[-1]
    if not projected["k"] + projected["v"]:
        projected["k"] = n_heads_kv * number("attention.key_length", head_dim)
        projected["v"] = n_heads_kv * number("attention.value_length", head_dim)
    causal = header.metadata.get(f"{architecture}.attention.causal") is not False
    return ModelFacts(
        architecture=architecture,
        n_params=sum(math.prod(tensor.shape) for tensor in tensors),
        size_bytes=sum(tensor.n_bytes for tensor in tensors),
        n_vocab=_n_vocab(header, number("vocab_size", 0)),
        n_embd=n_embd,
        n_ctx_train=number("context_length", DEFAULT_CONTEXT),
        has_template="tokenizer.chat_template" in header.metadata,
        kv_values=sum(projected.values()) if causal else 0,
        v_values=projected["v"] if causal else 0,
        file_bytes=sum(each.size_bytes for each in (header, *others)),
        causal=causal,
        sampling={key: value for key, value in header.metadata.items() if key.startswith("general.sampling.")},
    )


def _n_vocab(header: GgufHeader, default: int) -> int:
    value = header.metadata.get("tokenizer.ggml.tokens[]", default)
    return value if isinstance(value, int) else default


def needed_bytes(facts: ModelFacts, config: EngineConfig, draft: ModelFacts | None = None) -> int:
    """Memory of an engine, by estimate: 2 to 14 % above the measured resident memory.

    It counts the files' pages, the KV caches, the logits of one batch, the small context that computes embeddings,
    and the process. ``draft`` are the facts of the draft model.
    """
    context = facts.context(config.context)
    cells = max(config.kv_tokens, context) if config.kv_tokens else config.slots * context
    logits = 4 * facts.n_vocab * min(config.ubatch, config.batch)
    rows = _EMBEDDING_BATCH if facts.causal else context
    embeddings = facts.kv_values * 2 * (context + rows) + 4 * facts.n_embd * (rows + _EMBEDDINGS)
    embeddings += 8 * facts.n_vocab * rows if facts.causal else 0
    total: float = _PROCESS + logits + embeddings
    for each in (facts, draft):
        if each is not None:
            total += each.file_bytes + each.kv_bytes(config.kv_type, config.kv_type_v) * cells
    return round(total)


def adapter_bytes(config: EngineConfig) -> int:
    """Bytes of the LoRA adapters that an engine loads."""
    return sum(each.stat().st_size for each in config.adapter_files if each.is_file())


def fit_slots(configs: Mapping[str, EngineConfig], *, budget: int) -> dict[str, EngineConfig]:
    """The configurations by model, with so few slots that the models fit into ``budget`` bytes.

    The largest ones get fewer, down to four, until all can stay loaded together. Where that is not enough, models are
    unloaded for each other, and one that does not fit alone gets fewer still. Slots that share one cache
    (``kv_tokens``) need no memory.
    """
    facts = {
        name: (read_facts(each.model_path), read_facts(each.draft_model) if each.draft_model else None)
        for name, each in configs.items()
    }

    def need(name: str, config: EngineConfig) -> int:
        return needed_bytes(facts[name][0], config, facts[name][1]) + adapter_bytes(config)

    together = dict(configs)
    for name, config in configs.items():
        while config.slots > 1 and not config.kv_tokens and need(name, config) > budget:
            config = _halved(config)
        together[name] = config
    while sum(need(name, each) for name, each in together.items()) > budget:
        many = [name for name, each in together.items() if each.slots > _FEW_SLOTS and not each.kv_tokens]
        if not many:
            break
        largest = max(many, key=lambda name: need(name, together[name]))
        together[largest] = _halved(together[largest])
    return together


def _halved(config: EngineConfig) -> EngineConfig:
    """With half of the slots, but never from more than four to fewer at once."""
    half = config.slots // 2
    return replace(config, slots=max(half, _FEW_SLOTS) if config.slots > _FEW_SLOTS else half)


def budget_bytes(gigabytes: float) -> int:
    """``serve.memory_budget_gb`` in bytes (GiB); 0: four fifths of what is free now."""
    return round(gigabytes * 2**30) if gigabytes else available_bytes() * 4 // 5


def check_fits(name: str, need: int, budget: int) -> None:
    """Raises ``UserError`` when a model can never be loaded."""
    if need > budget:
        raise UserError(
            f"{name} needs about {need / 2**30:.2f} GiB and the models together may have {budget / 2**30:.2f}; "
            f"raise serve.memory_budget_gb, lower serve.slots or serve.context, or leave the model out"
        )
