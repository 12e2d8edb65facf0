"""A training run from its first step to its last checkpoint."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from data.stream.loader import EndOfTextError, Loader, validation_blocks
from data.tokenizers.tokenizer import Tokenizer
from slm.configuration import to_dict
from slm.machine.hardware import rss_bytes
from slm.model import checkpoint
from slm.model.transformer import LanguageModel
from slm.report import duration
from train.backend import make_backend
from train.config import RunConfig
from train.distributed.gradient_sync import take_part
from train.distributed.ranks import ALONE, Ranks
from train.distributed.shared_state import (
    gather_state,
    loader_state,
    loader_states,
    new_optimizer,
    restore,
    shared_batches,
    shared_start,
)
from train.environment import Environment
from train.guards import AwakeClock, Guards, NonFiniteError
from train.interrupt import StoppedError
from train.metrics_window import Window
from train.run import metrics_file, run_dir
from train.run.checkpointer import Saver
from train.run.event_log import Journal
from train.run.progress import ProgressLine
from train.run.run_dir import Start
from train.run.wandb_logger import WandbLogger
from train.schedule import learning_rate
from train.step import train_step
from train.validation import Validator, sample

STATE_FORMAT = 1
DRIFTED = "the processes' weights had drifted apart (processors that round differently?): rank 0's are everybody's"
EVENTS = {
    "skipped": "{error}: the update is skipped with its data ({skipped} so far)",
    "spike": "the loss is {loss:.4f}, {times:.1f} times the median; there is no checkpoint yet to go back to",
    "rolled_back": (
        "the loss of step {from:,} was {loss:.4f}, {times:.1f} times the median: back to this checkpoint, "
        "on with the data after it ({tokens:,} tokens passed over)"
    ),
    "slept": "the machine slept for {seconds:,} s; tokens/s, the time left and max_minutes do not count them",
}


class Trainer:
    """Holds what one run needs and moves it step by step. ``run`` returns the command's exit code."""

    def __init__(
        self,
        config: RunConfig,
        root: Path,
        model: LanguageModel,
        tokenizer: Tokenizer,
        environment: Environment,
        start: Start,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.root, self.ranks = config, root, ranks
        self.model, self.tokenizer, self.environment = model, tokenizer, environment
        train = config.train
        self.optimizer = new_optimizer(ranks, model, config.optim, shard=train.shard_optimizer)
        self.loader = Loader(
            config.data,
            tokenizer,
            seq_len=train.seq_len,
            micro_batch=train.micro_batch,
            split="train",
            seed=train.seed,
            workers=train.workers,
            rank=ranks.rank,
            world_size=ranks.size,
        )
        self.step, self.tokens, self._earlier_seconds = 0, 0, 0.0
        self.last_validation: dict[str, Any] = {}
        self.guards, self.window, self.clock = Guards(train), Window(), AwakeClock()
        if start.checkpoint:
            self._restore(start)
            if (position := loader_state(ranks, start.state, reshard=train.reshard)) is not None:
                self.loader.load_state_dict(position)
            self.guards.load_state_dict(start.state.get("guards", {}))
            self._earlier_seconds = start.state["elapsed_s"]
            if changed := run_dir.rounding_changes(
                start.state.get("rounding", {}), run_dir.rounding(environment, train)
            ):
                print(changed)
        blocks = ranks.first(
            lambda: validation_blocks(config.data, tokenizer, train.seq_len, train.eval_blocks, train.seed)
        )
        if len(blocks) == 0:
            raise UserError(
                f"the validation text is shorter than one sequence of {train.seq_len} tokens: "
                "give more text, a larger data.val_fraction, data.val_files=[...], or a smaller train.seq_len"
            )
        eot_id = tokenizer.eot_id if train.mask_documents else None
        self.backend = make_backend(model, train, environment, eot_id)
        self.validator = Validator(blocks, tokenizer, model.config.vocab_size, train.micro_batch)
        self.journal = Journal(root, active=ranks.main)
        self.metrics = metrics_file.MetricsFile(root / "metrics.jsonl", self.step)
        self.wandb = WandbLogger(config, root) if ranks.main and config.logger.name == "wandb" else None
        self.progress = ProgressLine(train.max_steps, self.step)
        self.interrupt, self.exchange = take_part(
            ranks,
            model,
            elapsed=lambda: self.elapsed,
            start_elapsed=self._earlier_seconds,
            wire=train.reduce,
        )
        self.saver = Saver(
            root,
            model.config,
            tokenizer.save,
            keep_last=train.keep_last,
            background=train.background_save,
            say=self.progress.say,
        )
        self.optimizer.register_step_pre_hook(lambda *_: self.saver.before_update())
        self._started, self._first = self.clock(), True
        self.journal.start(self.step, start.checkpoint, model.config, environment, processes=ranks.size)

    # The run.

    def run(self) -> int:
        """Train to the end, or to a signal; the last state is saved either way. Returns the exit code."""
        with self.interrupt, self.journal.until_the_end(lambda: self.step, lambda: self.interrupt.signal):
            try:
                self._loop()
                if self.last_validation.get("step") != self.step and not self.interrupt:
                    self._validate()
                self._save()
                with self.interrupt.saving():
                    self.saver.wait()
            except StoppedError:
                self.progress.say("stopped before the first step was done: there was nothing to save yet")
            finally:
                with self.interrupt.saving():
                    self.saver.close()
                    self.progress.close()
                    self.metrics.close()
                    self.loader.close()
                    if self.wandb:
                        self.wandb.close()
        if not self.ranks.main:
            return self.interrupt.exit_code
        if self.interrupt:
            print(f"stopped at step {self.step:,}; the same command goes on from there")
        return self.interrupt.exit_code

    def _loop(self) -> None:
        batches = shared_batches(self.ranks, self.loader, self.config.data, self.config.train.grad_accum)
        due = self.step > 0 and self.step % self.config.train.eval_every == 0
        if due and self.last_validation.get("step") != self.step:
            self._validate()  # the run was stopped in the midst of it
        while not self.interrupt and self._progress() < 1:
            try:
                self._step(batches)
            except EndOfTextError as error:
                self.progress.say(f"step {self.step:,}: {error}")
                return

    def _step(self, batches: Iterator[np.ndarray]) -> None:
        """One optimizer step and what is due after it, unless a guard says otherwise."""
        train = self.config.train
        self.saver.check()
        began = self.clock()
        try:
            # The first step waits for the compiler: it is not worth waiting for.
            with self.interrupt.at_once() if self._first else nullcontext():
                result = train_step(
                    self.model,
                    self.optimizer,
                    batches,
                    grad_accum=train.grad_accum,
                    grad_clip=self.config.optim.grad_clip,
                    lr=learning_rate(self.config.optim, self.step, self._progress()),
                    backend=self.backend,
                    exchange=self.exchange,
                )
        except NonFiniteError as error:
            if not self.guards.skips(error):
                raise
            self.optimizer.zero_grad(set_to_none=True)
            self._event("skipped", error=str(error).partition(":")[0], skipped=self.guards.skipped)
            return
        assert not self.saver.shares, "the optimizer changed the weights without telling the saver"
        self._first = False
        self.step += 1
        self.tokens += result.tokens
        if (median := self.guards.spikes(result.loss)) is not None and self._roll_back(result.loss, median):
            return
        self.window.add(result, self.clock() - began)
        if slept := self.clock.slept():
            self._event("slept", seconds=round(slept))
        if self.step % train.log_every == 0 or self.step == 1:
            self._log(self.window)
            self.window = Window()
        if self.step % train.eval_every == 0:
            self._validate()
        if self.step % train.checkpoint_every == 0 and self._progress() < 1:
            self._save()

    def _progress(self) -> float:
        """The share of the run that is done, by steps or, where that is further, by time."""
        train = self.config.train
        by_steps = self.step / train.max_steps
        elapsed = self.exchange.agreed_elapsed(self.elapsed)
        by_time = elapsed / (60 * train.max_minutes) if train.max_minutes else 0.0
        return max(by_steps, by_time)

    @property
    def elapsed(self) -> float:
        """Seconds of training, earlier starts of this run included."""
        return self._earlier_seconds + self.clock() - self._started

    # What is said and written on the way.

    def _log(self, window: Window) -> None:
        record = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": window.loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "grad_norm": window.grad_norm,
            "tokens_per_s": window.tokens / window.seconds,
            "data_wait": window.data_seconds / window.seconds,
            "rss_gb": rss_bytes() / 2**30,
            "elapsed_s": self.elapsed,
        }
        if self.ranks.size > 1:
            record["exchange_wait"] = self.exchange.waited / window.seconds
            self.exchange.waited = 0.0
        if self.guards.skipped or self.guards.rollbacks:
            record |= {"skipped": self.guards.skipped, "rollbacks": len(self.guards.rollbacks)}
        self._record(record)
        train = self.config.train
        left = (train.max_steps - self.step) * train.tokens_per_step / record["tokens_per_s"]
        if train.max_minutes:
            left = min(left, 60 * train.max_minutes - self.elapsed)
        # The first step waits for the compiler: it says nothing about the ones to come.
        self.progress.update(record, None if self.step == 1 else left)

    def _event(self, event: str, **facts: Any) -> None:
        """Tell of something that is not a step's ordinary course: a line, and a record among the metrics."""
        self.metrics.write({"event": event, "step": self.step, "time": time.time(), **facts})
        self.progress.say(f"step {self.step:,}: {EVENTS[event].format(**facts)}")

    def _record(self, record: dict[str, Any]) -> None:
        self.metrics.write(record)
        if self.wandb:
            self.wandb.log(record)

    def _validate(self) -> None:
        try:
            result = self.validator(self.backend, self.exchange.heard, self.ranks)
        except Exception:
            if not self.interrupt:  # Ctrl-C in a terminal also reaches a compiler that validation waits for
                raise
            return
        if result is None:
            return
        self.last_validation = {
            "step": self.step,
            "tokens": self.tokens,
            "val_loss": result.loss,
            "val_bits_per_byte": result.bits_per_byte,
        }
        if not self.ranks.main:
            return
        self._record(self.last_validation)
        self.progress.validation = f"{result.loss:.3f}"
        self.progress.say(
            f"step {self.step:,}: validation {result.loss:.4f} nats per token, {result.bits_per_byte:.4f} bits per byte"
        )
        train = self.config.train
        with (self.root / "samples.md").open("a", encoding="utf-8") as file:
            for prompt in train.sample_prompts:
                if self.interrupt:
                    break
                text = sample(
                    self.model,
                    self.tokenizer,
                    prompt,
                    max_tokens=train.sample_tokens,
                    temperature=train.sample_temperature,
                )
                self.progress.say("  " + text.replace("\n", "\n  "))
                file.write(f"## step {self.step}\n\n{text}\n\n")
        self.journal.refresh()

    # Checkpoints.

    def _save(self) -> None:
        state = {
            "format": STATE_FORMAT,
            "step": self.step,
            "tokens": self.tokens,
            "elapsed_s": self.elapsed,
            "validation": self.last_validation,
            **loader_states(self.ranks, self.loader.state_dict()),
            "guards": self.guards.state_dict(),
            "window": self.window.state_dict(),
            "rounding": run_dir.rounding(self.environment, self.config.train),
            "config": to_dict(self.config),
        }
        with self.interrupt.saving():
            tensors, drifted = gather_state(self.ranks, self.model, self.optimizer)
            if drifted:
                self.backend.weights_changed()
                self.progress.say(DRIFTED)
            if self.ranks.main:
                self.saver.save(self.step, checkpoint.take_snapshot(self.model, tensors), state)
        self.guards.saved()

    def _restore(self, start: Start) -> None:
        """Put back what a checkpoint holds of the training itself: all but the data's position, guards and time."""
        state = start.state
        restore(self.ranks, start, self.model, self.optimizer)
        self.step, self.tokens = state["step"], state["tokens"]
        self.last_validation = state["validation"]
        self.window = Window(state.get("window"))

    def _roll_back(self, loss: float, median: float) -> bool:
        """Go back to the newest checkpoint; the data goes on where it is, past what made the loss jump.

        False where there is no checkpoint yet. A run that is killed before it saves again comes the same way: the
        guards decide by what the checkpoint holds.
        """
        with self.interrupt.saving():
            self.saver.wait()
            start = shared_start(self.ranks, lambda: run_dir.newest_good(self.root, self.progress.say))
            jump = {"loss": loss, "median": median, "times": loss / median}
            if start.checkpoint is None:
                self._event("spike", **jump)
                return False
            if self.ranks.main:
                run_dir.set_aside_later(self.root, start.checkpoint)  # damaged, or this one would be the newest
            jump |= {"from": self.step, "to": start.state["step"], "tokens": self.tokens - start.state["tokens"]}
            self._restore(start)
            self.backend.weights_changed()
            self.guards.rolled_back(start.state.get("guards", {}), jump)
            self.metrics.close()
            self.metrics = metrics_file.MetricsFile(self.metrics.path, self.step)
            self._event("rolled_back", **jump)
        return True

    def summary(self) -> str:
        """One line on what came out."""
        text = f"{self.tokens:,} tokens in {duration(self.elapsed)}"
        if self.last_validation:
            text += (
                f"; validation {self.last_validation['val_loss']:.4f} nats per token, "
                f"{self.last_validation['val_bits_per_byte']:.4f} bits per byte"
            )
        return text
