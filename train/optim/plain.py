"""torch's optimizers, apart from its compiler.

torch marks some methods of its optimizers as not to be compiled, and the first call of such a method imports the
compiler, which takes seconds at the start of every run. Nothing here compiles an optimizer, so the methods are used as
they were before they were marked.

Tested in tests/train/optim/test_make.py.
"""

from inspect import unwrap

import torch


class Optimizer(torch.optim.Optimizer):
    """``torch.optim.Optimizer``, which does not import the compiler."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Optimizer, torch.optim.AdamW):
    """``torch.optim.AdamW``, which does not import the compiler."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
