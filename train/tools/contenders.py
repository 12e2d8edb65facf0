"""What ``bench-train`` measures: our training step, the same without kernels or for an adapter (LoRA), a plain loop,
Hugging Face's Trainer.

Each contender runs in its own process and returns plain values. Nothing imports torch before it has set its threads.

Tested in tests/train/tools/test_bench.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from slm.machine.hardware import compute_threads, peak_rss_bytes
from slm.machine.waiting import wait_awake
from slm.model.config import ModelConfig
from slm.train.config import INTEGER_BITS, LoraConfig, RunConfig

if TYPE_CHECKING:
    import numpy as np

    from slm.train.backend import Backend
    from slm.train.environment import Environment
    from slm.train.step import StepResult


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every contender does."""

    config: RunConfig
    grad_accum: int
    """Passes per optimizer step."""
    steps: int
    """Optimizer steps that are measured."""
    warmup: int
    """Optimizer steps before them."""


def ours(task: Task) -> dict[str, Any]:
    """The step that ``python -m slm.train`` takes, with ``train.sampled_softmax`` where that is set."""
    return _own(task, compile=True)


def compiled(task: Task) -> dict[str, Any]:
    """The same without the kernels: torch.compile with blockwise attention and the chunked loss."""
    train = task.config.train
    precision = "f32" if train.precision in INTEGER_BITS else train.precision  # the kernels alone multiply integers
    config = replace(task.config, train=replace(train, kernels=False, precision=precision))
    return _own(replace(task, config=config), compile=True)


def eager(task: Task) -> dict[str, Any]:
    """A plain loop: the same model uncompiled, autocast, torch's default allocator, all logits."""
    return _own(all_logits(task), compile=False)


def lora(task: Task, *, rank: int) -> dict[str, Any]:
    """The step of a run that trains an adapter of this rank, with AdamW."""
    config = replace(task.config, optim=replace(task.config.optim, name="adamw"))
    return _own(replace(task, config=config), compile=True, rank=rank)


@dataclass(frozen=True, kw_only=True)
class OwnStep:
    """Our training step of a new model, made ready."""

    shape: ModelConfig
    environment: "Environment"
    backend: "Backend"
    began: float
    """``perf_counter()`` before the backend, which may compile, was made."""
    take: Callable[[Iterator["np.ndarray"]], "StepResult"]
    """Take one optimizer step on micro-batches int32 [B, T + 1], with marks or without."""


def own_step(
    config: RunConfig,
    *,
    grad_accum: int,
    compile: bool = True,
    rank: int = 0,
    trained: bool = False,
    shape: ModelConfig | None = None,
) -> OwnStep:
    """Our step on a new model of the run's shape, or another ``shape``.

    ``compile`` False: without kernels, compiler and what training does to its process. ``rank`` above 0 trains an
    adapter. ``trained``: with the products that a base being tuned gets, which may round less.
    """
    if compile:
        wait_awake()  # as training does, before torch is imported; the others run with what torch does by itself
    import torch

    from slm.train.backend import make_backend
    from slm.train.environment import Environment, number_format, prepare
    from slm.train.lora.adapter import AdapterParameters
    from slm.train.objective.sampled_softmax import plain_text
    from slm.train.optim.make import make_optimizer
    from slm.train.step import train_step

    if compile:
        environment = prepare(config.train, bits=config.train.kernel_bits(new=not (rank or trained)))
    else:
        threads = config.train.threads or compute_threads()
        torch.set_num_threads(threads)
        precision, _ = number_format(config.train)
        environment = Environment(threads=threads, precision=precision, compile=False, notes=())
    model, shape = _model(config, shape)
    parameters = AdapterParameters(model, LoraConfig(rank=rank), "") if rank else model
    optimizer = make_optimizer(parameters, config.optim, environment.precision, kernels=environment.kernels)
    began = perf_counter()
    backend = make_backend(model, config.train, environment)
    take = partial(
        train_step,
        parameters,
        optimizer,
        grad_accum=grad_accum,
        grad_clip=config.optim.grad_clip,
        lr=1e-4,
        backend=backend,
        objective=plain_text(config.train.sampled_softmax, shape.vocab_size),
    )
    return OwnStep(shape=shape, environment=environment, backend=backend, began=began, take=take)


def _own(task: Task, *, compile: bool, rank: int = 0) -> dict[str, Any]:
    own = own_step(task.config, grad_accum=task.grad_accum, compile=compile, rank=rank)
    step = partial(own.take, _batches(task.config, own.shape.vocab_size))
    seconds = []
    for _ in range(task.warmup + task.steps):
        start = perf_counter()
        step()
        seconds.append(perf_counter() - start)
        if len(seconds) == 1:
            first = perf_counter() - own.began
    result = _result(task, own.shape, seconds, first)
    environment = own.environment
    result |= {"threads": environment.threads, "precision": environment.precision, "backend": own.backend.name}
    if compile:
        # It imports torch.
        from slm.train.tools.breakdown import breakdown

        result["breakdown"] = breakdown(own.backend, step)
    result["gemm_peak_gflops"] = gemm_peak_gflops(environment.precision) if compile else None
    return result


def all_logits(task: Task) -> Task:
    """The same without ``train.sampled_softmax``."""
    return replace(task, config=replace(task.config, train=replace(task.config.train, sampled_softmax=0)))


def hf_trainer(task: Task) -> dict[str, Any]:
    """Hugging Face's Trainer: our step's number format, torch_compile, fused AdamW."""
    try:
        import accelerate  # noqa: F401 - Trainer needs it
        import torch
        import transformers
    except ImportError as error:
        return {"skipped": f"{error}; install it with pip install 'slm[dev]'"}
    import tempfile

    from slm.train.bench_recipe import hugging_face

    config = task.config
    torch.set_num_threads(config.train.threads or compute_threads())
    _, shape = _model(config, meta=True)
    seconds: list[float] = []
    started: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            started.append(perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(perf_counter() - started[-1])

    blocks = _batches(config, shape.vocab_size)
    rows = [
        {"input_ids": row[:-1].tolist(), "labels": row[:-1].tolist()}
        for _ in range((task.warmup + task.steps) * task.grad_accum)
        for row in next(blocks)
    ]
    with tempfile.TemporaryDirectory() as folder:
        hugging_face.make_trainer(
            hugging_face.new_model(shape),
            rows,
            config.train,
            Path(folder),
            callback=Clock(),
            torch_compile=True,
            optim="adamw_torch_fused",
            gradient_accumulation_steps=task.grad_accum,
            gradient_checkpointing=config.train.recompute == "layer",
            max_steps=task.warmup + task.steps,
            max_grad_norm=config.optim.grad_clip,
        ).train()
    return _result(all_logits(task), shape, seconds, seconds[0])


def _model(config: RunConfig, shape: ModelConfig | None = None, *, meta: bool = False) -> tuple[Any, ModelConfig]:
    """A new model in training mode and its shape, the run's unless one is given. ``meta``: without memory for its
    weights."""
    import torch

    from slm.model.transformer import LanguageModel
    from slm.train.resolve import model_shape

    shape = shape or model_shape(config)
    torch.manual_seed(config.train.seed)
    with torch.device("meta" if meta else "cpu"):
        model = LanguageModel(shape).train()
    return model, shape


def _batches(config: RunConfig, vocab_size: int) -> Iterator[Any]:
    """Seeded random blocks, int32 [micro_batch, seq_len + 1], without end. Ids are as frequent as words by Zipf's law,
    so that as many different ones are in a block as in text, about."""
    import numpy as np

    generator = np.random.default_rng(config.train.seed)
    while True:
        yield like_words(generator.random((config.train.micro_batch, config.train.seq_len + 1)), vocab_size)


def like_words(uniform: "np.ndarray", vocab_size: int) -> "np.ndarray":
    """Ids below ``vocab_size``, int32, as frequent as words by Zipf's law, from uniform numbers in [0, 1)."""
    return ((vocab_size + 1) ** uniform - 1).astype("int32")


def _result(task: Task, shape: ModelConfig, seconds: list[float], first: float) -> dict[str, Any]:
    """The figures of steps that took ``seconds``; ``first``: the first step with everything before it."""
    train = task.config.train
    tokens = train.micro_batch * task.grad_accum * train.seq_len
    step = median(seconds[task.warmup :])
    flops = train.flops_per_token(shape) * tokens
    return {
        "tokens_per_s": tokens / step,
        "gflops": flops / step / 1e9,
        "first_step_s": first,
        "peak_rss_gb": peak_rss_bytes() / 2**30,
    }


def gemm_peak_gflops(precision: str) -> float:
    """The best rate of ``F.linear`` on this machine, GFLOP/s.

    It is the fastest of 20 products of each size, 2048 x 768 x 2048 and 2048 x 2048 x 2048.
    """
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


CONTENDERS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "ours": ours,
    "compiled": compiled,
    "eager": eager,
    "hf_trainer": hf_trainer,
    **{f"lora{rank}": partial(lora, rank=rank) for rank in (4, 16, 64)},
}
