"""torch's optimizers, apart from its compiler.

torch marks some methods of its optimizers as not to be compiled, and the first call of such a method imports the
compiler, which takes seconds at the start of every run. Nothing here compiles an optimizer, so the methods are used as
they were before they were marked.

Tested in tests/train/optim/test_make.py.
"""

from inspect import unwrap
from typing import Any

import torch

from slm.kernels.native import Kernels
from slm.train.optim.fused import NO_FACTORS, adamw_step, new_state


class Optimizer(torch.optim.Optimizer):
    """``torch.optim.Optimizer``, which does not import the compiler."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Optimizer, torch.optim.AdamW):
    """``torch.optim.AdamW``, which does not import the compiler. ``kernels`` compute its updates where there are some,
    with the same results to the bit. ``factors``: what the next step's gradients are multiplied by before."""

    def __init__(self, groups: list[dict[str, Any]], *, kernels: Kernels | None = None, **options: Any) -> None:
        super().__init__(groups, fused=True, **options)
        self.kernels, self.factors = kernels, NO_FACTORS

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    self.state[p] = new_state(p)
            options = {key: group[key] for key in ("betas", "lr", "eps", "weight_decay")}
            states = [self.state[p] for p in parameters]
            adamw_step(parameters, states, kernels=self.kernels, factors=self.factors, **options)
