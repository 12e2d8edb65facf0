"""Muon for the layers' matrices and AdamW for everything else, in one optimizer.

Muon (Jordan 2024) replaces a matrix's momentum by the nearest orthogonal matrix, so that an update moves all directions
alike. Two refinements: NorMuon's second moment (Li et al. 2025, arXiv 2510.05491), which evens out the rows of an
update, and cautious weight decay (Chen et al. 2025, arXiv 2510.12402), which shrinks a weight only where the update
does not pull it the other way.

Matrix products alone find that matrix: for G = U S V^T, Newton-Schulz iterations x -> a x + b x^3 + c x^5 of the
singular values come near U V^T, with the polynomials of Polar Express (Amsel et al. 2025, arXiv 2505.16932).

``torch.optim.Muon`` computes in bf16, which is slow without the processor's help, and takes one matrix at a time.

Shape suffixes: N matrices of one shape, M rows, K columns.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from slm.kernels.native import Kernels
from slm.train.optim.fused import NO_FACTORS, adamw_step, scale
from slm.train.optim.plain import Optimizer

POLYNOMIALS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""a, b and c of each iteration, for singular values from 0.001 to 1, with a margin of 2 % for rounding."""
MARGIN = 1.02


def orthogonalize(g_NMK: Tensor, steps: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """``g_NMK`` with singular values near 1, computed and returned in ``dtype``; ``steps`` from 1 to 5.

    After five steps singular values from a thousandth of the norm on lie between 0.7 and 1.3. Fewer steps leave small
    ones smaller. A matrix of zeros stays one.
    """
    wide = g_NMK.shape[-2] <= g_NMK.shape[-1]
    x_NMK = (g_NMK if wide else g_NMK.mT).to(dtype)
    norm_N11 = x_NMK.float().norm(dim=(-2, -1), keepdim=True)
    x_NMK = x_NMK / (norm_N11 * MARGIN).clamp_min(1e-7).to(dtype)
    for a, b, c in POLYNOMIALS[:steps]:
        gram_NMM = x_NMK @ x_NMK.mT
        factor_NMM = torch.baddbmm(gram_NMM, gram_NMM, gram_NMM, beta=b, alpha=c)
        x_NMK = torch.baddbmm(x_NMK, factor_NMM, x_NMK, beta=a)
    return x_NMK if wide else x_NMK.mT


MOMENTUM, SECOND_MOMENT = "momentum", "row_moment"
"""Muon's state of one matrix, besides ``step``."""
SECOND_MOMENT_BETA = 0.95


class Muon(Optimizer):
    """Updates parameter groups of two kinds.

    A group's ``kind`` is ``muon`` (matrices only; ``momentum``: first and last value, ``momentum_steps``: the steps
    between them, ``ns_steps``, ``second_moment``, ``weight_decay``) or ``adamw`` (``betas``, ``eps``,
    ``weight_decay``). ``dtype``: the number format of Muon's matrix products. Weights, moments and state are f32.
    ``kernels`` compute AdamW's updates where there are some. ``factors``: what the next step's gradients are multiplied
    by before.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, dtype: torch.dtype = torch.float32, kernels: Kernels | None = None
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self._dtype = dtype
        self.kernels, self.factors = kernels, NO_FACTORS

    def state_keys(self, parameter: nn.Parameter) -> tuple[str, ...]:
        """The names of a parameter's state."""
        group = next(group for group in self.param_groups if any(p is parameter for p in group["params"]))
        if group["kind"] == "adamw":
            return ("step", "exp_avg", "exp_avg_sq")
        return ("step", MOMENTUM, SECOND_MOMENT) if group["second_moment"] else ("step", MOMENTUM)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["kind"] == "adamw":
                self._adamw(group, parameters)
                continue
            alike = defaultdict(list)
            for p in parameters:
                alike[p.shape].append(p)
            for same_shape in alike.values():
                self._muon(group, same_shape)

    def _adamw(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        states = [self._state(p, exp_avg=torch.zeros_like, exp_avg_sq=torch.zeros_like) for p in parameters]
        options = {key: group[key] for key in ("betas", "lr", "eps", "weight_decay")}
        adamw_step(parameters, states, kernels=self.kernels, factors=self.factors, **options)

    def _muon(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        """Update matrices of one shape."""
        scale([_gradient(p) for p in parameters], self.factors)
        second_moment = group["second_moment"]
        make: dict[str, Any] = {MOMENTUM: torch.zeros_like}
        if second_moment:
            make[SECOND_MOMENT] = _row_zeros
        states = [self._state(p, **make) for p in parameters]
        update_NMK = torch.empty(len(parameters), *parameters[0].shape)
        for p, state, out_MK in zip(parameters, states, update_NMK, strict=True):
            state["step"] += 1
            momentum = _momentum(group, state["step"].item())
            gradient_MK = _gradient(p)
            state[MOMENTUM].lerp_(gradient_MK, 1 - momentum)
            torch.lerp(gradient_MK, state[MOMENTUM], momentum, out=out_MK)  # Nesterov
        update_NMK = orthogonalize(update_NMK, group["ns_steps"], self._dtype).float()
        if second_moment:
            update_NMK = _even_out(update_NMK, [state[SECOND_MOMENT] for state in states])
        rows, columns = update_NMK.shape[1:]
        lr, decay = group["lr"], group["weight_decay"]
        for p, update_MK in zip(parameters, update_NMK, strict=True):
            if decay:
                p.addcmul_(p, (p * update_MK >= 0).to(p.dtype), value=-lr * decay)
            p.add_(update_MK, alpha=-lr * max(1.0, rows / columns) ** 0.5)

    def _state(self, parameter: nn.Parameter, **make: Any) -> dict[str, Tensor]:
        """The parameter's state, made of it at its first update."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state |= {key: new(parameter.detach()) for key, new in make.items()}
            self.state[parameter] = state
        return state


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _momentum(group: dict[str, Any], step: float) -> float:
    first, last = group["momentum"]
    return first + (last - first) * min(1.0, step / max(1, group["momentum_steps"]))


def _row_zeros(matrix_MK: Tensor) -> Tensor:
    """Zeros for a second moment of every row, or of every column where there are more columns than rows."""
    rows, columns = matrix_MK.shape
    return torch.zeros(rows, 1) if rows >= columns else torch.zeros(1, columns)


def _even_out(update_NMK: Tensor, moments: list[Tensor]) -> Tensor:
    """``update_NMK`` divided by the root of its rows' (or columns') second ``moments``; each matrix keeps its norm."""
    dim = -1 if moments[0].shape[-1] == 1 else -2
    mean_square_N = update_NMK.square().mean(dim, keepdim=True)
    for moment, now in zip(moments, mean_square_N, strict=True):
        moment.lerp_(now, 1 - SECOND_MOMENT_BETA)
    evened_NMK = update_NMK * torch.stack(moments).clamp_min(1e-10).rsqrt()
    norm_N11 = update_NMK.norm(dim=(-2, -1), keepdim=True)
    return evened_NMK * (norm_N11 / evened_NMK.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-10))
