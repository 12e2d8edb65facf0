"""The options of ``make tune`` and ``make qat``: a run's, and those of going on from a trained model.

Tested in tests/train/tune/test_tune.py.
"""

from dataclasses import dataclass, field

from slm.data.errors import UserError
from slm.train.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What a tuned run starts from, and how long it goes on."""

    lr_scale: float = 0.8
    """The peak learning rate as a share of the base run's own; unused for a model from elsewhere and for LoRA."""

    other_lr_scale: float = 0.2
    """The same for Muon's other rates: embeddings, head and gains. Words that no conversation has keep their place."""

    replay: float | None = None
    """Share of the tokens that come from the base run's own text, so that it is not forgotten; 0: none. None:
    ``recipe.REPLAY`` where all weights of a run are trained and its text is at hand, else 0."""

    lora: int = 0
    """Rank of a low-rank adapter that is trained in place of the weights; 0: all weights are trained."""

    kept: float | None = None
    """Share of the weights' change from a downloaded base that is kept at the end, so that less of what it knew
    is lost; 1: all. None: the least that keeps nearly all that was learned (``components/interpolation.py``), where no
    conversation is held out, else all: held-out ones do not tell what those in training would lose."""

    frozen: float | None = None
    """Share of a downloaded base's layers, from the lowest, that stay as they are, with its embedding and head
    (``components/frozen.py``); 0: all weights are trained. None: ``rule.FROZEN`` where there are few conversations or
    little time, else 0."""

    def __post_init__(self) -> None:
        if self.frozen is not None and not 0 <= self.frozen < 1:
            raise UserError(f"tune.frozen={self.frozen} must be a share from 0 to below 1, for example 0.5")
        if self.kept is not None and not 0 < self.kept <= 1:
            raise UserError(f"tune.kept={self.kept} must be a share above 0 and at most 1, for example 0.7")
        if self.lora < 0:
            raise UserError(f"tune.lora={self.lora} must be a rank, for example 16, or 0 for all weights")
        if self.replay is not None and not 0 <= self.replay < 1:
            raise UserError(f"tune.replay={self.replay} must be a share from 0 to below 1, for example 0.2")
        for name in ("lr_scale", "other_lr_scale"):
            if not 0 < (value := getattr(self, name)) <= 10:
                raise UserError(f"tune.{name}={value} must be above 0 and at most 10, for example 0.8")


@dataclass(frozen=True, kw_only=True)
class QatOptions:
    """How long, and how fast, a trained model goes on for a quantized type."""

    lr_scale: float = 0.2
    """The peak learning rate as a share of the base run's own; it falls to 0 over the run."""
    steps_share: float = 0.1
    """Optimizer steps as a share of those that the base has done, where ``train.max_steps`` is not given."""

    def __post_init__(self) -> None:
        if not 0 < self.lr_scale <= 10:
            raise UserError(f"qat.lr_scale={self.lr_scale} must be above 0, for example 0.2")
        if not 0 < self.steps_share <= 1:
            raise UserError(f"qat.steps_share={self.steps_share} must be above 0 and at most 1, for example 0.1")


@dataclass(frozen=True, kw_only=True)
class QatConfig(RunConfig):
    """A run that goes on from a trained model for a quantized type."""

    base: str = ""
    """The run, checkpoint or Hugging Face model directory that is continued."""
    qat: QatOptions = field(default_factory=QatOptions)


@dataclass(frozen=True, kw_only=True)
class TuneConfig(RunConfig):
    """A run that tunes a trained model on conversations."""

    base: str = ""
    """The run, checkpoint or Hugging Face model directory that is tuned."""
    tune: TuneOptions = field(default_factory=TuneOptions)
