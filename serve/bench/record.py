"""The benchmark's record: its final JSON line.

Tested in tests/serve/bench/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slm.machine.record import machine_record
from slm.serve.bench.config import BenchOptions
from slm.serve.bench.limit import Limiter, MemoryBound


def make_record(
    options: BenchOptions,
    path: Path,
    servers: dict[str, dict[str, dict[str, Any]]],
    limiter: Limiter,
    mean_tokens: float,
    memory: MemoryBound | None = None,
) -> dict[str, Any]:
    """``servers`` holds the figures by server, workload and number of clients; ``mean_tokens`` is a prompt's length.

    ``ratios`` compares our server's throughput in the closed loop with the limit and with each other server.
    ``memory_bound`` is what reading the weights and caches from memory allows.
    ``busy_to_quiet`` compares each server's throughput next to a busy process with its own without one.
    """
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
        "memory_bound": {
            "read_gb_per_s": memory.read_gb_per_s,
            "weight_bytes": memory.weight_bytes,
            "kv_bytes": memory.kv_bytes,
            "decode": {f"{each.batch}": memory.decode(each.batch) for each in limiter.limit},
        }
        if memory
        else None,
        "single_stream": {"llama-bench": vars(single)} if single is not None else {},
        "servers": servers,
        "ratios": ratios,
        "busy_to_quiet": {name: busy for name, by_key in servers.items() if (busy := _busy_to_quiet(by_key))},
        "sampling": {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p},
        "options": options.options,
        "machine": machine_record(),
    }


def _busy_to_quiet(by_key: dict[str, dict[str, Any]]) -> dict[str, float]:
    """By number of clients, for those that were measured both ways."""
    quiet = by_key["plain"]
    return {
        n: busy["tokens_per_s"] / quiet[n]["tokens_per_s"]
        for n, busy in by_key.get("busy", {}).items()
        if n in quiet and quiet[n]["tokens_per_s"]
    }
