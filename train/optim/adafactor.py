"""Adafactor, with each parameter updated inside the backward pass: full tuning in little more than the weights.

A parameter changes as soon as its gradient is whole, and the gradient is given up at once (LOMO, Lv et al. 2023,
arXiv:2306.09782). The update is Adafactor's (Shazeer and Stern 2018, arXiv:1804.04235), as AdaLomo takes it
(arXiv:2310.10195): a second moment for each row and each column in place of one for each weight, no momentum, a step
in proportion to the parameter's own size, and a bound on each update where others clip all gradients together. The
numbers equal ``torch.optim.Adafactor``'s, which keeps all gradients until the end of the pass.

Tested in tests/train/optim/test_adafactor.py.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from slm.train.optim.plain import Optimizer

CHUNK = 1 << 19
"""Values of a matrix that are worked on at once: what is made of them stays in the processor's cache."""
BETA2_DECAY = -0.8
"""After ``t`` updates a new square has the weight ``t ** BETA2_DECAY`` in the second moment."""
LEAST_SIZE = 1e-3
"""The root mean square of a parameter that a step is in proportion to, at least."""
LEAST_SQUARE = 1e-30
"""The second moment of a gradient, at least."""
LARGEST_UPDATE = 1.0
"""The root mean square of an update before the learning rate, at most."""


class Adafactor(Optimizer):
    """``step`` begins an update, and the backward pass that follows makes it; ``end`` closes it.

    Every parameter must get its whole gradient once in between: one micro-batch, one pass.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self._rates: dict[nn.Parameter, tuple[float, float]] = {}
        self._squares: dict[nn.Parameter, float] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(self._arrived)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Until ``end``, a parameter changes when its gradient is there."""
        assert closure is None, "closures are not supported"
        self._squares = {}
        self._rates = {p: (group["lr"], group["weight_decay"]) for group in self.param_groups for p in group["params"]}

    def end(self) -> float:
        """Close the update. Returns the L2 norm of all gradients together; where it is not finite, the parameters with
        finite gradients have changed, and no others."""
        self._rates = {}
        return math.sqrt(sum(self._squares.values()))

    def state_keys(self, parameter: nn.Parameter) -> tuple[str, ...]:
        """The names of a parameter's state."""
        return ("step", "row_var", "col_var") if parameter.ndim > 1 else ("step", "variance")

    @torch.no_grad()
    def _arrived(self, parameter: nn.Parameter) -> None:
        """A parameter's gradient is whole."""
        if not self._rates:
            return  # gradients that nobody learns from, such as those of a trial
        if parameter in self._squares:
            raise RuntimeError("a parameter's gradient came twice in one update")
        gradient = parameter.grad
        assert gradient is not None
        matrix = gradient.ndim > 1
        rows, columns, square = _squares(gradient.flatten(1)) if matrix else _squares(gradient[None])
        self._squares[parameter] = square
        if math.isfinite(square):
            lr, decay = self._rates[parameter]
            state = self.state[parameter] = self.state[parameter] or _new_state(parameter)
            state["step"] += 1
            share, rate = state["step"].item() ** BETA2_DECAY, _rate(lr, parameter, state["step"].item())
            if decay:
                parameter.mul_(1 - lr * decay)
            if matrix:
                state["row_var"].lerp_(rows.view_as(state["row_var"]) / columns.numel(), share)
                state["col_var"].lerp_(columns.view_as(state["col_var"]) / rows.numel(), share)
                scales = _scales(state["row_var"], state["col_var"])
                _change(parameter.flatten(1), gradient.flatten(1), *scales, rate)
            else:
                state["variance"].lerp_(gradient.square(), share)
                inverse = state["variance"].clamp(min=LEAST_SQUARE).rsqrt()
                _change(parameter[None], gradient[None], torch.ones(1), inverse, rate)
        parameter.grad = None


def _new_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    """A parameter's before its first update."""
    if parameter.ndim < 2:
        return {"step": torch.zeros(()), "variance": torch.zeros_like(parameter.detach())}
    rows, columns = len(parameter), parameter.numel() // len(parameter)
    return {"step": torch.zeros(()), "row_var": torch.zeros(rows, 1), "col_var": torch.zeros(1, columns)}


def _chunks(n_rows: int, width: int) -> Iterator[slice]:
    rows = max(1, CHUNK // width)
    return (slice(start, start + rows) for start in range(0, n_rows, rows))


def _squares(gradient_MK: Tensor) -> tuple[Tensor, Tensor, float]:
    """The sums of squares of each row, [M], and of each column, [K], and of all."""
    rows_M, columns_K = torch.empty(len(gradient_MK)), torch.zeros(gradient_MK.shape[1])
    for part in _chunks(*gradient_MK.shape):
        squares_RK = gradient_MK[part].square()
        torch.sum(squares_RK, 1, out=rows_M[part])
        columns_K += squares_RK.sum(0)
    return rows_M, columns_K, rows_M.sum(dtype=torch.float64).item()


def _scales(row_M1: Tensor, column_1K: Tensor) -> tuple[Tensor, Tensor]:
    """What the rows, [M], and columns, [K], of a gradient are multiplied by: 1 / sqrt(row * column / mean of rows)."""
    mean = row_M1.mean().clamp(min=LEAST_SQUARE)
    rows_M, columns_K = (row_M1 / mean).flatten(), column_1K.flatten()
    return rows_M.clamp(min=LEAST_SQUARE).rsqrt(), columns_K.clamp(min=LEAST_SQUARE).rsqrt()


def _rate(lr: float, parameter: nn.Parameter, step: float) -> float:
    """The learning rate in proportion to the parameter's size; the first updates are small ones."""
    size = parameter.norm().item() / math.sqrt(parameter.numel())
    return max(LEAST_SIZE, size) * min(lr, step**-0.5)


def _change(weight_MK: Tensor, gradient_MK: Tensor, rows_M: Tensor, columns_K: Tensor, rate: float) -> None:
    """Subtract ``rate`` times the gradient, its rows and columns scaled, and all of it bounded."""
    square = 0.0
    for part in _chunks(*gradient_MK.shape):
        gradient_MK[part].mul_(columns_K).mul_(rows_M[part, None])
        square += gradient_MK[part].square().sum().item()
    size = math.sqrt(square / gradient_MK.numel())
    weight_MK.add_(gradient_MK, alpha=-rate / max(1.0, size / LARGEST_UPDATE))
