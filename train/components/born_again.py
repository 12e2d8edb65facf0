"""A run whose model becomes the teacher of a new one: born-again networks (Furlanello et al. 2018, arXiv 1805.04770).

The first part of the run trains a model like any other. It is then kept, frozen, in ``teacher/`` of the run's
directory, and the rest of the run trains a model that begins anew: it learns from the text and from what the first one
predicts. Where text is read several times, that holds back learning it by heart, so that the second model ends well
below the first (docs/results/recipe.md).

Tested in tests/train/components/test_born_again_run.py.
"""

from collections.abc import Mapping
from typing import Any

import torch

from slm.cli import spelled
from slm.data.errors import UserError
from slm.model.transformer import LanguageModel
from slm.train.bigrams.start import start_from_bigrams
from slm.train.components.component import Component, Step
from slm.train.objective.make import distillation
from slm.train.objective.objective import Objective
from slm.train.objective.teacher import model_teacher
from slm.train.run.kept_model import keep_model, remove_model, weights_digest
from slm.train.run.metrics_window import MetricsWindow

TEACHER = "teacher"
"""In the run's directory: the first model."""


class BornAgain(Component):
    """The two parts of a run with ``distill.born_again``.

    ``share``: of the run, after which the model becomes the teacher of a new one.
    """

    name = "teacher"

    def __init__(self, share: float) -> None:
        self._share = share
        self._digest = ""
        """Of the weights that the model in training learns from; empty before."""
        self._taught: Objective | None = None

    def before_step(self, step: Step) -> None:
        state = self.run.state
        if self._share <= step.fraction_done and not state.began:
            self._begin_again()
            if self.run.interrupt:
                return
        done = self.run.fraction_done()
        if not state.began:
            step.fraction_done = done / self._share
            return
        step.fraction_done, step.number = (done - self._share) / (1 - self._share), state.step - state.began
        if self._taught is None:
            self._taught = self._load()
        step.objective = self._taught

    def _begin_again(self) -> None:
        """The model becomes the teacher of a new one."""
        run, state = self.run, self.run.state
        if state.validation.get("step") != state.step:
            run.validate()
        new = self._fresh()
        if run.interrupt:
            return  # the same is done when the run goes on
        run.checkpointer.before_update()
        folder = run.root / TEACHER
        remove_model(folder)
        keep_model(folder, run.model, run.tokenizer)
        self._digest, self._taught = weights_digest(folder), None
        run.model.load_state_dict(new.state_dict())
        run.optimizer.state.clear()
        run.backend.weights_changed()
        state.began, state.validation = state.step, {}  # what was validated is the teacher
        run.forget_losses()
        state.window = MetricsWindow()
        line = (
            f"the model so far becomes the teacher of a new one, which begins here "
            f"(distill.born_again={self._share:g}): "
            "its loss is high at first, and ends lower"
        )
        run.log.event("born_again", state.step, line, share=self._share)

    def _fresh(self) -> LanguageModel:
        """A model of the same shape with first weights from the seed after the run's own."""
        config = self.run.config
        with torch.random.fork_rng():
            torch.manual_seed(config.train.seed + 1)
            new = LanguageModel(self.run.model.config, config.optim.init)
        if config.optim.init_bigrams:
            start_from_bigrams(config, self.run.tokenizer, new)
        return new

    def goes_on(self) -> bool:
        return not self.run.state.began

    def unfinished(self, state: Mapping[str, Any]) -> bool:
        return not state["began"]

    def text_ended(self) -> str | None:
        if self.run.state.began:
            return None
        return "the text ended before the second model of distill.born_again began: there is none"

    def state_dict(self) -> dict[str, Any]:
        return {"digest": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._digest, self._taught = state.get("digest", ""), None

    def _load(self) -> Objective:
        """What the second model minimizes. UserError where the teacher's files are gone, or are not those that were
        kept."""
        run, folder = self.run, self.run.root / TEACHER
        config, tokenizer = run.config, run.tokenizer
        eot_id = tokenizer.eot_id if config.train.mask_documents else None
        try:
            if weights_digest(folder) != self._digest:
                raise UserError("its weights are not those that the run was taught by")
            teacher = model_teacher(folder, run.environment, tokenizer.vocab_size, config.distill.temperature, eot_id)
        except (OSError, UserError) as error:
            raise UserError(
                f"the run's teacher cannot be read from {folder} ({error}): begin anew with "
                f"{spelled('train', resume='never')}"
            ) from error
        return distillation(config, teacher, tokenizer)
