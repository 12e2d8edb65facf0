"""A language model's loss and gradients by hand-written kernels: forward and backward in one call, without autograd.

Activations are bf16 or f32, as the kernels are. Sums are f32. Gradients are f32 and go straight into
``parameter.grad``. What autograd and a compiler do not do here: weights are packed once per optimizer step into the
layout that the products read; what follows a product (residual, gate, their gradients) is done while its result is in
registers; gradients of weights are added where they belong inside the product; the head's logits exist only for
some rows at a time; attention does no work on masked keys.

This module holds the entries. The passes are in ``forward``, ``head`` and ``backward``, and what they share in
``workspace``.

Shape suffixes: B sequences, T positions each, N = B T, D model width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from slm.kernels.backward import Backward
from slm.kernels.forward import Forward, Observer
from slm.kernels.head import Head, ScaledSum
from slm.kernels.native import Kernels
from slm.kernels.workspace import Recompute, Workspace
from slm.model.config import ModelConfig
from slm.model.cross_entropy import IGNORED
from slm.model.head_loss import HeadLoss
from slm.model.layers.shared_rows import Rows, shared_rows
from slm.model.transformer import LanguageModel


def unsupported(model: LanguageModel, kernels: Kernels) -> str | None:
    """Why the kernels cannot run this model, or None where they can."""
    if reason := unsupported_shape(model.config, kernels):
        return reason
    if any(p.dtype != torch.float32 for p in model.parameters()):
        return "its weights are not f32"
    return None


def usable(model: LanguageModel, kernels: Kernels | None) -> Kernels | None:
    """``kernels`` where they can run this model, or None."""
    return None if kernels is None or unsupported(model, kernels) else kernels


def unsupported_shape(config: ModelConfig, kernels: Kernels) -> str | None:
    """Why the kernels cannot run models of this shape, or None where they can."""
    most, multiple = kernels.slm_max_head_dim(), kernels.slm_width_multiple()
    if config.head_dim > most:
        return f"head_dim={config.head_dim} is above {most}"
    for name in ("head_dim", "rotated", "d_model", "ffn_dim", "vocab_size"):
        if getattr(config, name) % multiple:
            return f"{name}={getattr(config, name)} is not a multiple of {multiple}"
    return None


class Fused:
    """Loss and gradients of one model. Memory is kept from call to call, for one shape of batch at a time.

    ``recompute``: ``none`` keeps all activations, ``mlp`` makes gate and up again in the backward pass (half the
    activations' memory for an eighth of the layers' work), ``layer`` keeps each layer's input only (a third more work).
    ``keep_packed``: hold the packed weights of both directions (4 bytes a parameter in bf16, 8 in f32) instead of
    packing them at each use. ``one_pass``: an update follows each call of ``loss_and_gradients``; it then packs at each
    use, into memory that stays in the processor's caches, which is faster than to write all of them to memory and to
    read them once. ``lean``: where the head's packed weights are not kept, some of its rows are packed at a time, and
    at most a quarter of a GiB of logits is held.
    """

    def __init__(
        self,
        model: LanguageModel,
        kernels: Kernels,
        *,
        recompute: Recompute = "none",
        keep_packed: bool = True,
        one_pass: bool = False,
        lean: bool = False,
    ) -> None:
        reason = unsupported(model, kernels)
        if reason is not None:
            raise ValueError(f"the training kernels cannot run this model: {reason}")
        self._work = Workspace(model, kernels, recompute=recompute, keep_packed=keep_packed)
        self._keep_packed, self._one_pass = keep_packed, one_pass
        self._forward, self._head = Forward(self._work), Head(self._work, lean=lean)
        self._backward = Backward(self._work, self._forward)

    @property
    def kernels(self) -> Kernels:
        return self._work.kernels

    @property
    def vocab_size(self) -> int:
        return self._work.head.rows

    def use(self, kernels: Kernels) -> None:
        """Call these kernels from now on (a benchmark puts a clock around each)."""
        self._work.use(kernels)

    @torch.no_grad()
    def loss_and_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, *, scale: float = 1.0, starts_BT: Tensor | None = None
    ) -> float:
        """The mean cross-entropy, nats per scored target; ``scale`` times its gradient is added to every ``.grad``.

        ids and targets are int64 [B, T]; targets of -100 are not scored. ``starts_BT`` (int32) gives each position the
        first one of its sequence that it may see, never falling along a sequence; None: all before it. Frozen weights
        (``requires_grad`` false) get no gradient, and no time is spent on one. Hooks that
        wait for a parameter's gradient (``register_post_accumulate_grad_hook``) run as under autograd. Beginnings that
        parts of the batch share are computed once (``slm/model/layers/shared_rows.py``).
        """
        n_scored = max(1, int((targets_BT != IGNORED).sum()))
        rows = shared_rows(ids_BT, targets_BT, starts_BT)
        return self._gradients(ids_BT, targets_BT, ScaledSum(scale / n_scored), starts_BT, rows) / n_scored

    @torch.no_grad()
    def head_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, head: HeadLoss, *, starts_BT: Tensor | None = None
    ) -> None:
        """Add the gradient of another loss of the logits than the mean cross-entropy. The rest is as above.

        ids may be bags of S tokens, int64 [B, T, S]: a position's embedding is the mean of theirs.
        """
        self._gradients(ids_BT, targets_BT, head, starts_BT)

    @torch.no_grad()
    def losses(self, ids_BT: Tensor, targets_BT: Tensor, *, starts_BT: Tensor | None = None) -> Tensor:
        """Every position's cross-entropy [B, T], f32 nats, 0 where not scored. Nothing is kept for a backward pass."""
        rows = shared_rows(ids_BT, targets_BT, starts_BT)
        self._prepare(ids_BT, targets_BT, starts_BT, rows)
        losses_R = self._head.losses(self._forward.hidden_states(_flat(ids_BT, rows)), _flat(targets_BT, rows))
        if rows is None:
            return losses_R.view(targets_BT.shape)
        return torch.zeros(targets_BT.numel()).index_copy_(0, rows.own, losses_R).view(targets_BT.shape)

    @torch.no_grad()
    def hidden_states(self, ids_BT: Tensor, *, starts_BT: Tensor | None = None) -> Tensor:
        """The final normed hidden states [N, D], in the kernels' precision. The next call writes over them."""
        self._prepare(ids_BT, ids_BT, starts_BT)
        return self._forward.hidden_states(_flat(ids_BT))

    @torch.no_grad()
    def softmax_gradient(
        self, x_ND: Tensor, targets_N: Tensor, scale: float, words_V: Tensor | None, offsets_V: Tensor | None
    ) -> Tensor:
        """As ``Head.softmax_gradient``, of some of the ``hidden_states``."""
        return self._head.softmax_gradient(x_ND, targets_N, scale, words_V, offsets_V)

    @contextmanager
    def observed(self, observe: Observer) -> Iterator[None]:
        """Inside, ``hidden_states`` calls ``observe(weights, x_NI)`` for the input of every matrix of the layers:
        ``weights`` are the parameters that read ``x_NI`` [N, inputs]. The memory of ``x_NI`` is soon written over."""
        self._forward.observe = observe
        try:
            yield
        finally:
            self._forward.observe = None

    def on_progress(self, tell: Callable[[float], None]) -> None:
        """Call ``tell`` with the share of the work of each following ``loss_and_gradients`` that is done."""
        self._work.progress = tell

    def forget_weights(self) -> None:
        """Convert the weights anew at the next call, but for frozen ones (``requires_grad`` false). Changes that
        autograd counts are noticed without it."""
        self._work.forget_weights()

    def _gradients(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        head: HeadLoss,
        starts_BT: Tensor | None,
        rows: Rows | None = None,
    ) -> float:
        """Add every gradient of a loss of the logits. Returns the summed cross-entropy of the loss's last pass."""
        self._prepare(ids_BT, targets_BT, starts_BT, rows, learns=True)
        ids_N, targets_N = _flat(ids_BT, rows), _flat(targets_BT, rows)
        nats, dx_ND = self._head.gradients(self._forward.keeping(ids_N), targets_N, head)
        self._backward.run(ids_N, dx_ND)
        return nats

    def _prepare(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        starts_BT: Tensor | None,
        rows: Rows | None = None,
        *,
        learns: bool = False,
    ) -> None:
        """ValueError for what the kernels would read or write outside of their tensors."""
        for name, tensor, ndims in (("ids", ids_BT, (2, 3)), ("targets", targets_BT, (2,))):
            wrong = tensor.dtype != torch.int64 or tensor.ndim not in ndims or tensor.shape[:2] != ids_BT.shape[:2]
            if wrong or not tensor.numel():
                raise ValueError(f"{name} must be int64 [B, T], not {tensor.dtype} {list(tensor.shape)}")
            if int(tensor.max()) >= self.vocab_size:
                raise ValueError(f"{name} holds {int(tensor.max())}, which is beyond the vocabulary")
        if int(ids_BT.min()) < 0:
            raise ValueError(f"ids holds {int(ids_BT.min())}, which is no token")
        if starts_BT is not None:
            _check_starts(starts_BT, ids_BT.shape[:2])
        self._work.keep_packed(self._keep_packed and not (learns and self._one_pass), frozen=self._keep_packed)
        self._work.prepare(ids_BT, starts_BT, rows)


def _check_starts(starts_BT: Tensor, shape: torch.Size) -> None:
    """ValueError unless every position sees itself, and none an earlier beginning than the position before it."""
    if starts_BT.shape != shape:
        raise ValueError(f"starts must be positions [B, T], not {list(starts_BT.shape)}")
    latest_T = torch.arange(shape[1], dtype=starts_BT.dtype)
    if int(starts_BT.min()) < 0 or bool((starts_BT > latest_T).any()):
        raise ValueError("starts must be between 0 and their own position")
    if bool((starts_BT.diff(dim=1) < 0).any()):
        raise ValueError("starts must not fall within a sequence")


def _flat(tensor_BT: Tensor, rows: Rows | None = None) -> Tensor:
    tensor_N = tensor_BT.flatten(0, 1).contiguous()
    return tensor_N if rows is None else tensor_N[rows.own]
