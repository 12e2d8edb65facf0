"""The output head by the kernels: final norm, logits, losses and their gradients, some rows at a time.

Shape suffixes: N positions, R of them at a time, D model width, V vocabulary.

Tested in tests/slm/kernels/test_fused.py, tests/train/objective/test_preference.py.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from slm.kernels.gradients import gradient_of, run_hooks
from slm.kernels.native import Kernels
from slm.kernels.operations import add_product, add_weight_gradient, norm, norm_backward
from slm.kernels.packed import PackedWeights
from slm.kernels.workspace import Workspace
from slm.model.head_loss import HeadLoss, HeadPass
from slm.model.layers.held import whole

HEAD_ROWS = 2048
"""The most positions with logits in memory at once."""
HEAD_LOGITS = 1 << 27
"""Logits held at once, at most: a vocabulary of 262,144 would take 2 GiB otherwise."""
LEAN_LOGITS = 1 << 26
"""The same where memory counts for more than time."""
LEAN_ROWS = 4096
"""Rows of the head that are packed at once, and get their gradient at once, where memory counts: no more than a layer
has."""


class ScaledSum:
    """The cross-entropy of all scored targets, times one factor."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def over_logits(self, losses: Callable[[], Tensor]) -> HeadPass:
        return HeadPass(self._scale)


def _scored(targets_N: Tensor) -> Tensor | None:
    """The positions with a target, int64 [R]; None where all have one, or none has."""
    scored_R = (targets_N >= 0).nonzero().flatten()
    return scored_R if 0 < len(scored_R) < len(targets_N) else None


class Head:
    """Final norm and output projection of one model. ``lean``: the head is packed some rows at a time, and fewer logits
    are held at once."""

    def __init__(self, work: Workspace, *, lean: bool = False) -> None:
        self._work, self._packed, self._lean = work, work.head, lean

    @property
    def _kernels(self) -> Kernels:
        return self._work.kernels.head

    def losses(self, h_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Cross-entropies [N], f32 nats, of the normed hidden states; the logits are given up at once."""
        if (scored_R := _scored(targets_N)) is None:
            return self._losses(h_ND, targets_N)
        losses_N = torch.zeros(len(targets_N))
        return losses_N.index_copy_(0, scored_R, self._losses(h_ND[scored_R], targets_N[scored_R]))

    def _losses(self, h_ND: Tensor, targets_N: Tensor) -> Tensor:
        N, V = len(h_ND), self._packed.rows
        if self._in_slices(self._packed):
            at_once = self._at_once(N, V)
            logits, parts = self._work.room("logits", at_once, V), [*_slices(N, at_once)]
        else:
            logits, parts = self._work.buffer("some_logits", self._kernels.slm_cross_entropy_rows(), V), [slice(N)]
        return torch.cat(
            [self._cross_entropy(h_ND[each], targets_N[each], logits, None, self._packed, None) for each in parts]
        )

    def _in_slices(self, packed: PackedWeights) -> bool:
        """Whether some rows of this head are packed at a time."""
        return self._lean and not packed.keep

    def _at_once(self, n_rows: int, vocabulary: int) -> int:
        """How many of ``n_rows`` positions have logits at once. Soft-capped ones have slopes beside them."""
        values = vocabulary * (2 if self._work.config.logit_cap else 1)
        most = min(n_rows, HEAD_ROWS, max(1, (LEAN_LOGITS if self._lean else HEAD_LOGITS) // values))
        return math.ceil(n_rows / math.ceil(n_rows / most)) if self._lean else most

    def softmax_gradient(
        self, h_ND: Tensor, targets_N: Tensor, scale: float, words_V: Tensor | None, offsets_V: Tensor | None
    ) -> Tensor:
        """``scale`` times (softmax - one-hot) of the logits of normed hidden states, [N, V], zeros where not scored:
        their gradient (where they are soft-capped, that in the capped ones). Valid until the next call. ``words_V`` and
        ``offsets_V``: as in ``HeadPass``."""
        packed = self._packed if words_V is None else self._some(words_V)
        logits = self._work.room("logits", len(h_ND), packed.rows)
        self._cross_entropy(h_ND, targets_N, logits, scale, packed, offsets_V)
        return logits[: len(h_ND)]

    def gradients(self, x_ND: Tensor, targets_N: Tensor, head: HeadLoss) -> tuple[float, Tensor]:
        """The summed cross-entropy, and the gradient of the loss in the last layer's output [N, D]; those of the head's
        weights and the final norm's are added to theirs."""
        N, D = x_ND.shape
        work = self._work
        final_norm = work.model.model.norm
        inverse_rms_N = work.buffer("inverse_rms", N, dtype=torch.float32)
        h_ND, dh_ND = norm(work, final_norm, x_ND, inverse_rms_N), work.buffer("dh", N, D)
        asked = head.over_logits(lambda: self.losses(h_ND, targets_N))
        scored_R = None if asked.soften else _scored(targets_N)
        if scored_R is None:
            nats = self._pass(asked, h_ND, targets_N, dh_ND)
        else:
            nats = self._pass_of_some(asked, h_ND, targets_N, dh_ND, scored_R)
        if not work.config.tie_embeddings:
            run_hooks(self._packed.weights[0])
        dx_ND = work.buffer("dx", N, D)
        norm_backward(work, final_norm, dh_ND, x_ND, inverse_rms_N, None, dx_ND)
        return nats, dx_ND

    def _pass_of_some(self, asked: HeadPass, h_ND: Tensor, targets_N: Tensor, dh_ND: Tensor, scored_R: Tensor) -> float:
        """The same pass by the scored positions alone: the others have no gradient."""
        weights = asked.weights[scored_R] if isinstance(asked.weights, Tensor) else asked.weights
        dh_RD = self._work.room("dh_of_scored", len(scored_R), h_ND.shape[1])
        nats = self._pass(replace(asked, weights=weights), h_ND[scored_R], targets_N[scored_R], dh_RD)
        dh_ND.zero_().index_copy_(0, scored_R, dh_RD)
        return nats

    def _pass(self, asked: HeadPass, h_ND: Tensor, targets_N: Tensor, dh_ND: Tensor) -> float:
        """Write one pass's gradient in ``h_ND``, and add that in the head's weights. Returns the summed loss."""
        packed = self._packed if asked.words is None else self._some(asked.words)
        N, V = len(h_ND), packed.rows
        at_once = self._at_once(N, V)
        logits = self._work.room("logits", at_once, V)
        slopes = self._work.room("slopes", at_once, V) if self._work.config.logit_cap else None
        nats = 0.0
        for part in _slices(N, at_once):
            rows = part.stop - part.start
            scale = 1.0 if isinstance(asked.weights, Tensor) else asked.weights
            losses_R = self._cross_entropy(h_ND[part], targets_N[part], logits, scale, packed, asked.offsets, slopes)
            nats += losses_R.sum(dtype=torch.float64).item()
            if isinstance(asked.weights, Tensor):
                logits[:rows] *= asked.weights[part, None]
            if asked.soften:
                asked.soften(logits[:rows], losses_R, part)
            if slopes is not None:
                logits[:rows] *= slopes[:rows]
            self._products_backward(logits[:rows], h_ND[part], packed, dh_ND[part])
        if asked.words is not None and packed.weights[0].grad is not None:
            grad, add = gradient_of(self._packed.weights[0])
            if not add:
                grad.zero_()
            grad.index_add_(0, asked.words, packed.weights[0].grad)
        return nats

    def _products_backward(self, dlogits_RV: Tensor, h_RD: Tensor, packed: PackedWeights, dh_RD: Tensor) -> None:
        """Write the gradient of ``h_RD``, and add that of the head's weights."""
        kernels, work, (R, V), D = self._kernels, self._work, dlogits_RV.shape, h_RD.shape[1]
        weight = packed.weights[0]
        if not self._in_slices(packed):
            kernels.slm_head_backward(dlogits_RV, R, V, packed.layout("backward"), D, dh_RD)
            add_weight_gradient(work, "head", dlogits_RV, h_RD, weight, kernels)
            return
        sums_RD = dh_RD if dh_RD.dtype == torch.float32 else work.room("dh_sums", R, D, dtype=torch.float32)
        for some in _slices(V, kernels.slm_head_block(V)):
            part_RS, panels = dlogits_RV[:, some], packed.layout_of("backward", some)
            add = int(some.start > 0)
            kernels.slm_head_backward_part(part_RS, V, R, panels, part_RS.shape[1], D, sums_RD, add)
        if sums_RD is not dh_RD:
            dh_RD.copy_(sums_RD)
        if weight.requires_grad:
            grad, add = gradient_of(weight)
            for some in _slices(V, LEAN_ROWS):
                add_product(work, "head", dlogits_RV[:, some], h_RD, grad[some], add, kernels)

    def _some(self, words_V: Tensor) -> PackedWeights:
        """The head's rows of these ids, as separate weights."""
        weight = self._packed.weights[0]
        some = whole(weight).detach()[words_V].requires_grad_(weight.requires_grad)
        return PackedWeights(self._kernels, [some], keep=True)

    def _cross_entropy(
        self,
        h_ND: Tensor,
        targets_N: Tensor,
        logits: Tensor,
        scale: float | None,
        packed: PackedWeights,
        offsets_V: Tensor | None,
        slopes: Tensor | None = None,
    ) -> Tensor:
        """Losses [N]; with ``scale`` the logits become scale times their gradient, [N, V]. Where they are soft-capped,
        that is the gradient in the capped ones, and ``slopes`` [N, V] gets the derivatives of these."""
        (N, D), V = h_ND.shape, packed.rows
        losses_N = torch.empty(N)
        kernels, keep, cap = self._kernels, int(scale is not None), self._work.config.logit_cap or 0.0
        if not self._in_slices(packed):
            kernels.slm_cross_entropy(
                *(h_ND, N, D, packed.layout("forward"), V, cap, offsets_V),
                *(targets_N, scale or 0.0, keep, logits, slopes, losses_N),
            )
            return losses_N
        for some in _slices(V, LEAN_ROWS):
            offsets = None if offsets_V is None or cap else offsets_V[some]
            panels, n_rows = packed.layout_of("forward", some), some.stop - some.start
            kernels.slm_head_logits(h_ND, N, D, panels, n_rows, offsets, logits[:, some], V)
        kernels.slm_softmax(logits, N, V, cap, offsets_V, targets_N, scale or 0.0, keep, slopes, losses_N)
        return losses_N


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(count, start + size)) for start in range(0, count, size))
