"""An adapter's base that stays quantized in memory: how it is loaded, and when.

Layers are held as Q8_0 or Q4_0 blocks, embedding and head as Q8_0, and unpacked when the kernels pack them. Blocks of
these types are found again in the values that they stand for: layers that a GGUF file holds so lose nothing.

Tested in tests/train/lora/test_held_base.py.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from slm.data.errors import UserError
from slm.kernels.fused import unsupported_shape
from slm.machine.hardware import give_back_freed_memory
from slm.machine.memory import available_bytes
from slm.model import resize
from slm.model.checkpoint import load_config
from slm.model.config import ModelConfig
from slm.model.held.held_model import assemble
from slm.model.transformer import LanguageModel
from slm.train.config import RunConfig
from slm.train.environment import Environment
from slm.train.memory import GIB, adapted_bytes, expected_value_bytes, step_bytes

KINDS = {8: "q8_0", 4: "q4_0"}
BLOCK = 32
"""Values of a block: rows that are no multiple of it stay f32."""


@dataclass(frozen=True)
class BaseBits:
    """How an adapter's base is held."""

    bits: int
    """32: f32; 8 or 4: in blocks of this many bits."""
    line: str | None = None
    """What was chosen, and why."""


def choose(config: RunConfig, shape: ModelConfig, environment: Environment, *, processes: int) -> BaseBits:
    """How the run's base is held. UserError where it cannot be held as ``lora.base_bits`` asks."""
    asked, rank = config.lora.base_bits, config.lora.rank
    if asked in KINDS and not rank:
        raise UserError(f"lora.base_bits={asked} is for the base of an adapter: give its rank (tune.lora=16)")
    if not rank or asked == 32:
        return BaseBits(32)
    reason = _hindrance(config, shape, environment, processes)
    if asked is not None:
        if reason:
            raise UserError(f"lora.base_bits={asked} {reason}: leave it out, or give lora.base_bits=32")
        return BaseBits(asked, _line(shape, rank, asked))
    step = step_bytes(shape, config.train, value_bytes=2 if environment.precision == "bf16" else 4)
    free = available_bytes()
    if reason or adapted_bytes(shape, rank) + step <= free:
        return BaseBits(32)
    bits = 8 if adapted_bytes(shape, rank, 8) + step <= free else 4
    return BaseBits(bits, f"{_line(shape, rank, bits)}, since {free / GIB:.1f} GiB of memory are available")


def is_held(config: RunConfig) -> bool:
    """Whether the base will be held in blocks, as far as that is known before the kernels are: as asked for, or since
    f32 does not fit."""
    asked, rank = config.lora.base_bits, config.lora.rank
    if not rank or asked is not None:
        return asked in KINDS and rank > 0
    try:
        shape = load_config(str(config.init_from))
    except UserError:  # the run says so
        return False
    step = step_bytes(shape, config.train, value_bytes=expected_value_bytes(config.train))
    return adapted_bytes(shape, rank) + step > available_bytes()


def _hindrance(config: RunConfig, shape: ModelConfig, environment: Environment, processes: int) -> str | None:
    kernels = environment.kernels
    if kernels is None:
        return "needs the training kernels, which do not run here"
    if found := unsupported_shape(shape, kernels):
        return f"needs the training kernels, and {found}"
    if processes > 1:
        return f"works with one process, not with {processes}"
    if config.preference.loss == "dpo" or config.distill.teacher == "self":
        return "leaves no copy of the base for a reference (preference.loss=dpo, distill.teacher=self)"
    return None


def _line(shape: ModelConfig, rank: int, bits: int) -> str:
    held, plain = adapted_bytes(shape, rank, bits), adapted_bytes(shape, rank)
    return (
        f"the base stays {KINDS[bits].upper()} in memory (lora.base_bits={bits}): {held / GIB:.1f} GiB with the "
        f"adapter's state, {plain / GIB:.1f} in f32"
    )


def load(directory: str | Path, shape: ModelConfig, bits: int, *, spread: range = range(0)) -> LanguageModel:
    """``resize.load_model`` with matrices held in ``bits``; one tensor at a time is in f32."""
    from slm.llama.blocks.held import HeldBlocks  # loads llama.cpp, which may still be compiled while training begins

    def place(name: str, tensor: Tensor) -> HeldBlocks | None:
        if tensor.shape[1] % BLOCK:
            return None
        return HeldBlocks(KINDS[8 if name in resize.TABLES else bits], tensor.float().numpy())

    give_back_freed_memory()  # each matrix is f32 for a moment, and blocks that stay would lie between them
    return assemble(shape, resize.stream_resized(directory, shape, spread=spread), place, where=str(directory))
