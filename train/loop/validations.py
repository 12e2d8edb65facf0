"""A run's validations: the held-out loss, texts of the model, and how long the end of the run will take.

Tested in tests/train/test_main.py, tests/train/test_reliability.py.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from slm.runs import Run, checkpoint_step
from slm.train.components.component import Component
from slm.train.parts import Parts
from slm.train.report.samples import SAMPLE_TEMPERATURE, SAMPLE_TOKENS, SAMPLES, entry
from slm.train.run.questions import score_line
from slm.train.validation import sample


class Validations:
    """Scores the weights that a run would be saved with."""

    def __init__(self, run: Parts, components: Sequence[Component]) -> None:
        self._run, self._components = run, components
        self.step_seconds = 0.0
        """What a step took in the last metrics window."""
        self._scoring_seconds = 0.0

    def validate(self) -> None:
        """Score the model; nothing is noted where a signal interrupts it."""
        clock, validator = self._run.state.clock, self._run.validator
        began = clock()
        self._scoring_seconds = 0.0
        with ExitStack() as shown:
            for each in self._components:
                shown.enter_context(each.shown())
            self._score()
        more = len(validator.blocks) / validator.usual - 1  # the last validation scores more, and writes as many texts
        self.expect_closing(clock() - began + more * self._scoring_seconds)

    def expect_closing(self, validation_seconds: float) -> None:
        """Note how long the end of the run will take, where that counts: a validation, what components do then, a save,
        half of a step.

        Not in the last validation: a run that is over must not seem to have time left.
        """
        run = self._run
        if run.config.train.max_minutes is not None and run.fraction_done() < 1:
            after = [run.checkpointer.write_s, self.step_seconds / 2, run.questions.closing_seconds]
            run.state.closing_seconds = run.ranks.broadcast_from_main(
                lambda: validation_seconds + sum(each.closing_seconds() for each in self._components) + sum(after)
            )

    def _score(self) -> None:
        run = self._run
        began, last = run.state.clock(), run.fraction_done() >= 1
        try:
            with run.log.doing("a validation"):
                result = run.validator(run.backend, run.sync.signal_received, run.ranks, run.log.done, last=last)
        except Exception:
            if not run.interrupt:  # Ctrl-C in a terminal also reaches a compiler that validation waits for
                raise
            return
        self._scoring_seconds = run.state.clock() - began
        if result is None:
            run.sync.agree_on_signal()
            return
        record: dict[str, float | None] = {
            "step": run.state.step,
            "tokens": run.state.tokens,
            "val_loss": result.loss,
            "val_bits_per_byte": result.bits_per_byte,
            "val_tokens": result.tokens,
            **{f"val_{name}": value for name, value in result.figures.items()},
        }
        if result.usual_loss is not None:
            record["val_usual_loss"] = result.usual_loss
        improved = run.state.validated(record)
        for each in self._components:
            each.validated(improved=improved)
        if run.ranks.main:
            run.log.validation(run.state.validation, run.state.best_loss if run.state.risen else None)
            self._write_samples()
            run.log.events.refresh()

    def _write_samples(self) -> None:
        """Let the model continue each prompt and answer the questions that are shown; the texts go to the terminal and
        to ``samples.md``."""
        run, train = self._run, self._run.config.train
        for prompt in train.sample_prompts:
            if run.interrupt:
                return
            text = sample(
                run.model,
                run.tokenizer,
                prompt,
                max_tokens=SAMPLE_TOKENS,
                temperature=SAMPLE_TEMPERATURE,
            )
            self._write_texts(run.state.step, [text])
        if run.questions and not run.interrupt:
            last = run.fraction_done() >= 1
            self._write_texts(run.state.step, run.questions.at_validation(run.state.step, run.state.elapsed, last=last))

    def _write_texts(self, step: int, texts: list[str]) -> None:
        with (self._run.root / SAMPLES).open("a", encoding="utf-8") as file:
            for text in texts:
                self._print_text(text)
                file.write(entry(step, text))

    def _print_text(self, text: str) -> None:
        self._run.log.print("  " + text.replace("\n", "\n  "))

    # The questions of a run that learns from conversations.

    def ask_first(self) -> None:
        """The score of the model that the run begins with, on its held-out questions, and its answers."""
        run = self._run
        if not run.questions:
            return
        if run.state.step:
            run.questions.resume(run.log.asked_first())
            return
        with run.interrupt.at_once():
            out, texts = run.questions.before(run.state.limit_seconds)
        self._write_texts(0, texts)
        run.log.asked(0, out, score_line(out, run.questions.what))

    def ask_last(self) -> None:
        """The same questions for the checkpoint that other commands take: the best one. Nothing is trained any more."""
        run = self._run
        if not run.questions or run.interrupt:
            return
        chosen = Run(root=run.root).checkpoint()
        out = run.questions.answered_at(checkpoint_step(chosen))
        if out is None:
            run.trained.load(chosen)
            out, texts = run.questions.after(lambda: bool(run.interrupt))
            if run.interrupt:
                return
            if checkpoint_step(chosen) != run.questions.shown_at:
                for text in texts:
                    self._print_text(text)
        if run.questions.limited:
            run.log.print("some validations showed no answers: they would have taken over 2 % of the run's time")
        run.log.asked(run.state.step, out, score_line(out, run.questions.what, run.log.asked_first(), chosen.name))
