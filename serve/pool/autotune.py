"""Chooses the threads, batch sizes, kind of attention and slots that the configuration leaves open.

All but the slots are measured once per model file and machine, while nobody uses the server (``idle_tuning``),
and kept in the cache folder. A separate process measures (``python -m slm.serve.pool.autotune`` reads a job as JSON
from stdin). Slots follow from the free memory.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import slm
from slm.data.storage import cache_home
from slm.machine.free_cores import FreeCores
from slm.machine.hardware import compute_threads, n_threads
from slm.machine.memory import available_bytes
from slm.machine.record import cpu_name
from slm.report import atomic_write_json
from slm.serve.config import TuneMode
from slm.serve.engine.config import EngineConfig
from slm.serve.pool.memory_plan import ModelFacts

if TYPE_CHECKING:
    from slm.llama.model import Model

MOST_SLOTS = 16
"""More sequences at once would still raise the throughput, and each would be slower."""
_SLOT_PART = 0.5
"""All caches together take at most so much of the memory that the model leaves free. They take it when they are first
used, and only as far as it is free then."""
FEWEST_PARAMS = 20_000_000
"""Smaller models are fast with any choice."""
_CLEARLY_FASTER = 1.04
"""Ratio to the default choice. Smaller differences are noise."""
_UBATCHES = (512, 256, 128)
_SHORT_CHUNK = 16
"""Prompt tokens of a step, where a slow model has streams that wait."""
_MEASURE_S = 60
"""Only a model of some gigabytes takes longer, or a machine that is busy with other work."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A choice; the defaults are the engine's own."""

    threads: int
    batch: int = EngineConfig.batch
    ubatch: int = EngineConfig.ubatch
    flash_attn: bool | None = None
    """None: llama.cpp's choice."""


def untuned() -> Tuned:
    """The choice without a measurement."""
    return Tuned(threads=compute_threads())


def slots_for(facts: ModelFacts, *, slot_bytes: float) -> int:
    """How many KV caches of this many bytes fit into the memory set aside for them: 1 to ``MOST_SLOTS``."""
    room = _SLOT_PART * (available_bytes() - facts.file_bytes)
    return max(1, min(MOST_SLOTS, int(room // max(1, slot_bytes))))


def tuned_for(path: Path, facts: ModelFacts, mode: TuneMode, *, n_gpu_layers: int = 0) -> Tuned:
    """The choice for a model file on this machine: what is kept of it, else ``untuned()``.

    Small models and ``mode`` "off" get ``untuned()``. "force" measures now, for some seconds, and prints a line.
    """
    if mode == "force":
        print(f"tuning   measuring threads and batch sizes for {path.name}", flush=True)
        return measured(path, n_gpu_layers=n_gpu_layers) or untuned()
    known = _read(_cache_file(path, n_gpu_layers)) if _worth_it(facts, mode) else None
    return known or untuned()


def unknown(path: Path, facts: ModelFacts, mode: TuneMode, *, n_gpu_layers: int = 0) -> bool:
    """Whether the model should be measured, and has not been on this machine. Raises ``OSError``."""
    return _worth_it(facts, mode) and _read(_cache_file(path, n_gpu_layers)) is None


def _worth_it(facts: ModelFacts, mode: TuneMode) -> bool:
    return mode == "auto" and facts.n_params >= FEWEST_PARAMS


def measured(path: Path, *, n_gpu_layers: int = 0) -> Tuned | None:
    """Measures a model file for some seconds, keeps the choice and returns it.

    A model that takes too long gets ``untuned()``, which is kept, too. None, and nothing is kept, where the machine
    cannot be measured, other programs use the cores, or ``stop_measuring`` is called meanwhile.
    """
    cores = FreeCores()
    job = {"model": str(path.resolve()), "n_gpu_layers": n_gpu_layers}
    try:
        chosen = Tuned(**json.loads(_in_a_process(job)))
    except subprocess.TimeoutExpired:
        # A large model, most likely: it would take as long every time.
        print(
            f"tuning   not done in {_MEASURE_S} s: a thread per core (serve.tune=force measures again)",
            flush=True,
        )
        chosen = untuned()
    except (subprocess.SubprocessError, OSError, ValueError, TypeError):
        return None
    if cores.taken(untuned().threads):
        return None
    try:
        record = _cache_file(path, n_gpu_layers)
        record.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(record, asdict(chosen))
    except OSError:
        pass  # it is measured again the next time
    return chosen


_measuring: set[subprocess.Popen[bytes]] = set()


def _in_a_process(job: dict[str, Any]) -> bytes:
    """What the measuring process writes. Raises ``SubprocessError`` and ``OSError``."""
    command = [sys.executable, "-m", "slm.serve.pool.autotune"]
    folder = slm.PARENT
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
    ) as child:
        _measuring.add(child)
        try:
            output, _ = child.communicate(json.dumps(job).encode(), timeout=_MEASURE_S)
        except BaseException:
            child.kill()
            raise
        finally:
            _measuring.discard(child)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return output


def stop_measuring() -> None:
    """Ends the measurements that run in threads; nothing is kept of them."""
    for child in list(_measuring):
        child.kill()


def _cache_file(path: Path, n_gpu_layers: int) -> Path:
    status = path.stat()
    key = [path.name, status.st_size, status.st_mtime_ns, cpu_name(), n_threads(), n_gpu_layers]
    key.append(metadata.version("llama-cpp-python"))
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return cache_home() / "tune" / f"{name}.json"


def _read(record: Path) -> Tuned | None:
    try:
        known: dict[str, Any] = json.loads(record.read_text())
        chosen = Tuned(**known)
    except (OSError, ValueError, TypeError):
        return None
    counts = (chosen.threads, chosen.batch, chosen.ubatch)
    sane = all(isinstance(value, int) and 0 < value <= 1 << 16 for value in counts)
    sane = sane and chosen.flash_attn in (None, False, True)
    return chosen if sane and chosen.ubatch <= chosen.batch else None


# -- measuring ---------------------------------------------------------------------------------------------


def measure(path: Path, *, n_gpu_layers: int = 0) -> Tuned:
    """Runs the model with each choice in turn and returns the fastest, or the default where none is clearly faster."""
    from slm.llama.model import Model

    default = untuned()
    with Model(path, n_gpu_layers=n_gpu_layers) as model:
        # A slow model gets fewer tokens, so that measuring it takes seconds, too.
        probe, _ = _timed(model, default, n_prompt=32)
        n_prompt = int(max(32, min(512, 0.5 / probe)))
        n_steps = int(max(4, min(32, 0.1 / probe)))

        def token_s(choice: Tuned) -> float:
            """Per token of a request: prefill, a decode step alone, and its share of a step with three others."""
            prefill_s, step_s = _timed(model, choice, n_prompt=n_prompt, n_steps=n_steps)
            _, shared_step_s = _timed(model, choice, n_prompt=min(n_prompt, 64), n_steps=n_steps, width=4)
            return prefill_s + step_s + shared_step_s / 4

        def prefill_s(choice: Tuned) -> float:
            return _timed(model, choice, n_prompt=n_prompt)[0]

        others = [replace(default, threads=n) for n in _thread_counts(default.threads)]
        chosen = _fastest([default, *others], token_s)
        smaller = [replace(chosen, ubatch=n) for n in _UBATCHES if n < chosen.ubatch]
        chosen = _fastest([chosen, *smaller], prefill_s)

        def mixed_s(choice: Tuned) -> float:
            """As ``token_s``, and a prompt token of a short chunk: a long prompt is computed in those next to streams,
            and flash attention takes rows below a tile one by one."""
            short_s, _ = _timed(model, choice, n_prompt=_SHORT_CHUNK, n_before=n_prompt)
            return token_s(choice) + short_s

        return _fastest([chosen, replace(chosen, flash_attn=False)], mixed_s)


def _timed(
    model: Model, choice: Tuned, *, n_prompt: int, n_steps: int = 0, width: int = 1, n_before: int = 0
) -> tuple[float, float]:
    """Seconds per prompt token behind ``n_before`` others, and per decode step of ``width`` sequences (0 without
    steps)."""
    from slm.llama.context import Batch, Context

    n_prompt = min(n_prompt, model.n_ctx_train - 1)
    n_before = max(min(n_before, model.n_ctx_train - 1 - n_prompt), 0)
    with Context(
        model,
        n_ctx=width * (n_before + n_prompt + n_steps + 8),
        n_batch=choice.batch,
        n_ubatch=choice.ubatch,
        n_seq_max=width,
        n_threads=choice.threads,
        kv_unified=width == 1,
        flash_attn=choice.flash_attn,
    ) as context:
        batch = Batch(context.n_batch, width)
        tokens = [i % model.n_vocab for i in range(max(n_prompt, n_before))]
        prefills = []
        if n_before:
            batch.extend(tokens[:n_before], 0, 0, True)
            context.decode(batch)
        for _ in range(2):  # the first one starts threads and touches memory
            context.seq_rm(0, n_before)
            batch.clear()
            batch.extend(tokens[:n_prompt], n_before, 0, True)
            began = time.perf_counter()
            context.decode(batch)
            prefills.append(time.perf_counter() - began)
        steps = []
        for at in range(n_steps):
            batch.clear()
            for slot in range(width):
                batch.add(0, at if slot else n_prompt + at, slot, True)
            began = time.perf_counter()
            context.decode(batch)
            steps.append(time.perf_counter() - began)
    return min(prefills) / n_prompt, median(steps) if steps else 0.0


def _thread_counts(default: int) -> list[int]:
    """What may be better than a thread per physical core: half as many, one fewer, and all logical cores."""
    return sorted({default // 2, default - 1, n_threads()} - {0, default}, reverse=True)


def _fastest(choices: list[Tuned], seconds: Callable[[Tuned], float]) -> Tuned:
    """The first, unless another is clearly faster. They are measured in turn, so that other work slows all alike."""
    rounds = [[seconds(choice) for choice in choices] for _ in range(2)]
    times = [min(each) for each in zip(*rounds, strict=True)]
    best = min(range(len(choices)), key=times.__getitem__)
    return choices[best] if times[0] > _CLEARLY_FASTER * times[best] else choices[0]


def main() -> None:
    """Reads the job from stdin, writes the choice to stdout."""
    job = json.load(sys.stdin)
    print(json.dumps(asdict(measure(Path(job["model"]), n_gpu_layers=job["n_gpu_layers"]))))


if __name__ == "__main__":
    main()
