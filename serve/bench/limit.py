"""What llama.cpp itself can do with a model on this machine: prompt and decode rates of a batch, without a server.

Measured through the same library that the engine uses, in a process of its own (``python -m serve.bench.limit``
reads what to measure as JSON from stdin), and by llama.cpp's own tools where they are there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from slm.machine.hardware import n_threads

BATCH, UBATCH = 2048, 512
"""llama.cpp's defaults."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Tokens per second of ``batch`` sequences together."""

    batch: int
    prefill: float
    decode: float

    def workload(self, prompt_tokens: float, new_tokens: int) -> float:
        """Generated tokens per second of rounds of so many requests, prompts included in the time."""
        return new_tokens / (prompt_tokens / self.prefill + new_tokens / self.decode)


def median_rates(several: Sequence[Rates]) -> Rates:
    """The medians of measurements at one batch size."""
    prefill, decode = (median(getattr(each, name) for each in several) for name in ("prefill", "decode"))
    return Rates(batch=several[0].batch, prefill=prefill, decode=decode)


def measure(model: Path, batches: list[int], *, prompt_tokens: int, new_tokens: int) -> list[Rates]:
    """The rates at each batch size, measured by a fresh process."""
    job = {"model": str(model), "batches": batches, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    done = subprocess.run(
        [sys.executable, "-m", "serve.bench.limit"], input=json.dumps(job).encode(), stdout=subprocess.PIPE, check=True
    )
    return [Rates(**each) for each in json.loads(done.stdout)]


def measure_here(model: Path, batches: list[int], *, prompt_tokens: int, new_tokens: int) -> list[Rates]:
    """The rates at each batch size: all prompts, then ``new_tokens`` steps of one token for each."""
    from slm.llama.context import Batch, Context
    from slm.llama.model import Model

    rng = np.random.default_rng(0)
    rates = []
    with Model(model) as weights:
        for n in batches:
            cells = prompt_tokens + new_tokens + 16
            with Context(
                weights, n_ctx=n * cells, n_batch=BATCH, n_ubatch=UBATCH, n_seq_max=n, kv_unified=n == 1
            ) as context:
                batch = Batch(context.n_batch, n)
                ids = rng.integers(0, weights.n_vocab, (n, prompt_tokens + new_tokens)).tolist()

                def decode(context=context, batch=batch) -> float:
                    began = time.perf_counter()
                    context.decode(batch)
                    took = time.perf_counter() - began
                    batch.clear()
                    return took

                batch.extend(ids[0][:prompt_tokens], 0, 0, True)
                decode()  # pages and threads are there now
                context.clear()
                prefill_s = decode_s = 0.0
                for slot in range(n):
                    if len(batch) + prompt_tokens > batch.capacity:
                        prefill_s += decode()
                    batch.extend(ids[slot][:prompt_tokens], 0, slot, True)
                prefill_s += decode()
                for at in range(prompt_tokens, prompt_tokens + new_tokens):
                    for slot in range(n):
                        batch.add(ids[slot][at], at, slot, True)
                    decode_s += decode()
                rates.append(Rates(batch=n, prefill=n * prompt_tokens / prefill_s, decode=n * new_tokens / decode_s))
    return rates


def batched_bench(binary: str, model: Path, batches: list[int], *, prompt_tokens: int, new_tokens: int) -> list[Rates]:
    """The same by llama-batched-bench."""
    context = max(batches) * (prompt_tokens + new_tokens + 16)
    words = ["-c", context, "-b", BATCH, "-ub", UBATCH, "-npp", prompt_tokens, "-ntg", new_tokens, "-t", n_threads()]
    words += ["-npl", ",".join(map(str, batches)), "--output-format", "jsonl"]
    rows = _json_lines([binary, "-m", str(model), *map(str, words)])
    return [
        Rates(batch=row["pl"], prefill=row["speed_pp"], decode=row["speed_tg"]) for row in rows if "speed_tg" in row
    ]


def llama_bench(binary: str, model: Path, *, prompt_tokens: int, new_tokens: int, repeats: int = 3) -> Rates:
    """Prompt and single-stream decode rates by llama-bench, the latter behind a prompt of that length."""
    common = [binary, "-m", str(model), "-t", str(n_threads()), "-r", str(repeats), "-o", "jsonl"]
    (prefill,) = _json_lines([*common, "-p", str(prompt_tokens), "-n", "0"])
    (decode,) = _json_lines([*common, "-p", "0", "-n", str(new_tokens), "-d", str(prompt_tokens)])
    return Rates(batch=1, prefill=prefill["avg_ts"], decode=decode["avg_ts"])


def _json_lines(command: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """Reads the job from stdin, writes the rates to stdout."""
    job = json.load(sys.stdin)
    rates = measure_here(Path(job.pop("model")), **job)
    print(json.dumps([asdict(each) for each in rates]))


if __name__ == "__main__":
    main()
