"""What training needs of a model's parameters and of an optimizer.

Here the parameters are the model's own; ``train/lora/adapter.py`` has those of an adapter.

Tested in tests/train/optim/test_state.py, tests/train/test_resume.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from slm.model import checkpoint
from slm.model.snapshot import Computed
from slm.model.stored_weights import stream_weights
from slm.model.transformer import LanguageModel


class Trained:
    """All parameters of a model, by name, as optimizer, gradient sync and checkpoints take them."""

    base_fingerprint = ""
    """Fingerprint of the weights that an adapter belongs to; empty where the model itself is trained."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    def load(self, directory: Path) -> None:
        """Take the values of the checkpoint in ``directory``, a tensor at a time: a second copy of all may not fit."""
        config, own, found = self.model.config, self.model.state_dict(), set()
        for name, tensor in stream_weights(directory, tied=config.tie_embeddings):
            checkpoint.check_tensor(own, name, tensor, arch=config.arch, where=str(directory))
            own[name].copy_(tensor)
            found.add(name)
        checkpoint.check_complete(own, found, where=str(directory))

    def merged(self) -> dict[str, Computed]:
        """What a checkpoint holds in place of the model's weights; empty where the model itself is trained."""
        return {}

    def adapter_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds as an adapter; empty where the model itself is trained."""
        return {}

    def describe(self, directory: Path) -> None:
        """Write the files of a checkpoint in ``directory`` that say what these parameters are."""


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
