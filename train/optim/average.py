"""A moving average of the weights: what is validated and saved, while training goes on from the weights themselves.

Tested in tests/train/optim/test_average.py, tests/train/test_resume.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

TRAINED = "trained"
"""In a checkpoint's optimizer state: the weight from which training goes on, where ``model.safetensors`` holds the
average."""


class Average:
    """The exponential moving average of a model's parameters. ``share``: what each step keeps of it; 0: there is none.

    It costs 4 bytes a parameter. A new average begins at the weights of its first step.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._share = share
        self._tensors: dict[str, Tensor] = {}

    @property
    def on(self) -> bool:
        """Whether there is an average that differs from the weights."""
        return bool(self._tensors)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        if not self._share:
            return
        if not self._tensors:
            self._tensors = {name: p.detach().clone() for name, p in self._parameters.items()}
            return
        weights = [self._parameters[name].detach() for name in self._tensors]
        torch._foreach_lerp_(list(self._tensors.values()), weights, 1 - self._share)

    def put(self, name: str, tensor: Tensor) -> None:
        """Validate and save ``tensor`` in the place of this parameter, from whose own value training would go on."""
        self._tensors[name] = tensor

    def begin_anew(self) -> None:
        """The next step's weights are the first."""
        self._tensors = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the model's parameters are the average. Only their memory is exchanged: nothing is copied."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, tensor in self._tensors.items():
            parameter = self._parameters[name]
            self._tensors[name], parameter.data = parameter.data, tensor

    def tensors(self) -> list[Tensor]:
        return list(self._tensors.values())

    def weights(self) -> dict[str, Tensor]:
        """The averaged parameters by name, for a checkpoint; empty where there are none."""
        return dict(self._tensors)

    def trained(self) -> dict[str, Tensor]:
        """The parameters themselves by their names in a checkpoint's optimizer state; empty without an average."""
        return {f"{name}.{TRAINED}": self._parameters[name].detach() for name in self._tensors}

    @torch.no_grad()
    def load(self, trained: dict[str, Tensor]) -> None:
        """The model holds what a checkpoint's ``model.safetensors`` holds, ``trained`` is from its optimizer state.

        Where that is an average the model gets its weights back. Without ``trained`` a new average begins.
        """
        self._tensors = {}
        for name, parameter in self._parameters.items():
            key = f"{name}.{TRAINED}"
            if key not in trained:
                continue
            if self._share:
                self._tensors[name] = parameter.detach().clone()
            parameter.copy_(trained[key])
