"""A run whose model becomes the teacher of a new one: born-again networks (Furlanello et al. 2018, arXiv 1805.04770).

The first part of the run trains a model like any other. It is then kept, frozen, in ``teacher/`` of the run's
directory, and the rest of the run trains a model that begins anew: it learns from the text and from what the first one
predicts. Where text is read several times, that holds back learning it by heart, so that the second model ends well
below the first (docs/results/recipe.md).

Tested in tests/train/test_born_again.py.
"""

from dataclasses import replace
from pathlib import Path

import torch

from slm.cli import spelled
from slm.data.errors import UserError
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.transformer import LanguageModel
from slm.train.bigrams.start import start_from_bigrams
from slm.train.config import RunConfig, TrainConfig
from slm.train.environment import Environment
from slm.train.objective.make import distillation
from slm.train.objective.objective import Objective
from slm.train.objective.teacher import model_teacher
from slm.train.run.kept_model import keep_model, remove_model, weights_digest

TEACHER = "teacher"
"""In the run's directory: the first model."""


class BornAgain:
    """The two parts of a run with ``distill.born_again``; any other run is all first part.

    ``began``: the step at which the model in training began, 0 for the first one. ``first``: what that one minimizes.
    """

    def __init__(
        self, config: RunConfig, tokenizer: Tokenizer, environment: Environment, root: Path, first: Objective
    ) -> None:
        self._config, self._tokenizer, self._environment = config, tokenizer, environment
        self._share, self._first, self._folder = config.distill.born_again, first, root / TEACHER
        self._without_bags = replace(config.train, superposition=1)
        self._taught: Objective | None = None

    def due(self, fraction_done: float, began: int) -> bool:
        """Whether the model is to become the teacher now, when so much of the run is done."""
        return 0 < self._share <= fraction_done and not began

    def has_student(self, began: int) -> bool:
        """Whether a second model is still to begin. A run does not end without it, whatever the first one's losses."""
        return self._share > 0 and not began

    def part_done(self, fraction_done: float, began: int) -> float:
        """The share that is done of the part in progress."""
        if not self._share:
            return fraction_done
        return (fraction_done - self._share) / (1 - self._share) if began else fraction_done / self._share

    def options(self, began: int) -> TrainConfig:
        """Those of the part in progress: a teacher knows no bags of tokens."""
        return self._without_bags if began else self._config.train

    def objective(self, began: int, digest: str) -> Objective:
        """What the part in progress minimizes. UserError where the teacher's files are gone, or are not those that
        ``keep`` returned ``digest`` for."""
        if not began:
            return self._first
        if self._taught is None:
            self._taught = self._load(digest)
        return self._taught

    def keep(self, model: LanguageModel) -> str:
        """``model`` is the teacher. Returns the digest of its weights, for the run's checkpoints."""
        remove_model(self._folder)
        keep_model(self._folder, model, self._tokenizer)
        self._taught = None
        return weights_digest(self._folder)

    def fresh(self, model: LanguageModel) -> LanguageModel:
        """A model of the same shape with first weights from the seed after the run's own."""
        config = self._config
        with torch.random.fork_rng():
            torch.manual_seed(config.train.seed + 1)
            new = LanguageModel(model.config, config.optim.init)
        if config.optim.init_bigrams:
            start_from_bigrams(config, self._tokenizer, new)
        return new

    def _load(self, digest: str) -> Objective:
        config, tokenizer = self._config, self._tokenizer
        eot_id = tokenizer.eot_id if config.train.mask_documents else None
        temperature = config.distill.temperature
        try:
            if weights_digest(self._folder) != digest:
                raise UserError("its weights are not those that the run was taught by")
            teacher = model_teacher(self._folder, self._environment, tokenizer.vocab_size, temperature, eot_id)
        except (OSError, UserError) as error:
            raise UserError(
                f"the run's teacher cannot be read from {self._folder} ({error}): begin anew with "
                f"{spelled('train', resume='never')}"
            ) from error
        return distillation(config, teacher, tokenizer)
