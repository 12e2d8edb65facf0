"""How fast this machine trains: the real step, measured at a few shapes, and from them the time of any other shape.

A measurement takes at most about a minute. It is kept in the cache for this machine and build, so that the next time
takes none.

Tested in tests/train/budget/test_machine.py.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import numpy as np

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text, cache_home, fingerprint
from slm.machine import busy
from slm.machine.crashes import DiedError, in_fresh_process
from slm.machine.record import machine_record, sources_fingerprint
from slm.machine.waiting import wait_awake
from slm.model.config import ModelConfig
from slm.train.budget.shapes import SHAPES
from slm.train.config import FIRST_WEIGHTS, NS_STEPS, OptimConfig, TrainConfig

if TYPE_CHECKING:
    from slm.train.environment import Environment

SECONDS = 45.0
"""Seconds after which no further shape is measured."""
WIDTHS = (256, 512, 1024)
DEPTHS = (1, 3)
"""Two depths per width. Their difference is the time of the layers, and the remainder that of embedding and head."""
VOCAB, LARGE_VOCAB = 4096, 16_384
"""Vocabulary of the timed shapes, and of one more shape. The difference of their updates is the cost of large
tables."""
SEQ_LEN = 512
SEQUENCES = {256: 8, 512: 4, 1024: 2}
"""Sequences per micro-batch, by width."""
SAMPLED_WORDS = 2048
"""Default number of tokens in the sampled softmax of runs with a large vocabulary (``train.sampled_softmax``)."""
SAMPLED_SEQUENCES = {256: 4, 512: 4, 1024: 2}
"""Sequences per micro-batch with a sampled softmax, by width."""
SAMPLED_PASSES = {256: 2, 512: 1, 1024: 1}
"""Micro-batches per step with a sampled softmax, by width. A step also clears the tables' gradients once."""
BUSY = 0.6
"""Least share of the cores' time that the measured steps must have had for a measurement to be kept."""
PASSES = 3
"""Timed steps per shape after a warm-up step. The fastest counts, since other programs only add time."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The measured step of one shape, with one micro-batch."""

    d_model: int
    n_layers: int
    vocab_size: int
    tokens: int
    pass_seconds: float
    """Seconds of the forward and backward pass."""
    update_seconds: float
    """Seconds of the gradient norm and the optimizer."""
    large_update_seconds: float
    """Seconds of the same with a vocabulary of LARGE_VOCAB."""
    sampled_seconds: float
    """Seconds of the forward and backward pass of the shallower shape with a sampled softmax: ``sampled_words`` of
    LARGE_VOCAB."""
    sampled_tokens: int
    sampled_words: int


@dataclass(frozen=True)
class Rates:
    """Measured rates at one width."""

    d_model: int
    layer_flops: float
    """FLOP/s of the layers, forward and backward, attention included."""
    head_flops: float
    """FLOP/s of the head; the time includes the embedding and the fixed cost of a micro-batch."""
    matrix_update: float
    """Seconds of an update per parameter of the layers' matrices."""
    table_update: float
    """Seconds of an update per parameter of embedding and head."""
    sampling: float = 0.0
    """Seconds per token that a sampled softmax adds to the products: sampling tokens, gathering their rows of the head,
    and scattering the rows' gradients."""


@dataclass(frozen=True)
class Machine:
    """This machine's measured rates by width."""

    rates: tuple[Rates, ...]
    memory_gb_per_s: float
    """Memory bandwidth of a copy in GB/s, bytes read plus bytes written."""
    precision: str
    seconds: float
    """Seconds that the measurement took."""
    limit: float
    """Seconds that the measurement was allowed to take."""
    share: float = 1.0
    """Processor time of the measured steps over wall time times threads. Below 1 where other programs used the
    cores."""

    def step_seconds(self, shape: ModelConfig, tokens: int, seq_len: int, words: int = 0) -> float:
        """Seconds of an optimizer step of ``tokens`` tokens in sequences of ``seq_len``.

        ``words``: tokens of the sampled softmax; 0: a full softmax.
        """
        rates = self.at(shape.d_model)
        head = 6 * (words or shape.vocab_size) * shape.d_model
        layers = shape.flops_per_token(seq_len, words) - head
        tables = shape.vocab_size * shape.d_model * (1 if shape.tie_embeddings else 2)
        update = shape.n_layer_matrix_params * rates.matrix_update + tables * rates.table_update
        sampling = rates.sampling if words else 0.0
        return tokens * (layers / rates.layer_flops + head / rates.head_flops + sampling) + update

    def tokens_per_s(self, shape: ModelConfig, tokens: int, seq_len: int, words: int = 0) -> float:
        """Training tokens per second in steps of ``tokens``; ``words`` as for ``step_seconds``."""
        return tokens / self.step_seconds(shape, tokens, seq_len, words)

    def at(self, d_model: int) -> Rates:
        """The rates of a width: between measured ones in proportion to the logarithm, beyond them the nearest's."""
        x = [math.log(each.d_model) for each in self.rates]
        names = ("layer_flops", "head_flops", "matrix_update", "table_update", "sampling")
        values = [
            float(np.interp(math.log(d_model), x, [getattr(each, name) for each in self.rates])) for name in names
        ]
        return Rates(d_model, *values)

    def decode_tokens_per_s(self, file_bytes: float, n_layers: int) -> float:
        """About what llama.cpp writes for one reader: the file once through memory for each token, and its overhead.

        The overhead, a tenth of a millisecond and 30 microseconds a layer, was measured with small models
        (docs/results/serving-speed.md).
        """
        return 1 / (file_bytes / (self.memory_gb_per_s * 1e9) + 1e-4 + 3e-5 * n_layers)


def machine_name(machine: Machine) -> str:
    """How a table names the measured machine, with a mark where other programs had a part of it."""
    return "this machine" + (f" (BUSY: measured with {machine.share:.0%} of its cores)" if machine.share < BUSY else "")


def rates_of(timings: Sequence[Timing]) -> tuple[Rates, ...]:
    """The rates of each width that was measured at two depths."""
    found = []
    for width in sorted({each.d_model for each in timings}):
        low, high = sorted((each for each in timings if each.d_model == width), key=lambda each: each.n_layers)
        depths = high.n_layers - low.n_layers
        spec = spec_of(width, low.n_layers, low.vocab_size)
        head = 6 * low.vocab_size * width
        layer_flops = (spec.flops_per_token(SEQ_LEN) - head) / low.n_layers * low.tokens
        # On a busy machine the difference of two times may be far off: at least a fifth of the deeper one's share.
        layer_s = max((high.pass_seconds - low.pass_seconds) / depths, high.pass_seconds / high.n_layers / 5)
        head_s = max(low.pass_seconds - low.n_layers * layer_s, low.pass_seconds / 20)
        logits_s = head_s / low.tokens * low.sampled_words / low.vocab_size
        known = low.sampled_tokens * (low.n_layers * layer_s / low.tokens + logits_s)
        parameters = spec.n_layer_matrix_params / low.n_layers
        layer_u = max((high.update_seconds - low.update_seconds) / depths, high.update_seconds / high.n_layers / 5)
        # Not what layers leave of an update: a budget's tables are many times as large, and so would the error be.
        table_u = max(low.large_update_seconds - low.update_seconds, 0.0)
        found.append(
            Rates(
                d_model=width,
                layer_flops=layer_flops / layer_s,
                head_flops=head * low.tokens / head_s,
                matrix_update=layer_u / parameters,
                table_update=table_u / (2 * (LARGE_VOCAB - low.vocab_size) * width),
                sampling=max(low.sampled_seconds - known, 0.0) / low.sampled_tokens,
            )
        )
    return tuple(found)


def spec_of(width: int, n_layers: int, vocab_size: int) -> ModelConfig:
    """The model of ``width`` and depth that is measured, with the proportions of the shapes that are chosen from."""
    nearest = min(SHAPES, key=lambda each: (abs(each.d_model - width), each.ffn_dim))
    return replace(nearest, n_layers=n_layers).model_config(vocab_size, SEQ_LEN, tied=False)


def measured(train: TrainConfig, optim: OptimConfig, seconds: float = SECONDS) -> Machine:
    """This machine's speed with the run's kernels, number format and threads: from the cache, or measured now.

    ``seconds``: no further width is measured after this time. What a shorter measurement left out is measured by one
    that has more time.
    """
    record = machine_record()
    what = (
        train.threads,
        train.precision,
        train.kernels,
        train.kernel_bits(new=True),
        optim.name,
        NS_STEPS,
    )
    build = (record["cpu"], record["cores"], record["versions"].get("torch"), sources_fingerprint())
    path = cache_home() / "training_speed" / f"{fingerprint((5, what, build))}.json"
    try:
        kept = json.loads(path.read_text())
        machine = Machine(**{**kept, "rates": tuple(Rates(**each) for each in kept["rates"])})
        if len(machine.rates) == len(WIDTHS) or seconds <= machine.limit:
            return machine
    except (OSError, ValueError, TypeError, KeyError):
        pass
    print(f"measuring how fast this machine trains (once, a minute if it is idle; kept in {path})", flush=True)
    machine = measure(train, optim, seconds)
    if machine.share < BUSY:
        print(
            f"  the machine was busy with other things: the steps had {machine.share:.0%} of its cores, and these "
            "speeds are too low; they are measured again the next time"
        )
        return machine
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, json.dumps(asdict(machine), indent=1))
    return machine


def measure(train: TrainConfig, optim: OptimConfig, seconds: float = SECONDS) -> Machine:
    """Measure in its own process, so that its memory and threads are gone afterwards."""
    others: busy.Others | None = None

    def waiting(process: int, elapsed: float) -> None:
        nonlocal others
        if others is None:
            others = busy.Others(own=[process])
            return
        share = others.share()
        taken = "" if share is None or share < busy.BUSY else f": other programs use {share:.0%} of the cores"
        print(f"  still measuring after {elapsed:.0f} s{taken}", flush=True)

    try:
        return in_fresh_process(_measure, train, optim, seconds, waiting=waiting)
    except DiedError:
        raise UserError(
            "the process that measures this machine was killed or crashed: is there memory enough? Name a preset "
            "instead (preset=10m), which needs no measurement"
        ) from None


def _measure(train: TrainConfig, optim: OptimConfig, seconds: float) -> Machine:
    wait_awake()  # as training does
    from slm.machine.probes import memory_gb_per_s
    from slm.train.environment import prepare

    # torch.compile would take longer than the measurement. Where there are no kernels, the true step is faster.
    train = replace(train, micro_batch=1, grad_accum=1, gradient_checkpointing=False)
    environment = prepare(train, bits=train.kernel_bits(new=True), compiles=False)
    began = perf_counter()  # the kernels, which are built here the first time, are needed anyway
    timings: list[Timing] = []
    computed = elapsed = 0.0
    for width in WIDTHS:
        if timings and expected_seconds(timings, width) > seconds - (perf_counter() - began):
            print(f"  width {width:,}: left out, it would take too long; the rates of the widest before it count")
            break
        clocks = process_time(), perf_counter()
        these = _time_width(train, optim, environment, width)
        computed, elapsed = computed + process_time() - clocks[0], elapsed + perf_counter() - clocks[1]
        timings += these
        rate = these[-1].tokens / (these[-1].pass_seconds + these[-1].update_seconds)
        print(f"  width {width:,}, {these[-1].n_layers} layers: {rate:,.0f} tokens/s", flush=True)
    speed = memory_gb_per_s(environment.threads, megabytes=64)
    share = computed / (elapsed * environment.threads)
    return Machine(rates_of(timings), speed, environment.precision, perf_counter() - began, seconds, share)


def expected_seconds(timings: Sequence[Timing], width: int) -> float:
    """About how long measuring the next ``width`` takes, after the ``timings`` of the one before it.

    Passes make as many FLOP/s as there. An update takes, for each parameter of the matrices, time in proportion to the
    width: Muon multiplies them by themselves.
    """
    low, high = timings[-2:]
    before = low.d_model
    passes = low.pass_seconds + high.pass_seconds + SAMPLED_PASSES[before] * low.sampled_seconds
    done = sum(spec_of(before, t.n_layers, VOCAB).flops_per_token(SEQ_LEN) * t.tokens for t in (low, high))
    ahead = sum(spec_of(width, n, VOCAB).flops_per_token(SEQ_LEN) * SEQUENCES[width] * SEQ_LEN for n in DEPTHS)
    updates = low.update_seconds + high.update_seconds + low.large_update_seconds
    matrices = [spec_of(each, DEPTHS[-1], VOCAB).n_layer_matrix_params for each in (before, width)]
    updates *= matrices[1] / matrices[0] * width / before
    return (PASSES + 1) * (passes * ahead / done + updates)


def _time_width(train: TrainConfig, optim: OptimConfig, environment: "Environment", width: int) -> list[Timing]:
    """Both depths, step by step in turn: what slows this machine down for some seconds slows both down."""
    import torch

    from slm.train.objective.sampled_softmax import draw

    small = [
        _steps(train, optim, environment, spec_of(width, n, VOCAB), _block(VOCAB, SEQUENCES[width])) for n in DEPTHS
    ]
    block = _block(LARGE_VOCAB, SAMPLED_SEQUENCES[width])
    words = draw(torch.from_numpy(block[:, 1:].astype(np.int64)), LARGE_VOCAB, SAMPLED_WORDS)
    assert words is not None
    shape, passes = spec_of(width, DEPTHS[0], LARGE_VOCAB), SAMPLED_PASSES[width]
    large = _steps(train, optim, environment, shape, block, passes=passes, sampled=SAMPLED_WORDS)
    turns = [[next(each) for each in (*small, large)] for _ in range(PASSES + 1)][1:]
    *both, (sampled_seconds, large_update) = [
        [min(times) for times in zip(*steps, strict=True)] for steps in zip(*turns, strict=True)
    ]
    return [
        Timing(
            d_model=width,
            n_layers=depth,
            vocab_size=VOCAB,
            tokens=SEQUENCES[width] * SEQ_LEN,
            pass_seconds=pass_seconds,
            update_seconds=update_seconds,
            large_update_seconds=large_update,
            sampled_seconds=sampled_seconds / passes,
            sampled_tokens=block[:, 1:].size,
            sampled_words=len(words.ids),
        )
        for depth, (pass_seconds, update_seconds) in zip(DEPTHS, both, strict=True)
    ]


def _block(vocab_size: int, rows: int) -> np.ndarray:
    """Sequences of random tokens, int32 [rows, SEQ_LEN + 1]."""
    return np.random.default_rng(0).integers(1, vocab_size, (rows, SEQ_LEN + 1), dtype=np.int32)


def _steps(
    train: TrainConfig,
    optim: OptimConfig,
    environment: "Environment",
    shape: ModelConfig,
    block: np.ndarray,
    *,
    passes: int = 1,
    sampled: int = 0,
) -> Iterator[tuple[float, float]]:
    """Steps of ``passes`` passes over ``block`` without an end: the seconds of each one's passes, and of its update."""
    from slm.model.transformer import LanguageModel
    from slm.train.backend import make_backend
    from slm.train.objective.sampled_softmax import plain_text
    from slm.train.optim.make import make_optimizer
    from slm.train.step import train_step

    model = LanguageModel(shape, FIRST_WEIGHTS[optim.name]).train()
    optimizer = make_optimizer(model, optim, environment.precision, kernels=environment.kernels)
    backend = make_backend(model, replace(train, seq_len=SEQ_LEN, micro_batch=len(block)), environment)
    objective = plain_text(sampled, shape.vocab_size)
    while True:
        start = perf_counter()
        result = train_step(
            model,
            optimizer,
            repeat(block),
            grad_accum=passes,
            grad_clip=0.0,
            lr=1e-4,
            backend=backend,
            objective=objective,
        )
        yield perf_counter() - start - result.update_seconds - result.data_seconds, result.update_seconds
