"""Configuration of ``slm.serve.bench``.

Tested in tests/serve/bench/test_main.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slm.data.errors import UserError

EXTRA = ("prefix", "json", "repeat")
"""Workloads besides the closed and the open loop."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The ``bench`` group of configs/bench_serve.yaml. The comments there describe the options."""

    clients: list[int] = field(default_factory=lambda: [1, 4, 16, 64])
    rounds: int = 2
    requests: int = 8
    open: list[float] = field(default_factory=lambda: [0.5, 0.8])
    open_s: float = 10.0
    extra: list[str] = field(default_factory=lambda: ["prefix", "repeat"])
    extra_clients: list[int] = field(default_factory=lambda: [16])
    busy: list[int] = field(default_factory=lambda: [1, 4])
    busy_s: float = 2.0
    prompt_words: int = 100
    prefix_tokens: int = 600
    new_tokens: int = 128
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    repeats: int = 1
    text: str | None = None
    seed: int = 1
    options: list[str] = field(default_factory=list)
    """Words of the command line for our server, each beginning with ``serve.``."""
    repeat_options: list[str] = field(default_factory=list)
    llama_server: str | None = None
    llama_cpp_server: str | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "requests", "prompt_words", "prefix_tokens", "new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"bench.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("clients", "extra_clients"):
            numbers = getattr(self, name)
            if not numbers or not all(1 <= n <= 1024 for n in numbers):
                raise UserError(f"bench.{name} is {numbers}; give numbers from 1 to 1024, such as [1,16]")
        if not all(1 <= n <= 1024 for n in self.busy):
            raise UserError(f"bench.busy is {self.busy}; give numbers of clients from 1 to 1024, or [] for none")
        if not 0 < self.busy_s <= 600:
            raise UserError(f"bench.busy_s is {self.busy_s}; give seconds, above 0 and at most 600")
        if not all(0 < rate <= 10 for rate in self.open):
            raise UserError(f"bench.open is {self.open}; give parts of the limit, such as [0.5,0.8]")
        unknown = sorted(set(self.extra) - set(EXTRA))
        if unknown:
            raise UserError(f"bench.extra: there is no {unknown[0]!r}; choose from: {', '.join(EXTRA)}")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """configs/bench_serve.yaml."""

    model: str
    bench: BenchOptions = field(default_factory=BenchOptions)
