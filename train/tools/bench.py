"""``python -m train.tools.bench``: tokens/s of whole training steps, next to the machine's limit and others.

Each contender runs in a process of its own, one after the other, on the same seeded random token ids in the same
shapes: forward, backward, clipping and AdamW. The limit is the rate of one large bf16 matrix product measured in
the same run (f32 where training would choose f32). GFLOP/s count 6 N + causal attention, recomputation left out.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Any

from data.errors import UserError
from slm import cli
from slm.configuration import build, load_config
from slm.machine.hardware import n_threads, peak_rss_bytes, share_cores
from slm.machine.record import machine_record
from slm.report import final_json, table
from train.config import RunConfig

MOST_MICRO_BATCHES = 4


@dataclass(kw_only=True)
class BenchConfig:
    """How long to measure, and beside whom."""

    steps: int = 8
    warmup: int = 3
    micro_batches: int | None = None
    """Passes per optimizer step."""
    baselines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup < 1:
            raise UserError("bench.steps and bench.warmup must be at least 1")
        unknown = sorted(set(self.baselines) - set(CONTENDERS))
        if unknown:
            raise UserError(f"bench.baselines: there is no {unknown[0]!r}; it is some of: {', '.join(CONTENDERS)}")


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON line."""
    resolved = load_config("bench_train", argv)
    bench = build(BenchConfig, resolved.pop("bench"), where="bench")
    config = build(RunConfig, resolved)
    grad_accum = bench.micro_batches or min(config.train.grad_accum, MOST_MICRO_BATCHES)
    task = {"resolved": resolved, "grad_accum": grad_accum, "steps": bench.steps, "warmup": bench.warmup}
    results = {}
    for name in ["ours", *(each for each in bench.baselines if each != "ours")]:
        print(f"measuring {name} ...", flush=True)
        results[name] = in_process(CONTENDERS[name], task)
        if "skipped" in results[name]:
            print(f"  left out: {results[name]['skipped']}", flush=True)
    show(config, results)
    ours = results["ours"]
    record = {
        "preset": config.preset,
        "tokens_per_s": ours["tokens_per_s"],
        "gflops": ours["gflops"],
        "gemm_peak_gflops": ours["gemm_peak_gflops"],
        "gemm_peak_fraction": ours["gflops"] / ours["gemm_peak_gflops"],
        "ratio_hf_trainer": ratio(results, "hf_trainer"),
        "ratio_eager": ratio(results, "eager"),
        "peak_rss_gb": ours["peak_rss_gb"],
        "threads": ours["threads"],
        "precision": ours["precision"],
        "backend": ours["backend"],
        "breakdown": ours["breakdown"],
        "first_step_s": ours["first_step_s"],
        "shape": {
            "seq_len": config.train.seq_len,
            "micro_batch": config.train.micro_batch,
            "grad_accum": grad_accum,
        },
        "contenders": results,
        "machine": machine_record(),
    }
    final_json(record)
    return 0


def in_process(function: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Run ``function(task)`` in a fresh process, so that allocators, caches and peak memory are its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, task).result()


def ratio(results: dict[str, Any], other: str) -> float | None:
    """Our tokens per second over another's, or None where it was not measured."""
    theirs = results.get(other, {}).get("tokens_per_s")
    return results["ours"]["tokens_per_s"] / theirs if theirs else None


def show(config: RunConfig, results: dict[str, Any]) -> None:
    rows = []
    for name, each in results.items():
        if "skipped" in each:
            continue
        rows.append(
            [
                name,
                f"{each['tokens_per_s']:,.0f}",
                f"{each['gflops']:,.0f}",
                f"{each['gflops'] / results['ours']['gemm_peak_gflops']:.2f}",
                f"{results['ours']['tokens_per_s'] / each['tokens_per_s']:.2f}",
                f"{each['first_step_s']:.1f}",
                f"{each['peak_rss_gb']:.2f}",
            ]
        )
    shares = ", ".join(f"{name} {share:.1%}" for name, share in results["ours"]["breakdown"].items())
    columns = ["", "tokens/s", "GFLOP/s", "of GEMM peak", "ours is x", "first step, s", "peak GiB"]
    ours = results["ours"]
    table(
        f"Training steps of {config.preset}: {ours['threads']} threads, {ours['precision']}",
        columns,
        rows,
        caption=f"GFLOP/s: 6N + causal attention; GEMM peak of this run: {ours['gemm_peak_gflops']:,.0f} GFLOP/s",
    )
    print(f"where a step's time goes: {shares}")


# The contenders. Each runs in its own process and returns plain values.


def ours(task: dict[str, Any]) -> dict[str, Any]:
    """The step that ``python -m train`` takes."""
    return _own(task, compile=True)


def compiled(task: dict[str, Any]) -> dict[str, Any]:
    """The same without the kernels: torch.compile with blockwise attention and the chunked loss."""
    task = task | {"resolved": task["resolved"] | {"train": task["resolved"]["train"] | {"kernels": False}}}
    return _own(task, compile=True)


def eager(task: dict[str, Any]) -> dict[str, Any]:
    """A plain loop: the same model uncompiled, autocast, torch's default allocator."""
    return _own(task, compile=False)


def _own(task: dict[str, Any], *, compile: bool) -> dict[str, Any]:
    if compile:
        share_cores()  # as training does, before torch is imported; the others run with what torch does by itself
    import torch

    from train.backend import make_backend
    from train.environment import Environment, prepare
    from train.optim import make_optimizer
    from train.step import StepResult, train_step
    from train.tools.breakdown import breakdown

    config = build(RunConfig, task["resolved"])
    if compile:
        environment = prepare(config.train)
    else:
        threads = config.train.threads or n_threads()
        torch.set_num_threads(threads)
        precision = "bf16" if config.train.precision == "auto" else config.train.precision
        environment = Environment(threads=threads, precision=precision, compile=False, notes=())
    model, shape = _model(config)
    optimizer = make_optimizer(model, config.optim)
    batches = _batches(config, shape.vocab_size)
    began = perf_counter()
    backend = make_backend(model, config.train, environment)

    def step() -> StepResult:
        return train_step(
            model,
            optimizer,
            batches,
            grad_accum=task["grad_accum"],
            grad_clip=config.optim.grad_clip,
            lr=1e-4,
            backend=backend,
        )

    seconds = []
    for _ in range(task["warmup"] + task["steps"]):
        start = perf_counter()
        step()
        seconds.append(perf_counter() - start)
        if len(seconds) == 1:
            first = perf_counter() - began
    result = _result(config, shape, task, seconds, first)
    result |= {"threads": environment.threads, "precision": environment.precision, "backend": backend.name}
    if compile:
        result["breakdown"] = breakdown(backend, step)
    result["gemm_peak_gflops"] = gemm_peak_gflops(environment.precision) if compile else None
    return result


def hf_trainer(task: dict[str, Any]) -> dict[str, Any]:
    """Hugging Face's Trainer: bf16, torch_compile, fused AdamW."""
    try:
        import accelerate  # noqa: F401 - Trainer needs it
        import torch
        import transformers
    except ImportError as error:
        return {"skipped": f"{error}; install it with pip install 'slm[dev]'"}
    import tempfile

    config = build(RunConfig, task["resolved"])
    torch.set_num_threads(config.train.threads or n_threads())
    _, shape = _model(config, meta=True)
    kind = {"llama": "Llama", "qwen3": "Qwen3"}[shape.arch]
    values = {k: v for k, v in shape.to_hf().items() if k not in ("architectures", "torch_dtype", "rope_theta")}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**values))
    seconds, started = [], []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            started.append(perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(perf_counter() - started[-1])

    blocks = _batches(config, shape.vocab_size)
    rows = [
        {"input_ids": row[:-1].tolist(), "labels": row[:-1].tolist()}
        for _ in range((task["warmup"] + task["steps"]) * task["grad_accum"])
        for row in next(blocks)
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            bf16=True,
            torch_compile=True,
            optim="adamw_torch_fused",
            per_device_train_batch_size=config.train.micro_batch,
            gradient_accumulation_steps=task["grad_accum"],
            gradient_checkpointing=config.train.recompute == "layer",
            max_steps=task["warmup"] + task["steps"],
            max_grad_norm=config.optim.grad_clip,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Clock()]).train()
    return _result(config, shape, task, seconds, seconds[0])


CONTENDERS = {"ours": ours, "compiled": compiled, "eager": eager, "hf_trainer": hf_trainer}


def _model(config: RunConfig, *, meta: bool = False) -> tuple[Any, Any]:
    import torch

    from slm.model.transformer import LanguageModel
    from train.model_shape import model_shape

    shape = model_shape(config)
    torch.manual_seed(config.train.seed)
    with torch.device("meta" if meta else "cpu"):
        model = LanguageModel(shape).train()
    return model, shape


def _batches(config: RunConfig, vocab_size: int) -> Any:
    """Seeded random blocks, int32 [micro_batch, seq_len + 1], without end."""
    import numpy as np

    chance = np.random.default_rng(config.train.seed)
    while True:
        yield chance.integers(0, vocab_size, (config.train.micro_batch, config.train.seq_len + 1)).astype(np.int32)


def _result(config: RunConfig, shape: Any, task: dict[str, Any], seconds: list[float], first: float) -> dict[str, Any]:
    tokens = config.train.micro_batch * task["grad_accum"] * config.train.seq_len
    step = median(seconds[task["warmup"] :])
    flops = shape.flops_per_token(config.train.seq_len) * tokens
    return {
        "tokens_per_s": tokens / step,
        "gflops": flops / step / 1e9,
        "first_step_s": first,
        "peak_rss_gb": peak_rss_bytes() / 2**30,
    }


def gemm_peak_gflops(precision: str) -> float:
    """The best rate of ``F.linear`` here, GFLOP/s: the fastest of 20 products 2048 x 768 x 2048 and 4096^3 / 4."""
    import torch
    import torch.nn.functional as F

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    best = 0.0
    for m, k, n in ((2048, 768, 2048), (2048, 2048, 2048)):
        a_MK, b_NK = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
        F.linear(a_MK, b_NK)
        for _ in range(20):
            start = perf_counter()
            F.linear(a_MK, b_NK)
            best = max(best, 2 * m * k * n / (perf_counter() - start) / 1e9)
    return best


if __name__ == "__main__":
    cli.run(main)
