"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685): W + scale * B A, with scale = alpha / rank.

An adapter on the disk is a directory as PEFT writes and reads it: ``adapter_config.json`` and
``adapter_model.safetensors``. A checkpoint of a run that trains one holds it in the folder ``adapter``.

Shape suffixes: O output rows, I input columns of a weight, R the adapter's rank.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from slm.data.errors import UserError
from slm.report import atomic_write_json

FOLDER = "adapter"
"""Where a checkpoint holds its adapter."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
FINGERPRINT = "slm.base_fingerprint"
"""In the metadata of ``adapter_model.safetensors``: the ``fingerprint`` of the base's weights. PEFT reads no metadata
there; older versions of it refuse a key of others in ``adapter_config.json``."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The adapter of a model."""

    rank: int
    alpha: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    """A [R, I] and B [O, R], f32, by the name of the weight that they change."""
    base: str = ""
    """The model that it belongs to: a directory, or a name on the Hub."""
    base_fingerprint: str = ""
    """Fingerprint of that model's weights (``slm.model.fingerprint``); empty for an adapter from elsewhere."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def part_name(weight: str, part: str) -> str:
    """``model.layers.0.mlp.up_proj.weight`` and ``A`` -> ``model.layers.0.mlp.up_proj.lora_A.weight``."""
    return f"{weight.removesuffix('.weight')}.lora_{part}.weight"


def target_weights(names: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Those of a model's weights that an adapter of these ``targets`` changes."""
    ends = tuple(f".{target}.weight" for target in targets)
    return [name for name in names if name.endswith(ends)]


def peft_tensors(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The content of ``adapter_model.safetensors``, by PEFT's names."""
    return {
        _PREFIX + part_name(weight, part): tensor
        for weight, pair in pairs.items()
        for part, tensor in zip("AB", pair, strict=True)
    }


def write_config(directory: Path, *, rank: int, alpha: float, targets: Iterable[str], base: str) -> None:
    """Write ``adapter_config.json``. ``base``: the model's directory, or its name on the Hub."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "target_modules": list(targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    atomic_write_json(directory / CONFIG, config)


def is_adapter(directory: Path) -> bool:
    """Whether PEFT would load an adapter from ``directory``."""
    return (directory / CONFIG).is_file()


def read(directory: Path) -> Adapter:
    """The adapter in a PEFT directory. UserError where it is damaged, or of a kind that is not plain LoRA."""
    path = directory / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        tensors = load_file(directory / WEIGHTS)
        with safe_open(directory / WEIGHTS, framework="pt") as file:
            base_fingerprint = (file.metadata() or {}).get(FINGERPRINT, "")
    except FileNotFoundError as error:
        raise UserError(
            f"{error.filename or directory / WEIGHTS} does not exist: {directory} holds no adapter"
        ) from None
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the adapter in {directory} cannot be read: {error}; save or download it again") from None
    _check_kind(config, path)
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, tensor in tensors.items():
        weight, part, _ = name.removeprefix(_PREFIX).partition(".lora_A.weight")
        if not part:
            continue
        b_name = name.replace(".lora_A.", ".lora_B.")
        if b_name not in tensors:
            raise UserError(f"{directory / WEIGHTS} lacks {b_name}: save or download it again")
        pairs[f"{weight}.weight"] = (tensor.float(), tensors[b_name].float())
    if not pairs or 2 * len(pairs) != len(tensors):
        raise UserError(
            f"{directory / WEIGHTS} holds other tensors than pairs of lora_A and lora_B: only those are read"
        )
    ranks = {len(a_RI) for a_RI, _ in pairs.values()}
    if ranks != {config.get("r")}:
        raise UserError(f"{directory}: {CONFIG} says rank {config.get('r')}, its tensors have {sorted(ranks)}")
    base = str(config.get("base_model_name_or_path") or "")
    return Adapter(
        rank=config["r"], alpha=float(config["lora_alpha"]), pairs=pairs, base=base, base_fingerprint=base_fingerprint
    )


def _check_kind(config: dict[str, Any], path: Path) -> None:
    unknown = ("use_dora", "use_rslora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern")
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path} is of the type {config.get('peft_type')!r}: only LORA is supported")
    if found := next((name for name in unknown if config.get(name)), None):
        raise UserError(f"{path} has {found}={config[found]!r}: only plain LoRA is supported")
