"""What a run is made of, and how far it is: what the trainer, its helpers and components share.

Tested in tests/train/test_main.py, tests/train/components/test_component.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm.data.stream.loader import Loader
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.transformer import LanguageModel
from slm.train.backend import Backend
from slm.train.config import RunConfig
from slm.train.distributed.gradient_sync import GradientSync
from slm.train.distributed.ranks import Ranks
from slm.train.environment import Environment
from slm.train.interrupt import Interrupt
from slm.train.objective.objective import Objective
from slm.train.optim.interface import Optimizer, Trained
from slm.train.run.checkpointer import Checkpointer
from slm.train.run.questions import RunQuestions
from slm.train.run.run_log import RunLog
from slm.train.run.run_state import RunState
from slm.train.run.text_account import TextAccount
from slm.train.validation import Validator


@dataclass(kw_only=True)
class Parts:
    """What a run is made of."""

    config: RunConfig
    root: Path
    """The run's directory; on ranks other than 0 a temporary folder."""
    ranks: Ranks
    environment: Environment
    tokenizer: Tokenizer
    model: LanguageModel
    trained: Trained
    """Those parameters that the optimizer updates: the model's, or an adapter's."""
    optimizer: Optimizer
    loader: Loader
    text: TextAccount
    backend: Backend
    objective: Objective
    """What a step minimizes where no component says otherwise."""
    validator: Validator
    kept_blocks: np.ndarray
    """Blocks [N, T + 1] of training text that is kept for the calibration of the head; none where there is no such."""
    state: RunState
    log: RunLog
    interrupt: Interrupt
    sync: GradientSync
    checkpointer: Checkpointer
    questions: RunQuestions
    validate: Callable[[], None] = lambda: None
    """Score the model now. The trainer sets it."""
    forget_losses: Callable[[], None] = lambda: None
    """Earlier losses belong to another model: nothing compares with them any more. The trainer sets it."""

    def fraction_done(self) -> float:
        """The share of the run that is done, the same on every rank."""
        return self.state.fraction_done(self.sync.agreed_elapsed(self.state.elapsed))

    def steps_left(self) -> float | None:
        """Optimizer steps to the end of the run; None at the first step of a run that time bounds."""
        train, step, done = self.config.train, self.state.step, self.fraction_done()
        if train.max_minutes is None:
            return train.max_steps - step
        return max(0.0, step / done * (1 - done)) if step and done else None
