"""The options of ``python -m slm.export``; configs/export.yaml holds the same defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slm.data.errors import UserError, nearest
from slm.export.target import is_target, parse_target

UNQUANTIZED = ("f32", "f16", "bf16")
"""Types that are written straight from the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """Text that the importance matrix is measured on."""

    text: Path | None = None
    """A UTF-8 file; None takes the run's calibration.txt, else slm's general text."""
    more_texts: list[Path] = field(default_factory=list)
    """Further UTF-8 files, each measured as ``text`` is; the importance matrix counts all of them."""
    files: list[Path] = field(default_factory=list)
    """Importance matrices (GGUF or .dat, of this program or of llama-imatrix) to use; without ``text`` in place of a
    measurement, with it merged with one."""
    chunks: int = 64
    """Most chunks to run of each text."""
    n_ctx: int = 512
    """Tokens per chunk."""
    output: bool = False
    """Weigh output.weight too."""
    imatrix: bool = True
    """Quantize with an importance matrix at all."""

    def __post_init__(self) -> None:
        if self.chunks < 1 or self.n_ctx < 16:
            raise UserError("calibration.chunks must be at least 1 and calibration.n_ctx at least 16 tokens")


@dataclass(frozen=True, kw_only=True)
class ProofConfig:
    """How much text the files are compared with the checkpoint on."""

    text: Path | None = None
    """A UTF-8 file; None takes the run's validation.txt, else the calibration text."""
    chunks: int = 4
    """Most chunks to compare the predictions of. Perplexity is measured on their second halves."""
    n_ctx: int = 512
    """Tokens per chunk."""
    kl_tokens: int = 512
    """About how many positions are compared in their whole distribution: windows of ``n_ctx``, at least one."""

    def __post_init__(self) -> None:
        if self.chunks < 1 or self.n_ctx < 16 or self.kl_tokens < 16:
            raise UserError("proof.chunks must be at least 1, proof.n_ctx and proof.kl_tokens at least 16")


@dataclass(frozen=True, kw_only=True)
class Naming:
    """What the files are called."""

    name: str | None = None
    """Base of the file names and general.name; None takes the run's name."""
    version: str | None = None
    """Version part of the file names; None takes that of a model from elsewhere, else v1.0."""
    license: str | None = None
    """SPDX name; None takes the model card's, where there is one."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """One export: which checkpoint, which files."""

    run: Path
    """A run, one of its checkpoints, or a Hugging Face model directory."""
    format: Literal["gguf", "onnx", "pt2"] = "gguf"
    """gguf: the files that ``quant`` names. onnx: an ONNX model with its cache. pt2: a program of torch.export. The
    last two hold f32 and leave ``quant``, ``rounding`` and ``calibration`` aside."""
    quant: list[str] = field(default_factory=lambda: ["q4_k_m"])
    """Types to write, any case; aliases and repetitions are resolved by ``resolve_types``. ``auto...``: a goal, for
    which each tensor's type is chosen (export/target.py)."""
    base: Literal["f32", "f16", "bf16"] = "f32"
    """What quantized types are made from."""
    rounding: Literal["nearest", "gptq"] = "nearest"
    """nearest: llama.cpp's own. gptq: rounded again so that later columns make up for the errors of earlier ones, kept
    where the error on held-out calibration text is smaller."""
    out: Path | None = None
    """Folder of the files."""
    name: str | None = None
    """Base of the file names."""
    version: str | None = None
    """Version part of the file names; None takes that of a model from elsewhere, else v1.0."""
    license: str | None = None
    """SPDX name."""
    pre: str | None = None
    """tokenizer.ggml.pre to write, whatever the tokenizer looks like."""
    private: bool = False
    """The files' record of their run also holds the names of its data files and its sample prompts."""
    threads: int | None = None
    """CPU threads; None for the physical cores that this process may use."""
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    proof: ProofConfig = field(default_factory=ProofConfig)

    def __post_init__(self) -> None:
        check_quant_and_threads(self.quant, self.threads)
        for key in ("name", "version"):
            value = getattr(self, key)
            if value is not None and (not value.strip() or "/" in value or value.startswith(".")):
                raise UserError(f"{key}={value!r} cannot be part of a file name; use letters, digits, - and .")

    def naming(self) -> Naming:
        """What the files are called."""
        return Naming(name=self.name, version=self.version, license=self.license)


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """``python -m slm.export.verify``; configs/verify.yaml holds the same defaults."""

    run: Path
    """A run, or the folder of an export."""


def check_quant_and_threads(quant: Sequence[str], threads: int | None) -> None:
    """``UserError`` where no type is named or the threads are less than one."""
    if not quant:
        raise UserError("quant names no type; give one or more, for example quant=q4_k_m,q8_0")
    for word in quant:
        if is_target(word):
            parse_target(word)
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads} must be at least 1")


def resolve_types(quant: Sequence[str], known: Mapping[str, int]) -> list[str]:
    """The types asked for, lower case, in order, each once, given what llama.cpp offers (name -> ftype).

    An alias counts as what it stands for: ``q4_k,q4_k_m`` is one file, under the more exact name. A goal (``auto:4.5``)
    comes back as ``Target.spelled``. ``UserError`` for a type that llama.cpp does not write.
    """
    found: dict[int | str, str] = {}
    for typed in quant:
        name = typed.strip().lower()
        if is_target(name):
            goal = parse_target(typed).spelled
            found.setdefault(goal, goal)
            continue
        if name not in known and name not in UNQUANTIZED:
            hint = nearest(name, [*UNQUANTIZED, *known])
            raise UserError(
                f"quant {typed!r} is not a type llama.cpp writes; {hint or 'for example q4_k_m'} "
                f"(all of them: {', '.join(sorted({*UNQUANTIZED, *known}))})"
            )
        number = name if name in UNQUANTIZED else known[name]
        exact = max((other for other, value in known.items() if value == number), key=len, default=name)
        found.setdefault(number, name if name in UNQUANTIZED else exact)
    return list(found.values())
