"""What some runs add to training: hooks around a step, an overlay of weights, an end of the run, a state to save.

A component is a file in this folder. It overrides the hooks that it needs; the trainer calls them in the order of
``make_components``, and knows none by name. One outside the recipe has a dataclass ``Options`` beside it with a method
``make`` that returns it: ``components.NAME`` of the configuration holds these options (CONTRIBUTING.md has an example).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from slm.model.quantized import QuantizedWeights
from slm.train.config import RunConfig
from slm.train.objective.objective import Objective
from slm.train.parts import Parts


@dataclass(kw_only=True)
class Step:
    """What the next step reads and learns. A component may change it before the step."""

    fraction_done: float
    """The share of the run that is done. The learning rate follows it."""
    number: int
    """The steps before it."""
    objective: Objective
    batches: Iterator[np.ndarray]
    """Blocks [B, T + 1]."""
    grad_accum: int
    """Passes of the step, of all ranks together."""


@dataclass(kw_only=True)
class Content:
    """What a checkpoint will hold. A component may change it. All tensors are shared with training."""

    weights: dict[str, Tensor]
    """The tensors of ``model.safetensors``: at first those that training resumes from."""
    tensors: dict[str, Tensor]
    """The tensors of ``optimizer.safetensors``."""
    quantized: QuantizedWeights | None = None
    """The blocks of quantized ``weights``."""
    state: dict[str, Any] = field(default_factory=dict)
    """More entries of ``trainer_state.json``."""


class Component:
    """The hooks, all of which do nothing here."""

    name = ""
    """The key of its state in a checkpoint's ``trainer_state.json``."""
    run: Parts

    def check(self, config: RunConfig) -> None:
        """UserError for a configuration that it cannot work with. Asked before anything is built."""

    def note(self) -> str | None:
        """A line on what it will do, before the first step. Asked before ``attach``."""
        return None

    def attach(self, run: Parts) -> None:
        """The run is made; nothing is loaded and no step is done yet."""
        self.run = run

    # Around a step.

    def reading(self, batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The run's blocks [B, T + 1], on their way to all of its steps."""
        return batches

    def before_step(self, step: Step) -> None:
        """A step begins. A component may change what it reads and learns."""

    def before_update(self) -> None:
        """Gradients are complete, and weights and moments are about to change."""

    def after_update(self) -> None:
        """They have changed; ``run.state.step`` counts the update."""

    def jumped(self, loss: float) -> float | None:
        """What the step's ``loss`` is measured against, where the run is to go back from it; None: it goes on."""
        return None

    def rolled_back(self, jump: dict[str, Any], state: Mapping[str, Any]) -> None:
        """The run went back to a checkpoint with this ``state`` of the component: ``from`` which step, ``to`` which."""
        self.load_state_dict(state)

    def record(self) -> dict[str, Any]:
        """More fields of a training record."""
        return {}

    # Validations.

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within it the model has the weights that are validated and saved."""
        yield

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Within it the model has the weights that training goes on from."""
        yield

    def validated(self, *, improved: bool) -> None:
        """The model was scored; ``improved``: lower than ever."""

    def forget_losses(self) -> None:
        """Another model had the earlier losses."""

    # The end of the run.

    def ends(self) -> str | None:
        """Why the run is to end before its time, as a sentence."""
        return None

    def changes_at_end(self) -> bool:
        """Whether all steps are done and ``at_end`` is about to change the weights: validation waits for it."""
        return False

    def at_end(self) -> bool:
        """All steps are done, or the run ends early, but not by a signal. Returns whether the weights to be validated
        are others now."""
        return False

    def closing_seconds(self) -> float:
        """About how long ``at_end`` will take, on rank 0."""
        return 0.0

    def unfinished(self, state: Mapping[str, Any]) -> bool:
        """Whether a run with this checkpoint's state has still to do what comes after its last step. Asked before
        ``attach``."""
        return False

    def ended_early(self, state: Mapping[str, Any]) -> tuple[str, str] | None:
        """How it has ended a run with this checkpoint's state, and the option to change for more. Asked before
        ``attach``."""
        return None

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Its state, as JSON; empty: it has none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned; empty where the checkpoint has nothing."""

    def owns(self, name: str) -> bool:
        """Whether a tensor of ``optimizer.safetensors`` is its own. Every rank gets it."""
        return False

    def shared(self) -> list[Tensor]:
        """Tensors on which the ranks must agree: rank 0's hold for all when a checkpoint is made."""
        return []

    def resynced(self) -> None:
        """Those of ``shared``, or the weights, were overwritten by rank 0's."""

    def save(self, content: Content) -> None:
        """Put what it needs into a checkpoint. Called on every rank; only rank 0's is written."""

    def clear(self) -> None:
        """A checkpoint is about to be loaded: the parameters are the model's own again."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The model holds a checkpoint's ``model.safetensors``; ``tensors``: what of the checkpoint the component owns.
        Afterwards the model has the weights that it trains with."""
