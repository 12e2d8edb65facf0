"""The options of ``python -m slm.export.bench``, and which files they stand for. configs/bench_quant.yaml holds the
same defaults.

Tested in tests/export/bench/test_sweep.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slm.data.errors import UserError
from slm.evaluate.config import TextOptions
from slm.export.config import UNQUANTIZED, CalibrationConfig, check_quant_and_threads, resolve_types
from slm.export.quantize import base_type
from slm.export.target import is_target, parse_target
from slm.llama.blocks.grids import KINDS
from slm.llama.gguf_check import GGML_TYPES

QUANT = (
    *("f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "iq4_nl", "iq4_xs", "q3_k_m", "iq3_m", "iq3_xxs", "q2_k"),
    *("tq2_0", "auto", "auto:1%", "auto:4.5", "auto:3.5"),
)
NEEDS_IMATRIX = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
"""ggml types that llama.cpp does not write without an importance matrix (tensor_requires_imatrix, llama-quant.cpp)."""
NEEDS_IMATRIX_FILES = ("q2_k_s", "iq3_xs")
"""File types of which some tensors need one."""


@dataclass(frozen=True, kw_only=True)
class SweepEvalConfig(TextOptions):
    """The text that the files are compared on. Without ``text``, it is the run's validation.txt, else WikiText-2's raw
    test set."""

    max_tokens: int | None = 16_384
    kl_tokens: int = 4_096
    """About how many positions have their whole distribution compared."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_tokens < 16:
            raise UserError(f"eval.kl_tokens={self.kl_tokens} must be at least 16")


@dataclass(frozen=True, kw_only=True)
class SpeedConfig:
    """How the files are timed: one sequence, first its prompt in one batch, then token by token."""

    prefill: int = 512
    """Tokens of the prompt."""
    decode: int = 64
    """Tokens after it."""
    rounds: int = 5
    """Times every file is measured; 0: never."""

    def __post_init__(self) -> None:
        if self.prefill < 1 or self.decode < 1 or self.rounds < 0:
            raise UserError("speed.prefill and speed.decode must be at least 1, speed.rounds at least 0")


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """The command's configuration."""

    run: Path
    """A run, one of its checkpoints, or a Hugging Face model directory."""
    quant: list[str] = field(default_factory=lambda: list(QUANT))
    """Types to measure, any case; ``auto...``: a type per tensor, chosen for a goal."""
    base: Literal["f32", "f16", "bf16"] = "f32"
    """The reference: quantized types are made from it and compared with it."""
    rounding: list[str] = field(default_factory=lambda: ["nearest"])
    """nearest: llama.cpp's rounding; gptq: additional rows, for files with compensated rounding (export's option)."""
    plain_below: float = 5.0
    """Types of fewer bits per weight are made without the importance matrix too."""
    out: Path | None = None
    """Where the temporary folder and ``quantization/`` (rows and page) are made; None: the run's directory."""
    threads: int | None = None
    """CPU threads; None for the physical cores that this process may use."""
    eval: SweepEvalConfig = field(default_factory=SweepEvalConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    speed: SpeedConfig = field(default_factory=SpeedConfig)

    def __post_init__(self) -> None:
        check_quant_and_threads(self.quant, self.threads)
        if not self.rounding or not set(self.rounding) <= {"nearest", "gptq"}:
            raise UserError(
                f"rounding={','.join(self.rounding) or '[]'} must be of nearest and gptq, for example "
                "rounding=nearest,gptq"
            )


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One file to make."""

    kind: str
    imatrix: bool
    rounding: str = "nearest"

    @property
    def file(self) -> str:
        """Stem of the temporary file's name."""
        kind = parse_target(self.kind).encoding if is_target(self.kind) else self.kind
        return kind if self.rounding == "nearest" else f"{kind}-{self.rounding}"

    @property
    def label(self) -> str:
        """In the table, and of the kept row."""
        rounding = "" if self.rounding == "nearest" else f" {self.rounding}"
        return f"{self.kind}{rounding}{'' if self.imatrix or self.kind in UNQUANTIZED else ' without imatrix'}"


def variants(config: SweepConfig) -> list[Variant]:
    """The files to make, the reference first. UserError for a type that llama.cpp does not write, and for gptq alone
    where no type has it."""
    from slm.llama.quantize import quant_types  # loads llama.cpp

    found = [Variant(kind=config.base, imatrix=False)]
    for kind in resolve_types(config.quant, quant_types()):
        if kind in UNQUANTIZED:
            found += [] if kind == config.base else [Variant(kind=kind, imatrix=False)]
            continue
        for imatrix in _with_imatrix(config, kind):
            found += [
                Variant(kind=kind, imatrix=imatrix, rounding=rounding)
                for rounding in dict.fromkeys(config.rounding)
                if rounding == "nearest" or is_target(kind) or base_type(kind) in KINDS
            ]
    if config.rounding == ["gptq"] and len(found) == 1:
        raise UserError(f"rounding=gptq is for the types {', '.join(KINDS)} and for goals; quant= names none of them")
    return found


def _with_imatrix(config: SweepConfig, kind: str) -> list[bool]:
    """Whether a type's files are made with the importance matrix, without, or one of each."""
    if is_target(kind):
        return [config.calibration.imatrix]
    needs = base_type(kind) in NEEDS_IMATRIX or kind in NEEDS_IMATRIX_FILES
    if needs and not config.calibration.imatrix:
        raise UserError(
            f"{kind} cannot be made without an importance matrix: leave it out of quant=, "
            "or give calibration.imatrix=true"
        )
    if not config.calibration.imatrix:
        return [False]
    return [True, False] if nominal_bits(kind) < config.plain_below and not needs else [True]


def nominal_bits(kind: str) -> float:
    """Bits per weight of the ggml type that most matrices of a file type get."""
    _, block, size = GGML_TYPES[base_type(kind)]
    return 8 * size / block
