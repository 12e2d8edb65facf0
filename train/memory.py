"""Whether a run fits into memory, and one line with a remedy where memory or disk space has run out."""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slm.data.errors import UserError
from slm.kernels.column_squares import products_bytes
from slm.kernels.head import LEAN_LOGITS
from slm.machine.cpp_build import cpu_flags
from slm.machine.memory import available_bytes
from slm.model.config import ModelConfig
from slm.train.config import EAGER, WITHIN_BACKWARD, TrainConfig
from slm.train.qat.fake_quant import UNWEIGHTED

GIB = 2**30
QAT_BYTES = 5
"""A parameter's quantized value and its part of a block, at most of Q8_0."""


def check_memory(
    shape: ModelConfig,
    config: TrainConfig,
    *,
    optimizer: str = "adamw",
    rank: int = 0,
    base_bits: int = 32,
    frozen: bool = False,
    attention: int = 0,
    value_bytes: int = 2,
    packed: bool = False,
) -> str | None:
    """Refuse (UserError) a model if its training state cannot fit; a warning where a step probably does not.

    The state is what ``state_bytes`` counts, or with an adapter of this ``rank`` the weights, held in
    ``base_bits``, and those of the adapter; with ``train.qat`` the quantized weights, their blocks and what
    rounding makes up for errors with, too, and with a ``frozen`` copy of the model another copy of the weights.
    A step needs at least one micro-batch of hidden states on top (``ModelConfig.activation_bytes``). Where the kernels
    keep ``packed`` weights, there are two more copies of these.

    ``attention``: bytes that a micro-batch's attention keeps, which are refused where they do not fit.
    """
    state, free = adapted_bytes(shape, rank, base_bits) if rank else state_bytes(shape, optimizer), available_bytes()
    state += QAT_BYTES * shape.n_params + _compensation_bytes(shape, config) if config.qat else 0
    state += 4 * shape.n_params if frozen else 0
    if state > free:
        parts = "weights, gradients and moments"
        if rank or optimizer == WITHIN_BACKWARD:
            parts = "the weights and an adapter" if rank else "the weights and one gradient"
        ways = "take a smaller model, or free some memory"
        if not rank and state_bytes(shape, WITHIN_BACKWARD) < min(state, free):
            ways = f"{ways}, or use optim={WITHIN_BACKWARD} ({state_bytes(shape, WITHIN_BACKWARD) / GIB:.1f} GiB)"
        raise UserError(
            f"{shape.n_params:,} parameters need {state / GIB:.1f} GiB for {parts}, but "
            f"{free / GIB:.1f} GiB of memory are available: {ways}"
        )
    if state + attention > free:
        ways = advice(config)
        if config.kernels in (False, EAGER):
            ways = f"the training kernels (train.kernels=auto), {ways}"
        raise UserError(
            f"without the training kernels attention over train.seq_len={config.seq_len:,} needs "
            f"{attention / GIB:,.1f} GiB, which grow with its square, but {free / GIB:.1f} GiB of memory are "
            f"available: use {ways}"
        )
    step = attention + step_bytes(shape, config, value_bytes=value_bytes)
    step += 2 * value_bytes * shape.n_params if packed else 0
    if state + step > free:
        return (
            f"warning: a step needs about {(state + step) / GIB:.1f} GiB, {free / GIB:.1f} GiB are available; "
            f"if it does not fit: {advice(config)}"
        )
    return None


def state_bytes(shape: ModelConfig, optimizer: str) -> int:
    """What training holds whatever the batch: f32 weights, gradients and two moments, or, where the update is made
    inside the backward pass, weights, the largest gradient and the sums of its rows and columns."""
    if optimizer != WITHIN_BACKWARD:
        return shape.training_state_bytes
    largest = max(shape.vocab_size, 2 * shape.ffn_dim) * shape.d_model  # gate and up have one gradient
    return 4 * (shape.n_params + largest)


def adapted_bytes(shape: ModelConfig, rank: int, bits: int = 32) -> int:
    """The weights held in ``bits``, and an adapter of all layers: f32 values, gradients and two moments.

    Below 32 bits a block of 32 values has a scale of 16, and embedding and head have 8.
    """
    c, attended = shape, shape.n_heads * shape.head_dim
    sides = 2 * (c.d_model + attended) + 2 * (c.d_model + c.n_kv_heads * c.head_dim) + 3 * (c.d_model + c.ffn_dim)
    table = c.vocab_size * c.d_model
    tables = table * (1 if c.tie_embeddings else 2)
    held = 4 * c.n_params if bits == 32 else (tables * 34 + (c.n_params - tables) * (4 * bits + 2)) // 32
    return held + 16 * rank * c.n_layers * sides


def expected_value_bytes(config: TrainConfig) -> int:
    """Bytes of a value of an activation, as far as that is known before a format has been measured: bf16 is faster than
    f32 on processors with instructions for it."""
    if config.precision == "auto":
        return 2 if "avx512_bf16" in cpu_flags() else 4
    return 2 if config.precision == "bf16" else 4


def step_bytes(shape: ModelConfig, config: TrainConfig, *, value_bytes: int) -> int:
    """What a micro-batch's layers keep for their backward pass and the head's logits, at least."""
    tokens = config.micro_batch * config.seq_len
    logits = value_bytes * min(LEAN_LOGITS, tokens * shape.vocab_size)
    return logits + shape.activation_bytes(tokens, recompute=config.recompute, value_bytes=value_bytes)


def _compensation_bytes(shape: ModelConfig, config: TrainConfig) -> int:
    """Bytes of the inputs' second moments and their factors, which stay: f32, for each input of a layer's matrices."""
    if config.qat in UNWEIGHTED:
        return 0
    return 2 * shape.n_layers * products_bytes(shape)


def advice(config: TrainConfig) -> str:
    """What needs less memory, the cheapest first."""
    ways = []
    if config.micro_batch > 1:
        halves = config.micro_batch % 2 == 0
        smaller, passes = (config.micro_batch // 2, 2) if halves else (1, config.micro_batch)
        ways.append(f"train.micro_batch={smaller} train.grad_accum={config.grad_accum * passes} (the same batch)")
    if config.recompute != "layer":
        ways.append("train.gradient_checkpointing=true")
    ways.append("a smaller train.seq_len")
    return ", ".join(ways[:-1]) + (", or " if len(ways) > 1 else "") + ways[-1]


@contextmanager
def resource_errors(config: TrainConfig, root: Path) -> Iterator[None]:
    """Turn errors about memory or disk space that has run out into one UserError that says what helps."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"out of memory: use {advice(config)}") from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise UserError(f"out of memory: use {advice(config)}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(_no_room(error.filename or root, error.strerror or str(error), root)) from error
        raise
    except Exception as error:
        if "No space left on device" in str(error):  # as libraries in Rust report it
            raise UserError(_no_room(root, str(error), root)) from error
        if not isinstance(error, RuntimeError):
            raise
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error).lower():
            raise
        wanted = re.search(r"allocate (\d+) bytes", str(error))
        asked = f" ({int(wanted.group(1)) / GIB:.1f} GiB were asked for at once)" if wanted else ""
        raise UserError(f"out of memory{asked}: use {advice(config)}") from error


def _no_room(where: str | Path, reason: str, root: Path) -> str:
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return (
        f"{where} could not be written ({reason}; {shutil.disk_usage(there).free:,} bytes are free there): make room, "
        "then the same command goes on from the last checkpoint"
    )
