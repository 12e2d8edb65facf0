"""Configuration of the server and of the engine inside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from data.errors import UserError
from serve.pool.model_files import resolve_model
from slm.configuration import build, load_config

DEFAULT_CONTEXT = 4096

Config = TypeVar("Config")
Speculate = Literal["none", "lookup", "draft"]
KvType = Literal["f32", "f16", "bf16", "q8_0"]


def load(cls: type[Config], config_name: str, words: list[str], *, literal: tuple[str, ...]) -> Config:
    """The configuration from command-line words. The ``literal`` options are taken as they are, or as lists where the
    file has one: paths and prompts are no text for Hydra's grammar (and ``model`` is the name of a configuration group
    of another stage).

    Raises ``UserError``, also when no model is named.
    """
    taken = {}
    for word in words:
        name, sign, text = word.partition("=")
        if sign and name in literal:
            taken[name] = text
    others = [word for word in words if word.partition("=")[0] not in literal or "=" not in word]
    values = load_config(config_name, others)
    for name, text in taken.items():
        *groups, key = name.split(".")
        place = values
        for group in groups:
            place = place[group]
        place[key] = _items(text) if isinstance(place.get(key), list) else text
    if not values.get("model") and not values.get("serve", {}).get("models"):
        raise UserError("model must be given: model=runs/latest, or the path of a .gguf file")
    return build(cls, values)


def _items(text: str) -> list[str]:
    """``[a,'b']`` or ``a,b`` as a list of texts."""
    items = (item.strip() for item in text.strip().removeprefix("[").removesuffix("]").split(","))
    return [item[1:-1] if item[:1] in ("'", '"') and item[-1:] == item[:1] else item for item in items if item]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine process needs; plain data, sent to it once."""

    model_path: Path
    context: int = 0
    """Most tokens of one sequence; 0: the training context, at most ``DEFAULT_CONTEXT``."""
    slots: int = 4
    """Sequences computed at the same time."""
    kv_tokens: int = 0
    """0: every slot has a cache of its own, of one context. Above: one cache of so many tokens is shared; when it
    is full, the youngest sequence is sent back and computed again later.

    A seed gives the same text again when requests come one at a time. In company, the batch and the place of a
    sequence's cells decide in which order numbers are added, and a quantized model's rounding can make that
    visible as another text: often with a shared cache, less often with caches of their own, never with one slot.
    """
    threads: int = 0
    """0: the cores this process may use."""
    batch: int = 512
    """Most tokens of one decode call."""
    ubatch: int = 512
    """Most tokens of one pass through the graph."""
    prefill_chunk: int = 256
    """Most prompt tokens of one step while other sequences are generating."""
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
    draft_model: Path | None = None
    """The smaller model's file; its tokenizer must be the model's."""
    n_gpu_layers: int = 0
    stream_ms: float = 33.0
    """Text of running streams is told at most once in so many milliseconds; beginnings and ends at once."""

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


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The ``serve`` group of configs/serve.yaml (see the comments there)."""

    name: str | None = None
    models: list[str] = field(default_factory=list)
    """More models, each a path or ``NAME=PATH``, loaded when they are asked for."""
    memory_budget_gb: float = 0.0
    """GiB; counts only with several models."""
    context: int = 0
    slots: int = 0
    queue: int = 64
    """Requests that may wait for a slot."""
    kv_tokens: int = 0
    tune: Literal["auto", "off", "force"] | bool = "auto"
    """false is "off" (so YAML reads that word)."""
    threads: int = 0
    batch: int = 0
    ubatch: int = 0
    prefill_chunk: int = 0
    prefix_cache: bool = True
    exact: bool = False
    kv_type: KvType = "f16"
    flash_attn: bool | None = None
    speculate: Speculate = "none"
    draft_tokens: int = 0
    draft_model: str | None = None
    n_gpu_layers: int = 0
    stream_ms: float = 33.0
    api_keys: list[str] = field(default_factory=list)
    cors_origins: list[str] = field(default_factory=list)
    max_body_bytes: int = 4 << 20
    max_n: int = 16
    grammar: bool = True
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    """0: none."""
    drain_s: float = 20.0
    access_log: bool | Literal["text", "json", "off"] = True
    """True is "text", False is "off"."""
    access_log_file: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_n"):
            if getattr(self, name) < 1:
                raise UserError(f"serve.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("body_timeout_s", "write_timeout_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"serve.{name} is {getattr(self, name)}; it must be above 0 seconds")
        for name in ("queue", "drain_s", "request_timeout_s", "memory_budget_gb"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"serve.{name} is {getattr(self, name)}; it must be 0 or more")
        if any(not key for key in self.api_keys):
            raise UserError("serve.api_keys holds an empty key; leave the list empty for no key")
        if self.access_log_file is not None and self.access_form == "off":
            raise UserError("serve.access_log_file is given, but serve.access_log is off; set it to text or json")

    @property
    def access_form(self) -> Literal["text", "json", "off"]:
        """How lines of the access log are written."""
        if isinstance(self.access_log, bool):
            return "text" if self.access_log else "off"
        return self.access_log


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """configs/serve.yaml."""

    model: str | None = None
    """None: the first of ``serve.models``."""
    host: str = "127.0.0.1"
    port: int = 8080
    serve: ServerOptions = field(default_factory=ServerOptions)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"port={self.port} is no port; give one from 1 to 65535 (0: any free one)")

    def engine(self, model_path: Path) -> EngineConfig:
        """The engine's part of it; what is left open is chosen for the file and the machine."""
        from serve.pool.autotune import slots_for, tuned_for
        from serve.pool.memory_plan import read_facts

        own = self.serve
        facts = read_facts(model_path)
        context = facts.context(own.context)
        given = (own.threads, own.batch, own.ubatch, own.prefill_chunk)
        mode = {True: "auto", False: "off"}.get(own.tune, own.tune)
        tuned = tuned_for(model_path, facts, "off" if all(given) else mode, n_gpu_layers=own.n_gpu_layers)
        batch = own.batch or max(tuned.batch, own.slots)
        slots = own.slots or min(batch, slots_for(facts, context=context, kv_type=own.kv_type))
        return EngineConfig(
            model_path=model_path,
            context=own.context,
            slots=slots,
            kv_tokens=own.kv_tokens,
            threads=own.threads or tuned.threads,
            batch=batch,
            ubatch=own.ubatch or min(tuned.ubatch, batch),
            prefill_chunk=own.prefill_chunk or tuned.prefill_chunk,
            prefix_cache=own.prefix_cache,
            kv_type=own.kv_type,
            flash_attn=own.flash_attn,
            exact=own.exact,
            speculate=own.speculate,
            draft_tokens=own.draft_tokens,
            draft_model=None if own.draft_model is None else resolve_model(own.draft_model)[0],
            n_gpu_layers=own.n_gpu_layers,
            stream_ms=own.stream_ms,
        )


@dataclass(frozen=True, kw_only=True)
class TerminalConfig:
    """configs/terminal.yaml."""

    model: str
    prompt: str | None = None
    system: str | None = None
    max_tokens: int = 512
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None
    context: int = 0
    threads: int = 0
    n_gpu_layers: int = 0

    def __post_init__(self) -> None:
        limits = {
            "max_tokens": (1, 1 << 20),
            "temperature": (0, 10),
            "top_k": (0, 1 << 20),
            "top_p": (0, 1),
            "min_p": (0, 1),
            "repeat_penalty": (0.01, 10),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"{name}={value} is out of range; it must be between {low} and {high}")
