"""A low-rank adapter in training: its matrices A and B are trained, the model's weights are W + scale * B A.

The model computes with the merged weights, so a step is as fast as that of full tuning and needs no other kernels.
With the kernels a weight's gradient dW = dy^T x is not computed: dB = scale * dy^T (x A^T), dA = scale * (dy B)^T x.
Where autograd finishes one it is projected at once (dB = scale * dW A^T, dA = scale * B^T dW) and given up: only a few
full gradients exist at a time. These are the gradients that autograd gives through W + scale * B A.

Shape suffixes: O output rows, I input columns, R rank.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm.data.errors import UserError
from slm.kernels.gradients import run_hooks, set_projection
from slm.kernels.native import Kernels
from slm.kernels.operations import weight_gradient
from slm.model import checkpoint, lora
from slm.model.fingerprint import fingerprint
from slm.model.head_loss import HeadLoss
from slm.model.transformer import LanguageModel
from slm.train.backend import Backend
from slm.train.config import LoraConfig
from slm.train.optim.trained import Trained

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
        self.base_fingerprint = fingerprint(model.state_dict())
        weights = dict(model.named_parameters())
        names = lora.target_weights(weights, self.targets)
        for name, weight in weights.items():
            weight.requires_grad_(name in names)
        self._weights = {name: weights[name] for name in names}
        self._frozen = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self.pairs = {name: _new_pair(weight, config.rank) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.register_post_accumulate_grad_hook(partial(self._project, *self.pairs[name]))
            set_projection(weight, partial(self._project_product, *self.pairs[name]))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for weight, pair in self.pairs.items():
            for part, parameter in zip("AB", pair, strict=True):
                yield lora.part_name(weight, part), parameter

    @torch.no_grad()
    def merge(self) -> None:
        """Give the model its weights: W + scale * B A."""
        for name, weight in self._weights.items():
            a_RI, b_OR = self.pairs[name]
            torch.addmm(self._frozen[name], b_OR, a_RI, alpha=self.config.scale, out=weight.detach())

    @torch.no_grad()
    def _project(self, a_RI: nn.Parameter, b_OR: nn.Parameter, weight: Tensor) -> None:
        """Turn a weight's gradient into that of its A and B, which are complete for this micro-batch then."""
        if weight.grad is None:  # the kernels have projected it
            return
        gradient_OI, weight.grad = weight.grad, None
        self._add(a_RI, b_OR.T @ gradient_OI)
        self._add(b_OR, gradient_OI @ a_RI.T)
        run_hooks(a_RI, b_OR)

    @torch.no_grad()
    def _project_product(self, a_RI: nn.Parameter, b_OR: nn.Parameter, dy: Tensor, x: Tensor, kernels: Kernels) -> None:
        """The same from the factors of the weight's gradient dy^T x, which then need not be multiplied: dA = scale *
        (dy B)^T x and dB = scale * dy^T (x A^T) are a tenth of the work."""
        rank = len(a_RI)
        room = -rank % kernels.slm_width_multiple()  # the kernels' widths are multiples of this
        low_a, low_b = F.pad(a_RI, (0, 0, 0, room)).to(x.dtype), F.pad(b_OR, (0, room)).to(x.dtype)
        self._add(a_RI, weight_gradient(kernels, dy @ low_b, x)[:rank])
        self._add(b_OR, weight_gradient(kernels, dy, x @ low_a.T)[:, :rank])
        run_hooks(a_RI, b_OR)

    def _add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        gradient = gradient * self.config.scale
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def load(self, directory: Path) -> None:
        """Take A and B of a checkpoint, and merge. UserError where they belong to another base, or the merged weights
        are not the checkpoint's."""
        saved = lora.read(directory / lora.FOLDER)
        if saved.pairs.keys() != self.pairs.keys() or (saved.rank, saved.alpha) != (
            self.config.rank,
            self.config.resolved_alpha,
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
        self.merge()
        merged = checkpoint.load_weights(directory)
        own = self.model.state_dict()
        for name, tensor in merged.items():
            if name in own and not torch.allclose(own[name], tensor, rtol=TOLERANCE, atol=TOLERANCE * 0.1):
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
        lora.write_config(folder, rank=config.rank, alpha=config.resolved_alpha, targets=self.targets, base=self.base)


class AdapterBackend(Backend):
    """Another backend's losses and gradients with weights that are merged anew after every update."""

    def __init__(self, inner: Backend, parameters: AdapterParameters) -> None:
        super().__init__(None)
        self.name, self._inner, self._parameters = inner.name, inner, parameters
        self.weights_changed()

    def gradients(self, ids_BT: Tensor, targets_BT: Tensor, scale: float, starts_BT: Tensor | None = None) -> float:
        return self._inner.gradients(ids_BT, targets_BT, scale, starts_BT)

    def losses(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        return self._inner.losses(ids_BT, targets_BT, starts_BT)

    def head_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, head: HeadLoss, starts_BT: Tensor | None = None
    ) -> None:
        self._inner.head_gradients(ids_BT, targets_BT, head, starts_BT)

    def hidden_states(self, ids_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        return self._inner.hidden_states(ids_BT, starts_BT)

    def softmax_gradient(
        self, x_RD: Tensor, targets_R: Tensor, scale: float, words_V: Tensor | None, offsets_V: Tensor | None
    ) -> Tensor:
        return self._inner.softmax_gradient(x_RD, targets_R, scale, words_V, offsets_V)

    def on_progress(self, tell: Callable[[float], None]) -> None:
        self._inner.on_progress(tell)

    def weights_changed(self) -> None:
        self._parameters.merge()
        self._inner.merged_weights_changed()


def _new_pair(weight_OI: Tensor, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    rows, columns = weight_OI.shape
    a_RI = torch.empty(rank, columns).uniform_(-1, 1) / math.sqrt(columns)
    return nn.Parameter(a_RI), nn.Parameter(torch.zeros(rows, rank))
