"""Configuration of the server and of the terminal: declarations and their checks, nothing that reads files."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.serve.engine.config import EngineOptions

Config = TypeVar("Config")
TuneMode = Literal["auto", "off", "force"]
"""Whether threads and batch sizes are measured: once per model and machine, never, or at every start."""
AccessLogForm = Literal["text", "json", "off"]
_PULLED = re.compile(r"[A-Za-z0-9*][\w.*-]*/[A-Za-z0-9*][\w.*-]*")
Truncation = Literal["auto", "disabled"]
"""Whether the oldest turns of a conversation that outgrows the context are dropped, or it is refused."""


def load(cls: type[Config], config_name: str, argv: list[str], *, literal: Collection[str]) -> Config:
    """As ``slm.configuration.load``; where no model is named, the ``UserError`` says how to name one."""
    for word in argv:
        if word.partition("=")[0] == "serve.any_model":
            raise UserError(
                "serve.any_model is gone: a single model answers to every name now, and serve.only_known_models=false "
                "lets the first of several do so"
            )
    values = load_config(config_name, argv, literal=literal)
    if not values.get("model") and not values.get("serve", {}).get("models"):
        raise UserError("model must be given: model=runs/latest, or the path of a .gguf file")
    return build(cls, values)


@dataclass(frozen=True, kw_only=True)
class ServerOptions(EngineOptions):
    """The ``serve`` group of configs/serve.yaml. The comments there describe the options.

    Where ``threads``, ``slots``, ``batch``, ``ubatch`` or ``prefill_chunk`` is 0, ``slm.serve.pool.engine_settings``
    chooses a value for the model and the machine.
    """

    name: str | None = None
    models: list[str] = field(default_factory=list)
    """More models, each a path or ``NAME=PATH``, loaded when a request asks for them."""
    lora: list[str] = field(default_factory=list)
    """Adapters of ``model``, each a path or ``NAME=PATH``: each is its own model to clients."""
    only_known_models: bool | None = None
    """None: with several models."""
    memory_budget_gb: float = 0.0
    """GiB; counts only with several models."""
    idle_unload_s: float = 0.0
    """Seconds without a request after which a model is unloaded; 0: never."""
    slots: int = 0
    queue: int = 64
    """Requests that may wait for a slot."""
    tune: TuneMode | bool = "auto"
    """true is "auto" and false is "off" (YAML reads the word off as false)."""
    batch: int = 0
    ubatch: int = 0
    prefill_chunk: int = 0
    draft_model: str | None = None
    """A path, as ``model=`` takes it."""
    api_keys: list[str] = field(default_factory=list)
    api_key_file: str | None = None
    """A key per line, after its name where it has one."""
    cert: str | None = None
    key_pem: str | None = None
    """PEM files; with both, the server speaks TLS only."""
    unix_socket: str | None = None
    """A path; the server then listens there, and not on a port."""
    root_path: str = ""
    """What stands before every path behind a proxy."""
    ui: bool = True
    """Whether there are pages for people."""
    chat_template: str | None = None
    """The path of a Jinja template in place of the model's own."""
    thinking: bool | None = None
    """Whether models reason where a request does not say it; None: the chat template decides."""
    reasoning_budget: int = -1
    """Most tokens of reasoning where a request does not say it; -1: no limit."""
    slot_save_path: str | None = None
    """The folder of saved slots; None: none can be saved."""
    hosts: list[str] = field(default_factory=list)
    """Names under which a server without a key answers, besides localhost and addresses; ``*``: all."""
    cors_origins: list[str] = field(default_factory=list)
    """Each as a browser sends it; ``localhost``: this machine's, on every port; ``*``: all."""
    pull: list[str] = field(default_factory=list)
    """Models of the Hugging Face Hub that a request may have downloaded: ``org/name``, ``org/*``, ``*``."""
    pull_gb: float = 20.0
    """GB of files that requests may have downloaded together, since the server's start."""
    max_body_bytes: int = 4 << 20
    max_n: int = 16
    truncation: Truncation = "disabled"
    """Default of requests that do not set it."""
    strict_fields: bool = False
    parse_special_in_content: bool = False
    grammar: bool = True
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    """0: none."""
    drain_s: float = 20.0
    access_log: AccessLogForm | bool = "text"
    """true is "text" and false is "off"."""
    access_log_file: str | None = None

    def __post_init__(self) -> None:
        if self.reasoning_budget < -1:
            raise UserError(f"serve.reasoning_budget is {self.reasoning_budget}; give tokens, or -1 for no limit")
        for name in ("max_body_bytes", "max_n"):
            if getattr(self, name) < 1:
                raise UserError(f"serve.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("body_timeout_s", "write_timeout_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"serve.{name} is {getattr(self, name)}; it must be above 0 seconds")
        for name in ("queue", "drain_s", "request_timeout_s", "memory_budget_gb", "idle_unload_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"serve.{name} is {getattr(self, name)}; it must be 0 or more")
        if any(not key.strip() for key in self.api_keys):
            raise UserError("serve.api_keys holds an empty key; leave the list empty for no key")
        if (self.cert is None) != (self.key_pem is None):
            given, missing = ("cert", "key_pem") if self.key_pem is None else ("key_pem", "cert")
            raise UserError(f"serve.{given} is given without serve.{missing}; TLS needs both")
        if self.root_path and not (self.root_path.startswith("/") and not self.root_path.endswith("/")):
            raise UserError(f"serve.root_path={self.root_path} must begin with / and not end in it, such as /llm")
        for host in self.hosts:
            if not host or any(character in host for character in ":/[] "):
                raise UserError(f"serve.hosts: {host!r} is no name; give it without scheme and port, such as chat.lan")
        for origin in self.cors_origins:
            scheme, _, rest = origin.partition("://")
            whole = scheme and rest and "/" not in rest and origin == origin.lower()
            if origin not in ("*", "null", "localhost") and not whole:
                raise UserError(
                    f"serve.cors_origins: {origin} is no origin; write scheme, host and port as a browser sends them, "
                    "such as http://localhost:3000 (or localhost for all of this machine, or * for all)"
                )
        for pattern in self.pull:
            if pattern != "*" and not _PULLED.fullmatch(pattern):
                raise UserError(f"serve.pull: {pattern!r} is no name of the Hub; write org/name, org/* or * for all")
        if not 0 < self.pull_gb < float("inf"):
            raise UserError(f"serve.pull_gb is {self.pull_gb}; it must be above 0")
        if self.access_log_file is not None and self.access_form == "off":
            raise UserError("serve.access_log_file is given, but serve.access_log is off; set it to text or json")

    @property
    def tune_mode(self) -> TuneMode:
        """``tune`` as a word."""
        if isinstance(self.tune, bool):
            return "auto" if self.tune else "off"
        return self.tune

    @property
    def access_form(self) -> AccessLogForm:
        """``access_log`` as a word: how lines of the access log are written."""
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
            raise UserError(f"port={self.port} is not a port; give a number from 1 to 65535 (0: any free one)")


@dataclass(frozen=True, kw_only=True)
class TerminalConfig:
    """configs/terminal.yaml."""

    model: str
    prompt: str | None = None
    system: str | None = None
    max_tokens: int = 512
    temperature: float | None = None
    """None, also below: the model's value, else ``SamplingDefaults``'s."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    parse_special_in_content: bool = False
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
            "context": (0, 1 << 20),
            "threads": (0, 1024),
            "n_gpu_layers": (-1, 1 << 16),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UserError(f"{name}={value} is out of range; it must be between {low} and {high}")
