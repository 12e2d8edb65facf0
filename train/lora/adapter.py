"""A low-rank adapter in training: its matrices A and B are trained, the model's weights stay as they are.

A layer's output is x W^T + scale (x A^T) B^T, by the kernels (``slm/kernels/low_rank.py``) as by autograd: a step
multiplies nothing as large as a weight's gradient, and no second copy of the weights is held. They are merged, to
W + scale * B A, where a checkpoint is written, a few rows at a time.

Shape suffixes: O output rows, I input columns, R rank.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from slm.data.errors import UserError
from slm.kernels.low_rank import LowRank, set_low_rank
from slm.model import checkpoint, lora
from slm.model.fingerprint import fingerprint
from slm.model.layers.held import Values, computed
from slm.model.snapshot import Computed, Rows
from slm.model.transformer import LanguageModel
from slm.train.config import ADAPTER_SCALE, LoraConfig
from slm.train.optim.interface import Trained

TOLERANCE = 1e-3
"""How far merged weights may be from those of a checkpoint that another processor rounded."""


class AdapterParameters(Trained):
    """A and B of a model's linear layers. From now on all of the model's own parameters are frozen.

    B begins as zeros and A as PEFT's does: uniform, up to 1 / sqrt(inputs). Set torch's seed before.
    ``base``: what the adapter belongs to, as its configuration names it.
    """

    def __init__(self, model: LanguageModel, config: LoraConfig, base: str) -> None:
        super().__init__(model)
        self.config, self.base = config, base
        self.targets = config.targets_in(model.config.arch)
        self.base_fingerprint = fingerprint(Values(model))
        weights = dict(model.named_parameters())
        names = lora.target_weights(weights, self.targets)
        model.requires_grad_(False)
        self.pairs = {name: _new_pair(weights[name], config.rank) for name in names}
        for name, (a_RI, b_OR) in self.pairs.items():
            set_low_rank(weights[name], LowRank(a_RI, b_OR, ADAPTER_SCALE))
            layer = model.get_submodule(name.removesuffix(".weight"))
            layer.register_forward_hook(partial(_add_term, a_RI, b_OR, ADAPTER_SCALE))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for weight, pair in self.pairs.items():
            for part, parameter in zip("AB", pair, strict=True):
                yield lora.part_name(weight, part), parameter

    def merged(self) -> dict[str, Computed]:
        """W + scale * B A where there is an adapter, as A and B are now; the other weights as they are, since they
        never change."""
        weights = computed(self.model)
        for name, (a, b) in self.pairs.items():
            a_RI, b_OR = (each.detach().numpy().copy() for each in (a, b))
            rows = partial(_merged, weights[name].rows, a_RI, b_OR * np.float32(ADAPTER_SCALE))
            weights[name] = Computed(weights[name].shape, rows)
        return weights

    def load(self, directory: Path) -> None:
        """Take A and B of a checkpoint. UserError where they belong to another base, or the merged weights are not the
        checkpoint's."""
        saved = lora.read(directory / lora.FOLDER)
        if saved.pairs.keys() != self.pairs.keys() or (saved.rank, saved.alpha) != (
            self.config.rank,
            self.config.alpha,
        ):
            raise UserError(
                f"the adapter in {directory} has another rank, alpha or targets than this run: give the same lora.* "
                "options, another name=, or resume=never"
            )
        if saved.base_fingerprint not in ("", self.base_fingerprint):
            raise self._other_base(
                directory, f"its fingerprint is {self.base_fingerprint}, not {saved.base_fingerprint}"
            )
        with torch.no_grad():
            for name, pair in saved.pairs.items():
                for parameter, tensor in zip(self.pairs[name], pair, strict=True):
                    parameter.copy_(tensor)
        weights = self.merged()
        with safe_open(directory / checkpoint.WEIGHTS, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                if name in weights and not np.allclose(
                    weights[name].rows(slice(None)), file.get_tensor(name), rtol=TOLERANCE, atol=TOLERANCE * 0.1
                ):
                    raise self._other_base(directory, f"{name} differs")

    def _other_base(self, directory: Path, reason: str) -> UserError:
        return UserError(
            f"the base of {directory} has changed ({reason}): restore what {self.base} held when the run began, or "
            "start anew with resume=never"
        )

    def adapter_tensors(self) -> dict[str, Tensor]:
        return lora.peft_tensors({name: (a.detach(), b.detach()) for name, (a, b) in self.pairs.items()})

    def describe(self, directory: Path) -> None:
        folder = directory / lora.FOLDER
        folder.mkdir(exist_ok=True)
        config = self.config
        lora.write_config(folder, rank=config.rank, alpha=config.alpha, targets=self.targets, base=self.base)


def _new_pair(weight_OI: Tensor, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    rows, columns = weight_OI.shape
    a_RI = torch.empty(rank, columns).uniform_(-1, 1) / math.sqrt(columns)
    return nn.Parameter(a_RI), nn.Parameter(torch.zeros(rows, rank))


def _add_term(
    a_RI: Tensor, b_OR: Tensor, scale: float, layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor
) -> Tensor:
    """The output of a linear layer with its adapter's term."""
    return out + F.linear(F.linear(inputs[0], a_RI), b_OR) * scale


def _merged(rows: Rows, a_RI: np.ndarray, b_OR: np.ndarray, some: slice) -> np.ndarray:
    """Some rows of a weight with an adapter; ``b_OR`` is scaled. By NumPy: the thread that writes a checkpoint is to
    have no separate workers."""
    return rows(some) + b_OR[some] @ a_RI
