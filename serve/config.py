"""Configuration of the server and of the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from data.errors import UserError
from serve.engine.config import EngineConfig, KvType, Speculate
from serve.pool.model_files import resolve_model
from slm.configuration import build, load_config

Config = TypeVar("Config")


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
