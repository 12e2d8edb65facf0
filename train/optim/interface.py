"""What training needs of a model's parameters and of an optimizer.

Tested in tests/train/optim/test_state.py.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import nn


class Parameters(Protocol):
    """A model, or the part of one that an optimizer updates."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


class Optimizer(Protocol):
    """What training needs of an optimizer, as torch's own have it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    @property
    def state(self) -> Any: ...
    def step(self) -> Any: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def register_step_pre_hook(self, hook: Any) -> Any: ...
