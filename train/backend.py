"""From a micro-batch to its loss and gradients: with the hand-written kernels where they run, else with autograd.

Shape suffixes: B sequences of a micro-batch, T positions.

Tested in tests/train/test_step.py, tests/slm/kernels/test_fused.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from slm.data.stream.packing import document_starts
from slm.kernels.fused import Fused, unsupported, unsupported_shape, usable
from slm.machine.memory import available_bytes
from slm.model.config import ModelConfig
from slm.model.cross_entropy import IGNORED
from slm.model.head_loss import HeadLoss, head_gradients, softmax_gradient
from slm.model.layers.attention import BLOCK
from slm.model.layers.held import held_of
from slm.model.transformer import LanguageModel
from slm.train.config import TrainConfig
from slm.train.environment import Environment

LOSS_ROWS = 1024
"""Positions for which a validation by autograd computes logits at a time: all of a micro-batch take 2 GB at 125m."""


class Backend(ABC):
    """One model's losses. ``gradients`` adds to ``parameter.grad`` (f32) and runs the parameters' hooks.

    Targets of -100 are not scored. ``starts_BT`` (int32 [B, T]) gives each position the first one of its sequence that
    it may see.
    """

    name: str

    def __init__(self, eot_id: int | None) -> None:
        self._eot_id = eot_id

    @abstractmethod
    def gradients(self, ids_BT: Tensor, targets_BT: Tensor, scale: float, starts_BT: Tensor | None = None) -> float:
        """Summed cross-entropy of the scored targets, nats; ``scale`` times its gradient is added to the ``.grad``s."""

    @abstractmethod
    def losses(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        """Cross-entropy of every target [B, T], f32 nats, 0 where not scored; without gradients."""

    @abstractmethod
    def head_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, head: HeadLoss, starts_BT: Tensor | None = None
    ) -> None:
        """Add the gradient of another loss of the logits to the ``.grad``s.

        ``ids_BT`` may be bags of tokens [B, T, S]: a position's embedding is then the mean of its tokens'.
        """

    @abstractmethod
    def hidden_states(self, ids_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        """The final normed hidden states [B T, D], without gradients; valid until the next call of this backend."""

    @abstractmethod
    def softmax_gradient(
        self, x_RD: Tensor, targets_R: Tensor, scale: float, words_V: Tensor | None, offsets_V: Tensor | None
    ) -> Tensor:
        """``scale`` times (softmax - one-hot) of the logits of some of the ``hidden_states``, [R, V], zeros where not
        scored: their gradient (where they are soft-capped, that in the capped ones). Valid until the next call.
        ``words_V`` and ``offsets_V``: as in ``HeadPass``."""

    def weights_changed(self) -> None:  # noqa: B027 - autograd keeps no copy of the weights
        """Called after every update. Frozen weights are as before."""

    def on_progress(self, tell: Callable[[float], None]) -> None:  # noqa: B027 - autograd does not know
        """``tell`` is called with the share of a call of ``gradients`` that is done, where that is known."""

    def _starts(self, ids_BT: Tensor, starts_BT: Tensor | None) -> Tensor | None:
        """Where each position's document begins, int32 [B, T]; None where documents may attend to each other.

        Conversations have their beginnings with them, ``starts_BT``.
        """
        if starts_BT is not None or self._eot_id is None or ids_BT.ndim > 2:  # a bag may hold the end of a document
            return starts_BT
        return torch.from_numpy(document_starts(ids_BT.numpy(), self._eot_id))


class AutogradBackend(Backend):
    """torch's autograd under autocast, with layers and loss compiled where the environment compiles."""

    name = "autograd"

    def __init__(self, model: LanguageModel, environment: Environment, eot_id: int | None = None) -> None:
        super().__init__(eot_id)
        self._model, self._environment = model, environment
        if environment.compile:
            model.compile_parts()

    def gradients(self, ids_BT: Tensor, targets_BT: Tensor, scale: float, starts_BT: Tensor | None = None) -> float:
        n_scored = count_scored(targets_BT)
        if not n_scored:
            return 0.0
        with self._environment.autocast():
            loss = self._model.loss(ids_BT, targets_BT, self._starts(ids_BT, starts_BT))
        (loss * (scale * n_scored)).backward()
        return loss.item() * n_scored

    @torch.no_grad()
    def losses(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        weight_VD = self._model.head_weight_VD
        parts = zip(
            self.hidden_states(ids_BT, starts_BT).split(LOSS_ROWS), targets_BT.flatten().split(LOSS_ROWS), strict=True
        )
        with self._environment.autocast():
            losses = [
                F.cross_entropy(self._model.capped(F.linear(x_RD, weight_VD).float()), targets_R, reduction="none")
                for x_RD, targets_R in parts
            ]
        return torch.cat(losses).view_as(targets_BT)

    def head_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, head: HeadLoss, starts_BT: Tensor | None = None
    ) -> None:
        with self._environment.autocast():
            x_ND = self._model.hidden_states(ids_BT, starts_BT=self._starts(ids_BT, starts_BT)).flatten(0, 1)
        weight_VD = self._model.head_weight_VD
        dx_ND, dweight_VD = head_gradients(x_ND, weight_VD, targets_BT.flatten(), head, self._model.config.logit_cap)
        pairs = [(x_ND, dx_ND), *([(weight_VD, dweight_VD)] if weight_VD.requires_grad else [])]
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])

    @torch.no_grad()
    def hidden_states(self, ids_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        with self._environment.autocast():
            return self._model.hidden_states(ids_BT, starts_BT=self._starts(ids_BT, starts_BT)).flatten(0, 1)

    @torch.no_grad()
    def softmax_gradient(
        self, x_RD: Tensor, targets_R: Tensor, scale: float, words_V: Tensor | None, offsets_V: Tensor | None
    ) -> Tensor:
        weight_VD = self._model.head_weight_VD
        head_VD = (weight_VD if words_V is None else weight_VD[words_V]).float()
        logits_RV = self._model.capped(F.linear(x_RD.float(), head_VD))
        if offsets_V is not None:
            logits_RV += offsets_V
        return softmax_gradient(logits_RV, targets_R, scale)


class KernelBackend(Backend):
    """The kernels of ``slm/kernels``."""

    name = "kernels"

    def __init__(self, fused: Fused, eot_id: int | None = None) -> None:
        super().__init__(eot_id)
        self.fused = fused

    def gradients(self, ids_BT: Tensor, targets_BT: Tensor, scale: float, starts_BT: Tensor | None = None) -> float:
        n_scored = count_scored(targets_BT)
        starts_BT = self._starts(ids_BT, starts_BT)
        return n_scored * self.fused.loss_and_gradients(ids_BT, targets_BT, scale=scale * n_scored, starts_BT=starts_BT)

    def losses(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        return self.fused.losses(ids_BT, targets_BT, starts_BT=self._starts(ids_BT, starts_BT))

    def head_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, head: HeadLoss, starts_BT: Tensor | None = None
    ) -> None:
        self.fused.head_gradients(ids_BT, targets_BT, head, starts_BT=self._starts(ids_BT, starts_BT))

    def hidden_states(self, ids_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        return self.fused.hidden_states(ids_BT, starts_BT=self._starts(ids_BT, starts_BT))

    def softmax_gradient(
        self, x_RD: Tensor, targets_R: Tensor, scale: float, words_V: Tensor | None, offsets_V: Tensor | None
    ) -> Tensor:
        return self.fused.softmax_gradient(x_RD, targets_R, scale, words_V, offsets_V)

    def weights_changed(self) -> None:
        self.fused.forget_weights()

    def on_progress(self, tell: Callable[[float], None]) -> None:
        self.fused.on_progress(tell)


def attention_bytes(shape: ModelConfig, config: TrainConfig, environment: Environment, *, masked: bool) -> int:
    """What autograd keeps of attention until the backward pass of a micro-batch, beyond hidden states.

    The kernels keep nothing that grows with the square of ``train.seq_len``. torch.compile keeps the scores of every
    query and the keys up to the end of its block, in each head. Uncompiled, torch keeps a mask in numbers, where there
    is one (``masked``: by document, or by a window), but for soft-capped scores, which it cannot compute.
    """
    kernels, length = environment.kernels, config.seq_len
    if kernels is not None and unsupported_shape(shape, kernels) is None:
        return 0
    if environment.compile:
        per_layer = shape.n_heads * length * (length + BLOCK) // 2
    else:
        per_layer = length * length if masked and not shape.attention_cap else 0
    layers = shape.n_layers if config.recompute == "none" else 1
    return (2 if environment.precision == "bf16" else 4) * config.micro_batch * layers * per_layer


def packed_bytes(shape: ModelConfig, environment: Environment) -> int:
    """What the kernels' packed weights take where they are kept, for both passes."""
    return 2 * (2 if environment.precision == "bf16" else 4) * shape.n_params


def count_scored(targets_BT: Tensor) -> int:
    """How many targets the loss counts."""
    return int((targets_BT != IGNORED).sum())


def fallback_line(model: LanguageModel, environment: Environment, config: TrainConfig) -> str | None:
    """A line where there are kernels and they cannot run this model, or autograd recomputes more than was asked for."""
    reason = unsupported(model, environment.kernels) if environment.kernels is not None else None
    how = "compiled by torch.compile" if environment.compile else "uncompiled"
    lines = [f"the training kernels cannot run this model ({reason}): PyTorch's autograd does, {how}"] if reason else []
    if config.recompute == "mlp" and usable(model, environment.kernels) is None:
        lines.append("train.gradient_checkpointing=mlp needs the training kernels: whole layers are recomputed (true)")
    return "\n".join(lines) or None


def make_backend(
    model: LanguageModel,
    config: TrainConfig,
    environment: Environment,
    eot_id: int | None = None,
    *,
    lean: bool = False,
) -> Backend:
    """The fastest backend that this machine, this model and the configuration allow.

    ``eot_id``: the end-of-text token where documents must not attend to each other; None: they may. ``lean``: no
    packed weights are kept, not for validations either, and the head's are not all made at once. So is it where those
    of a frozen model are too large to keep.
    """
    if (kernels := usable(model, environment.kernels)) is not None:
        # Keeping the bf16 weights costs 4 bytes a parameter; recomputation is chosen to save memory, not time. Those of
        # an adapter's base never change, and are kept where that leaves most of the memory to others.
        frozen = not any(each.requires_grad for each in model.parameters())
        small = held_of(model.head) is None and packed_bytes(model.config, environment) < available_bytes() / 4
        keep = config.recompute == "none" and (small or not frozen) and not lean
        one_pass = config.grad_accum == 1 and not frozen
        lean = lean or (frozen and not keep)
        fused = Fused(model, kernels, recompute=config.recompute, keep_packed=keep, one_pass=one_pass, lean=lean)
        return KernelBackend(fused, eot_id)
    model.gradient_checkpointing = config.recompute != "none"
    return AutogradBackend(model, environment, eot_id)


def make_frozen_backend(model: LanguageModel, environment: Environment, eot_id: int | None = None) -> Backend:
    """A backend for a model that is not trained. It keeps no activations, and nothing is compiled for it."""
    if (kernels := usable(model, environment.kernels)) is not None:
        return KernelBackend(Fused(model, kernels, recompute="layer"), eot_id)
    return AutogradBackend(model, replace(environment, compile=False), eot_id)
