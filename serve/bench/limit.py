"""What llama.cpp itself can do with a model on this machine: its prompt and decode rates, without a server.

They are measured with llama.cpp's own tools where those are installed, else with the library that the engine uses, in
a separate process (``python -m slm.serve.bench.limit`` reads what to measure as JSON from stdin). The limit of a
workload is the time that these rates give for its tokens: prompts at the prefill rate, replies at the decode rate for
as many sequences as there are clients, and nothing for HTTP, sampling, text or scheduling.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from slm.data.errors import UserError
from slm.kernels import roofline
from slm.llama.gguf_check import read_header
from slm.llama.verdict import crash_advice
from slm.machine.crashes import ended_by
from slm.machine.hardware import compute_threads
from slm.serve.bench.config import BenchOptions
from slm.serve.bench.contenders import find_tool
from slm.serve.pool.memory_plan import read_facts

if TYPE_CHECKING:
    from slm.llama.model import Model

BATCH, UBATCH = 2048, 512
"""llama.cpp's defaults."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Tokens per second of ``batch`` sequences together."""

    batch: int
    prefill: float
    decode: float

    def workload(self, prompt_tokens: float, new_tokens: int) -> float:
        """Generated tokens per second when ``batch`` requests run at once, the time for their prompts included."""
        return new_tokens / (prompt_tokens / self.prefill + new_tokens / self.decode)


def median_rates(several: Sequence[Rates]) -> Rates:
    """The medians of measurements at one batch size."""
    prefill, decode = (median(getattr(each, name) for each in several) for name in ("prefill", "decode"))
    return Rates(batch=several[0].batch, prefill=prefill, decode=decode)


def bench_library(model: Path, batches: list[int], *, prompt_tokens: int, new_tokens: int) -> list[Rates]:
    """The rates at each batch size by llama.cpp's library in a fresh process."""
    job = {"model": str(model), "batches": batches, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    done = subprocess.run(
        [sys.executable, "-m", "slm.serve.bench.limit"], input=json.dumps(job).encode(), stdout=subprocess.PIPE
    )
    if name := ended_by(done.returncode):
        raise UserError(f"llama.cpp died with {name} while the limit of {model.name} was measured; {crash_advice()}")
    if done.returncode:
        raise UserError(f"the limit of {model.name} could not be measured (exit status {done.returncode}; see above)")
    return [Rates(**each) for each in json.loads(done.stdout)]


def measure_here(path: Path, batches: list[int], *, prompt_tokens: int, new_tokens: int) -> list[Rates]:
    """The rates at each batch size in this process: all prompts, then ``new_tokens`` steps of one token for each."""
    from slm.llama.model import Model

    rng = np.random.default_rng(0)
    with Model(path) as model:
        shape = [(n, prompt_tokens + new_tokens) for n in batches]
        return [_rates(model, rng.integers(0, model.n_vocab, each).tolist(), prompt_tokens) for each in shape]


def _rates(model: Model, sequences: list[list[int]], prompt_tokens: int) -> Rates:
    """``sequences``: the tokens of each, the prompt's first."""
    from slm.llama.context import Batch, Context

    n, length = len(sequences), len(sequences[0])
    with Context(
        model,
        n_ctx=n * (length + 16),
        n_batch=BATCH,
        n_ubatch=UBATCH,
        n_seq_max=n,
        n_threads=compute_threads(),
        kv_unified=n == 1,
    ) as context:
        batch = Batch(context.n_batch, n)

        def decode() -> float:
            began = time.perf_counter()
            context.decode(batch)
            took = time.perf_counter() - began
            batch.clear()
            return took

        batch.extend(sequences[0][:prompt_tokens], 0, 0, True)
        decode()  # the first one starts threads and touches memory
        context.clear()
        prefill_s = decode_s = 0.0
        for slot, tokens in enumerate(sequences):
            if len(batch) + prompt_tokens > batch.capacity:
                prefill_s += decode()
            batch.extend(tokens[:prompt_tokens], 0, slot, True)
        prefill_s += decode()
        for at in range(prompt_tokens, length):
            for slot, tokens in enumerate(sequences):
                batch.add(tokens[at], at, slot, True)
            decode_s += decode()
    n_new = n * (length - prompt_tokens)
    return Rates(batch=n, prefill=n * prompt_tokens / prefill_s, decode=n_new / decode_s)


def batched_bench(binary: str, model: Path, batches: list[int], *, prompt_tokens: int, new_tokens: int) -> list[Rates]:
    """The rates at each batch size by llama-batched-bench."""
    context = max(batches) * (prompt_tokens + new_tokens + 16)
    words = ["-c", context, "-b", BATCH, "-ub", UBATCH, "-t", compute_threads(), "-npp", prompt_tokens]
    words += ["-ntg", new_tokens, "-npl", ",".join(map(str, batches)), "--output-format", "jsonl"]
    rows = _json_lines([binary, "-m", str(model), *map(str, words)])
    return [
        Rates(batch=row["pl"], prefill=row["speed_pp"], decode=row["speed_tg"]) for row in rows if "speed_tg" in row
    ]


def llama_bench(binary: str, model: Path, *, prompt_tokens: int, new_tokens: int, repeats: int = 3) -> Rates:
    """The rates of one sequence by llama-bench; it decodes after a prompt of that length."""
    common = [binary, "-m", str(model), "-t", str(compute_threads()), "-r", str(repeats), "-o", "jsonl"]
    (prefill,) = _json_lines([*common, "-p", str(prompt_tokens), "-n", "0"])
    (decode,) = _json_lines([*common, "-p", "0", "-n", str(new_tokens), "-d", str(prompt_tokens)])
    return Rates(batch=1, prefill=prefill["avg_ts"], decode=decode["avg_ts"])


def _json_lines(command: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        how = ended_by(done.returncode) or f"exit status {done.returncode}"
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UserError(
            f"{command[0]} failed ({how}; it said: {said}); bench.llama_server=off measures with the library instead"
        )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@dataclass(frozen=True, kw_only=True)
class MemoryBound:
    """What reading memory allows, whatever the processor computes."""

    read_gb_per_s: float
    """10^9 bytes per second that all threads read."""
    weight_bytes: int
    """Bytes of the file's weights, read once in a decode step."""
    kv_bytes: float
    """Bytes of one sequence's f16 cache read in a decode step, with half of the new tokens written."""

    def decode(self, sequences: int) -> float:
        """Tokens per second of this many sequences that are decoded together. A model in the caches may be faster."""
        return sequences * self.read_gb_per_s * 1e9 / (self.weight_bytes + sequences * self.kv_bytes)


def memory_bound(path: Path, *, prompt_tokens: float, new_tokens: int) -> MemoryBound | None:
    """Measured now; None where the machine's bandwidth cannot be measured."""
    limits = roofline.measure(compute_threads())
    if limits is None:
        return None
    kv_bytes = read_facts(path).kv_bytes("f16") * (prompt_tokens + new_tokens / 2)
    return MemoryBound(
        read_gb_per_s=limits.read_gb_per_s, weight_bytes=read_header(path).decode_bytes, kv_bytes=kv_bytes
    )


class Limiter:
    """Repeated measurements of the limit, by llama-batched-bench and llama-bench where they are installed.

    Without llama-batched-bench the library is measured (``source`` is "in_process").
    """

    def __init__(self, options: BenchOptions, path: Path, prompt_tokens: int) -> None:
        self._path = path
        self._batches = sorted({*options.clients, *(options.extra_clients if options.extra else [])})
        self._shape = {"prompt_tokens": prompt_tokens, "new_tokens": options.new_tokens}
        server = find_tool("llama-server", options.llama_server)
        wanted = options.llama_server != "off"
        self._batched = find_tool("llama-batched-bench", None, next_to=server) if wanted else None
        self._single = find_tool("llama-bench", None, next_to=server) if wanted else None
        self._rates: list[list[Rates]] = []
        self._single_rates: list[Rates] = []
        self.source = "llama-batched-bench" if self._batched else "in_process"

    def measure(self) -> None:
        """Measures once more."""
        if self._batched:
            self._rates.append(batched_bench(self._batched, self._path, self._batches, **self._shape))
        else:
            self._rates.append(bench_library(self._path, self._batches, **self._shape))
        if self._single:
            self._single_rates.append(llama_bench(self._single, self._path, **self._shape))

    @property
    def limit(self) -> list[Rates]:
        """Medians of the measurements, one for each number of sequences."""
        return [median_rates(each) for each in zip(*self._rates, strict=True)]

    @property
    def single(self) -> Rates | None:
        """Medians of one sequence by llama-bench; None without it."""
        return median_rates(self._single_rates) if self._single_rates else None


def main() -> None:
    """Reads the job from stdin, writes the rates to stdout."""
    job = json.load(sys.stdin)
    rates = measure_here(Path(job.pop("model")), **job)
    print(json.dumps([asdict(each) for each in rates]))


if __name__ == "__main__":
    main()
