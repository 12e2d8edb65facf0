"""``python -m serve.bench model=PATH``: what our server makes of this machine, beside others and llama.cpp's own limit.

The limit is the time that llama.cpp itself needs for the same tokens: prompts at its prefill rate, replies at its
decode rate for as many sequences as there are clients, and nothing for HTTP, sampling, text or scheduling. With
``bench.repeats`` it is measured in turn with the servers, like these: machines drift.
"""

from __future__ import annotations

import random
import signal
import sys
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from data.errors import UserError
from data.tales.story import story
from serve.bench import limit as bench_limit
from serve.bench.contenders import (
    Contender,
    find_tool,
    has_llama_cpp_server,
    llama_cpp_server,
    llama_server,
    ours,
    running,
)
from serve.bench.limit import Rates
from serve.bench.load import Load, Report, run_load
from serve.bench.report import show
from serve.config import load
from serve.pool.model_files import resolve_model
from slm.machine.record import machine_record
from slm.report import final_json

EXTRA = ("prefix", "repeat")
_FEWEST = 8
"""Requests of one measurement."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How much is measured, and beside whom."""

    clients: list[int] = field(default_factory=lambda: [1, 4, 16, 64])
    rounds: int = 2
    open: list[float] = field(default_factory=list)
    open_s: float = 10.0
    extra: list[str] = field(default_factory=list)
    extra_clients: int = 16
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
    """Of our server: the command's words that begin with ``serve.``."""
    repeat_options: list[str] = field(default_factory=list)
    llama_server: str | None = None
    llama_cpp_server: str | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "extra_clients", "prompt_words", "prefix_tokens", "new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"bench.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.clients or not all(1 <= n <= 1024 for n in self.clients):
            raise UserError(f"bench.clients is {self.clients}; give numbers from 1 to 1024")
        if not all(0 < rate <= 10 for rate in self.open):
            raise UserError(f"bench.open is {self.open}; give parts of the limit, such as [0.5,0.8]")
        unknown = sorted(set(self.extra) - set(EXTRA))
        if unknown:
            raise UserError(f"bench.extra: there is no {unknown[0]!r}; it is some of: {', '.join(EXTRA)}")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """configs/bench_serve.yaml."""

    model: str
    bench: BenchOptions = field(default_factory=BenchOptions)


class Prompts:
    """Texts that begin differently, so that no cache helps: cut from a file, or made up."""

    def __init__(self, options: BenchOptions) -> None:
        self._rng = random.Random(options.seed)
        self._n_words = options.prompt_words
        if options.text is None:
            stories = (story(options.seed, i) for i in range(200 + options.prefix_tokens // 50))
            words = " ".join(stories).split()
        else:
            words = Path(options.text).read_text("utf-8", "replace").split()
        if len(words) < 2 * max(options.prompt_words, options.prefix_tokens):
            raise UserError(f"bench.text={options.text} has {len(words)} words: too few to cut prompts from")
        self._words = words

    def take(self, n_words: int | None = None) -> str:
        n_words = n_words or self._n_words
        start = self._rng.randrange(len(self._words) - n_words)
        return " ".join(self._words[start : start + n_words])


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement of a server."""

    key: str
    """``plain``, ``open``, ``prefix`` or ``repeat``."""
    n: float
    """Clients, or for ``open`` the part of the limit."""
    bodies: list[list[dict[str, Any]]]
    arrivals: list[float] | None = None


def main(words: list[str]) -> int:
    """Measures and prints a table and one line of JSON. Raises ``UserError`` for what the caller can mend."""
    # Ended from outside, it still ends the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    own = [word for word in words if word.startswith("serve.")]
    config = load(BenchConfig, "bench_serve", [word for word in words if word not in own], literal=("model",))
    options = replace(config.bench, options=own)
    path, note = resolve_model(config.model)
    if note:
        print(note, file=sys.stderr)
    prompts = Prompts(options)
    mean_tokens = _mean_tokens(path, [prompts.take() for _ in range(32)])
    contenders, notes = _contenders(options)
    for line in notes:
        print(line, file=sys.stderr)
    limiter = _Limiter(options, path, round(mean_tokens))
    cases: list[Case] = []
    measured: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    for _ in range(options.repeats):
        limiter.measure()
        cases = cases or _cases(options, prompts, limiter.limit, mean_tokens)
        for contender in contenders:
            for group in _groups(contender, cases, options):
                _measure(group[0], path, group[1], measured.setdefault(contender.name, {}))
    servers = {
        name: {key: {n: _median(each) for n, each in by_n.items()} for key, by_n in by_key.items()}
        for name, by_key in measured.items()
    }
    record = _record(options, path, servers, limiter, mean_tokens)
    show(record, notes)
    final_json(record)
    return 0


def _contenders(options: BenchOptions) -> tuple[list[Contender], list[str]]:
    found, notes = [ours(options.options)], []
    binary = find_tool("llama-server", options.llama_server)
    if binary:
        found.append(llama_server(binary))
    elif options.llama_server is None:
        notes.append("llama-server is not in PATH: left out (bench.llama_server=PATH measures it)")
    python = options.llama_cpp_server or sys.executable
    if python == "off":
        return found, notes
    if has_llama_cpp_server(python):
        found.append(llama_cpp_server(python, interrupt=False))
    else:
        notes.append("llama_cpp.server's extras are missing: left out (bench.llama_cpp_server=PYTHON measures it)")
    return found, notes


class _Limiter:
    """What llama.cpp itself can do here: by llama-batched-bench and llama-bench where they are, else by its library."""

    def __init__(self, options: BenchOptions, path: Path, prompt_tokens: int) -> None:
        self._path = path
        self._batches = sorted({*options.clients, *([options.extra_clients] if options.extra else [])})
        self._shape = {"prompt_tokens": prompt_tokens, "new_tokens": options.new_tokens}
        server = find_tool("llama-server", options.llama_server)
        wanted = options.llama_server != "off"
        self._batched = find_tool("llama-batched-bench", None, beside=server) if wanted else None
        self._single = find_tool("llama-bench", None, beside=server) if wanted else None
        self._rates: list[list[Rates]] = []
        self._single_rates: list[Rates] = []
        self.source = "llama-batched-bench" if self._batched else "in_process"

    def measure(self) -> None:
        """Once more."""
        if self._batched:
            self._rates.append(bench_limit.batched_bench(self._batched, self._path, self._batches, **self._shape))
        else:
            self._rates.append(bench_limit.measure(self._path, self._batches, **self._shape))
        if self._single:
            self._single_rates.append(bench_limit.llama_bench(self._single, self._path, **self._shape))

    @property
    def limit(self) -> list[Rates]:
        """By number of sequences; medians."""
        return [bench_limit.median_rates(each) for each in zip(*self._rates, strict=True)]

    @property
    def single(self) -> Rates | None:
        """Of one sequence, by llama-bench."""
        return bench_limit.median_rates(self._single_rates) if self._single_rates else None


def _mean_tokens(path: Path, texts: list[str]) -> float:
    from slm.llama.model import Model

    with Model(path, vocab_only=True) as model:
        return sum(len(model.tokenize(each, add_special=True, parse_special=False)) for each in texts) / len(texts)


# -- what is sent ------------------------------------------------------------------------------------------


def _cases(options: BenchOptions, prompts: Prompts, limit: list[Rates], mean_tokens: float) -> list[Case]:
    def body(prompt: str, **changes: Any) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "max_tokens": options.new_tokens,
            "temperature": options.temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "min_p": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | changes

    cases = []
    for n in options.clients:
        rounds = max(options.rounds, -(-_FEWEST // n))
        cases.append(Case(key="plain", n=n, bodies=[[body(prompts.take()) for _ in range(rounds)] for _ in range(n)]))
    best = max(each.workload(mean_tokens, options.new_tokens) for each in limit) / options.new_tokens
    rng = random.Random(options.seed)
    for part in options.open:
        n = max(_FEWEST, round(part * best * options.open_s))
        arrivals = list(accumulate(rng.expovariate(part * best) for _ in range(n)))
        cases.append(Case(key="open", n=part, bodies=[[body(prompts.take()) for _ in range(n)]], arrivals=arrivals))
    n, rounds = options.extra_clients, options.rounds
    if "prefix" in options.extra:
        # A word is a token or more.
        prefix = prompts.take(round(options.prefix_tokens * options.prompt_words / mean_tokens))
        bodies = [[body(f"{prefix}\n\n{prompts.take(20)}") for _ in range(rounds)] for _ in range(n)]
        cases.append(Case(key="prefix", n=n, bodies=bodies))
    if "repeat" in options.extra:
        bodies = [[body(" ".join([prompts.take(12)] * 8), temperature=0.0) for _ in range(rounds)] for _ in range(n)]
        cases.append(Case(key="repeat", n=n, bodies=bodies))
    return cases


def _groups(contender: Contender, cases: list[Case], options: BenchOptions) -> list[tuple[Contender, list[Case]]]:
    """Starts of a server: ``repeat`` gets one of its own where it has options of its own."""
    if contender.name != "ours" or not options.repeat_options:
        return [(contender, cases)]
    groups = [(contender, [each for each in cases if each.key != "repeat"])]
    special = [each for each in cases if each.key == "repeat"]
    return groups + [(ours([*options.options, *options.repeat_options]), special)] * bool(special)


# -- what comes of it --------------------------------------------------------------------------------------


def _measure(
    contender: Contender, path: Path, cases: list[Case], into: dict[str, dict[str, list[dict[str, Any]]]]
) -> None:
    with running(contender, path) as server:
        warm = [[{**cases[0].bodies[0][0], "prompt": "Warm up.", "max_tokens": 8}]]
        run_load(Load(port=server.port, clients=warm))
        for case in cases:
            before = server.cpu_s()
            report = run_load(Load(port=server.port, clients=case.bodies, arrivals=case.arrivals))
            used = {name: value - before.get(name, 0.0) for name, value in server.cpu_s().items()}
            figures = summary(report) | {f"cpu_{name}": value / report.wall_s for name, value in used.items()}
            into.setdefault(case.key, {}).setdefault(f"{case.n:g}", []).append(figures)
            print(f"{contender.name} {case.key} {case.n:g}: {figures['tokens_per_s']:.0f} tokens/s", file=sys.stderr)


def summary(report: Report) -> dict[str, Any]:
    """The figures of one load. Those of the first wave are of requests that came all at once."""
    done = report.completed
    tokens = sum(each.tokens for each in done)
    wave = [each.ttft_s for each in done if each.first_wave and each.ttft_s is not None]
    every = [each.ttft_s for each in done if each.ttft_s is not None]
    errors = [each.error for each in report.outcomes if each.error is not None]
    # An answer that comes in one piece tells nothing of its rate.
    pieces = [(each.tokens - 1, each.total_s - (each.ttft_s or 0.0)) for each in done if each.ttft_s is not None]
    decode = [n / seconds for n, seconds in pieces if n > 0 and seconds > 0]
    return {
        "tokens_per_s": tokens / report.wall_s,
        "decode_tokens_per_s": median(decode) if decode else None,
        "ttft_p50_s": quantile(every, 0.5),
        "ttft_p95_s": quantile(every, 0.95),
        "wave_ttft_p50_s": quantile(wave, 0.5),
        "wave_ttft_p95_s": quantile(wave, 0.95),
        "longest_gap_s": max((each.longest_gap_s for each in done), default=None),
        "e2e_p95_s": quantile([each.total_s for each in done], 0.95),
        "requests": len(report.outcomes),
        "failed": len(errors),
        "error": errors[0] if errors else None,
        "prompt_tokens": sum(each.prompt_tokens for each in done),
        "cached_tokens": sum(each.cached_tokens for each in done),
        "cpu_client": report.cpu_s / report.wall_s,
    }


def quantile(values: list[float], q: float) -> float | None:
    """By linear interpolation; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _median(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key in repeats[0]:
        values = [each[key] for each in repeats if each.get(key) is not None]
        if key == "failed":
            merged[key] = sum(values)
        elif key == "error":
            merged[key] = values[0] if values else None
        else:
            merged[key] = median(values) if values else None
    return merged


def _record(
    options: BenchOptions,
    path: Path,
    servers: dict[str, dict[str, dict[str, Any]]],
    limiter: _Limiter,
    mean_tokens: float,
) -> dict[str, Any]:
    limit = {
        f"{each.batch}": {
            "prefill": each.prefill,
            "decode": each.decode,
            "tokens_per_s": each.workload(mean_tokens, options.new_tokens),
        }
        for each in limiter.limit
    }
    mine = servers["ours"]["plain"]
    ratios: dict[str, dict[str, float | None]] = {"limit": {}}
    for n in mine:
        ratios["limit"][n] = mine[n]["tokens_per_s"] / limit[n]["tokens_per_s"]
    for name, by_key in servers.items():
        if name != "ours":
            ratios[name] = {
                n: mine[n]["tokens_per_s"] / (theirs["tokens_per_s"] or float("nan"))
                for n, theirs in by_key["plain"].items()
            }
    single = limiter.single
    if single is not None and mine.get("1", {}).get("decode_tokens_per_s"):
        ratios["single_stream_decode"] = {"llama-bench": mine["1"]["decode_tokens_per_s"] / single.decode}
    return {
        "model": path.name,
        "prompt_tokens": mean_tokens,
        "new_tokens": options.new_tokens,
        "limit_by": limiter.source,
        "limit": limit,
        "single_stream": {"llama-bench": vars(single)} if single is not None else {},
        "servers": servers,
        "ratios": ratios,
        "sampling": {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p},
        "options": options.options,
        "machine": machine_record(),
    }
