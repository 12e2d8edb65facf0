"""The options of ``make bench-recipe``; configs/bench_recipe.yaml holds the same defaults.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.train.config import RunConfig

BASELINES = ("hf_trainer", "nanochat")
STEPS = (1024, 2048, 4096, 8192)
"""Tokens of a step that the others try by default. A small model learns more from short steps, and a long one loses
less time to its update: which is best depends on the contender and the time, so that ours says nothing of it."""
FINISHED = "finished.jsonl"
"""The file of a comparison's folder that has a line for each of its runs that are done."""


@dataclass(frozen=True, kw_only=True)
class RecipeBenchOptions:
    """Whom to compare with, and on which text all are scored."""

    resume: Path | None = None
    """The folder of a comparison that was stopped, which goes on."""
    baselines: list[str] = field(default_factory=lambda: ["hf_trainer"])
    """``hf_trainer``; nanochat is added where ``nanochat`` names its checkout."""
    learning_rates: list[float] = field(default_factory=lambda: [1e-3, 2e-3, 4e-3])
    """AdamW's peak rates for Hugging Face's Trainer, a whole run each; the best is compared."""
    trainer_vocab: int | None = None
    """Its vocabulary; None: ours. It multiplies by all of its words in each step, so that it wants fewer."""
    trainer_tokens: list[int] = field(default_factory=lambda: list(STEPS))
    """About how many tokens its steps have, to try, a whole run each at each rate; none: as many as ours has."""
    window: int = 512
    """Tokens of the windows in which everybody is scored."""
    validation: Path | None = None
    """A file of documents to score; None: ``data.val_files``, else held-out text of the run's data."""
    validation_bytes: int = 1_000_000
    """Held-out text without end (the tales) is scored up to this many bytes."""
    second_text: Path | None = None
    """Another file to score."""
    nanochat: Path | None = None
    """A checkout of nanochat; its scripts are run in it."""
    nanochat_python: Path | None = None
    """The Python with its dependencies; None: ``.venv/bin/python`` in the checkout."""
    nanochat_depths: list[int] = field(default_factory=lambda: [3, 4])
    """Depths to try, a whole run each for each factor. Up to half an hour one of these two was its best."""
    nanochat_lr_factors: list[float] = field(default_factory=lambda: [1.0])
    """What its own learning rates are multiplied by. It lowers them by the square root of the batch, to a thirteenth at
    3,072 tokens a step; 13 takes that back."""
    nanochat_vocab: int = 8192
    """Its vocabulary."""
    nanochat_tokens: list[int] = field(default_factory=lambda: list(STEPS))
    """About how many tokens its steps have, to try, a whole run each; none: as many as ours has."""
    nanochat_pieces: bool = True
    """Whether its documents are cut into pieces that fill its rows. Otherwise it reads the beginning of each alone."""
    nanochat_options: list[str] = field(default_factory=list)
    """More options of its ``base_train``, as ``--matrix-lr=0.04``."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.baselines) - set(BASELINES))
        if unknown:
            raise UserError(f"bench.baselines: there is no {unknown[0]!r}; choose from: {', '.join(BASELINES)}")
        if "nanochat" in self.baselines and self.nanochat is None:
            raise UserError("bench.baselines names nanochat: say where it is with bench.nanochat=DIR")
        if self.resume is not None and not (self.resume / FINISHED).is_file():
            raise UserError(f"bench.resume={self.resume} is no comparison: give the folder that it named at its start")
        if self.nanochat is not None and not (self.nanochat / "scripts/base_train.py").is_file():
            raise UserError(f"bench.nanochat={self.nanochat} is no checkout of nanochat: no scripts/base_train.py")
        if not self.learning_rates or min(self.learning_rates) <= 0:
            raise UserError("bench.learning_rates needs at least one positive rate, as [2e-3]")
        if not self.nanochat_lr_factors or min(self.nanochat_lr_factors) <= 0:
            raise UserError("bench.nanochat_lr_factors needs at least one positive factor, as [1]")
        for name in ("trainer_tokens", "nanochat_tokens"):
            if any(tokens < 1 for tokens in getattr(self, name)):
                raise UserError(f"bench.{name}: a step has one token or more, as [4096]; [] takes as many as ours")
        if self.window < 8:
            raise UserError(f"bench.window must be at least 8 tokens, not {self.window}")
        if self.validation_bytes < 1000:
            raise UserError(f"bench.validation_bytes must be at least 1000, not {self.validation_bytes}")
        for name in ("validation", "second_text"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise UserError(f"bench.{name}={path}: there is no such file")


def run_options(config: RunConfig) -> dict[str, Any]:
    """The options of a run, without those of the comparison that ``config`` may have, too."""
    return {each.name: getattr(config, each.name) for each in fields(RunConfig) if each.init}


@dataclass(frozen=True, kw_only=True)
class BenchRecipeConfig(RunConfig):
    """Our run (shape, text, recipe), the time that everybody has, and the others."""

    minutes: float = 10.0
    """From the start of a process to its end."""
    bench: RecipeBenchOptions = field(default_factory=RecipeBenchOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes <= 0:
            raise UserError(f"minutes must be positive, not {self.minutes}")
