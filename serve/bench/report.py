"""The tables of ``slm.serve.bench``.

Tested in tests/serve/bench/test_main.py.
"""

from __future__ import annotations

from typing import Any

from slm.machine.busy import mark
from slm.report import table

_TITLES = {
    "plain": "Closed loop: this many clients at once, streamed completions",
    "open": "Open loop: random arrivals, as a part of the limit",
    "prefix": "A shared prefix (closed loop)",
    "json": "Replies under a JSON Schema (closed loop)",
    "repeat": "Greedy replies that repeat themselves (closed loop)",
    "busy": "One other busy process (closed loop)",
}


def show(record: dict[str, Any], notes: list[str]) -> None:
    """Prints a table for each workload, and the notes."""
    shape = f"{record['prompt_tokens']:.0f} prompt and {record['new_tokens']} new tokens"
    memory = record["memory_bound"]
    rows = [
        [n, f"{each['prefill']:,.0f}", f"{each['decode']:,.0f}", f"{each['tokens_per_s']:,.0f}"]
        + ([f"{memory['decode'][n]:,.0f}"] if memory else [])
        for n, each in record["limit"].items()
    ]
    columns = ["sequences", "prefill tok/s", "decode tok/s", "tokens/s"]
    if memory:
        columns.append("memory allows")
        shape += (
            "\nmemory allows: decoded tokens/s if a step only read the weights "
            f"({memory['weight_bytes'] / 1e6:,.1f} MB) and each sequence's cache ({memory['kv_bytes'] / 1e6:,.2f} MB) "
            f"at {memory['read_gb_per_s']:.1f} GB/s; a model in the processor's caches may be faster"
        )
    busy = mark(record.get("others_share"))
    table(f"The limit, by {record['limit_by']}{busy}", columns, rows, caption=shape)
    for key, title in _TITLES.items():
        rows = []
        for name, by_key in record["servers"].items():
            for n, each in by_key.get(key, {}).items():
                rows.append([n, name, *_cells(record, key, n, each)])
        if rows:
            rows.sort(key=lambda row: float(row[0]))
            columns = ["clients" if key != "open" else "load", "server", "tokens/s", "of limit"]
            columns += ["TTFT p50, s", "p95, s", "at once p50, s", "p95, s", "longest gap, s", "client cores", "failed"]
            table(title + busy, columns, rows, key=2)
    for name, by_key in record["servers"].items():
        for key, by_n in by_key.items():
            for n, each in by_n.items():
                if each["failed"]:
                    print(f"{name}, {key} {n}: {each['failed']} requests failed, the first so: {each['error']}")
    for name, each in record["single_stream"].items():
        print(f"{name}: prefill {each['prefill']:,.0f}, decode {each['decode']:,.0f} tokens/s, one sequence")
    for name, by_key in record["servers"].items():
        if rate := by_key.get("plain", {}).get("1", {}).get("decode_tokens_per_s"):
            print(f"{name}: decode {rate:,.0f} tokens/s, one client, from its first text to its last")
    for name, by_n in record["busy_to_quiet"].items():
        of_quiet = ", ".join(f"{ratio:.2f} with {n} client{'s' * (n != '1')}" for n, ratio in by_n.items())
        print(f"{name}: of its quiet speed while another process is busy: {of_quiet}")
    for note in notes:
        print(note)


def _cells(record: dict[str, Any], key: str, n: str, each: dict[str, Any]) -> list[str]:
    limit = record["limit"].get(n)
    of_limit = ""
    if limit and key != "open" and each["prompt_tokens"]:
        # The limit for prompts of this mean length, with nothing cached.
        n_prompt, n_new = each["prompt_tokens"] / each["requests"], record["new_tokens"]
        of_limit = f"{each['tokens_per_s'] * (n_prompt / limit['prefill'] / n_new + 1 / limit['decode']):.2f}"
    seconds = ("ttft_p50_s", "ttft_p95_s", "wave_ttft_p50_s", "wave_ttft_p95_s", "longest_gap_s")
    return [
        f"{each['tokens_per_s']:,.0f}",
        of_limit,
        *("" if each[name] is None else f"{each[name]:.3f}" for name in seconds),
        f"{each['cpu_client']:.2f}",
        f"{each['failed']}",
    ]
