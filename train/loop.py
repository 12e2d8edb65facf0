"""A training run from its first step to its last checkpoint."""

from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from data.errors import UserError
from data.loader import Loader, validation_blocks
from data.tokenizer import Tokenizer
from slm import checkpoint
from slm.hardware import rss_bytes
from slm.model import LanguageModel
from slm.report import atomic_write_text
from slm.runs import list_checkpoints, point_latest
from train import metrics
from train.config import RunConfig
from train.environment import Environment
from train.interrupt import Interrupt
from train.optim import load_state_tensors, make_optimizer, state_tensors
from train.plot import plot_losses
from train.progress import ProgressLine, duration
from train.rundir import Start
from train.schedule import learning_rate
from train.step import StepResult, train_step
from train.validation import Validator, sample
from train.wandb_logger import WandbLogger

RNG = "rng.torch"
STATE_FORMAT = 1


class Trainer:
    """Holds what one run needs and moves it step by step. ``run`` returns the command's exit code."""

    def __init__(
        self,
        config: RunConfig,
        resolved: dict[str, Any],
        root: Path,
        model: LanguageModel,
        tokenizer: Tokenizer,
        environment: Environment,
        start: Start,
    ) -> None:
        self.config, self.resolved, self.root = config, resolved, root
        self.model, self.tokenizer, self.environment = model, tokenizer, environment
        train = config.train
        self.optimizer = make_optimizer(model, config.optim)
        self.loader = Loader(
            config.data,
            tokenizer,
            seq_len=train.seq_len,
            micro_batch=train.micro_batch,
            split="train",
            seed=train.seed,
            workers=train.workers,
        )
        self.step, self.tokens, self._earlier_seconds = 0, 0, 0.0
        if start.checkpoint:
            self._restore(start)
        blocks = validation_blocks(config.data, tokenizer, train.seq_len, train.eval_blocks, train.seed)
        if len(blocks) == 0:
            raise UserError(
                f"the validation text is shorter than one sequence of {train.seq_len} tokens: "
                "give more text, a larger data.val_fraction, data.val_files=[...], or a smaller train.seq_len"
            )
        self.validator = Validator(blocks, tokenizer, model.config.vocab_size, train.micro_batch)
        self.metrics = metrics.MetricsFile(root / "metrics.jsonl", self.step)
        self.wandb = WandbLogger(config, resolved, root) if config.logger.name == "wandb" else None
        self.progress = ProgressLine(train.max_steps, self.step)
        self.interrupt = Interrupt()
        self.last_validation: dict[str, Any] = {}
        self._started = perf_counter()

    # The run.

    def run(self) -> int:
        """Train to the end, or to a signal; the last state is saved either way. Returns the exit code."""
        try:
            with self.interrupt:
                self._loop()
                if self.last_validation.get("step") != self.step and not self.interrupt:
                    self._validate()
                self._save()
        finally:
            self.progress.close()
            self.metrics.close()
            self.loader.close()
            if self.wandb:
                self.wandb.close()
        plot_losses(metrics.read(self.metrics.path), self.root / "loss.png", self.config.name)
        if self.interrupt:
            print(f"stopped at step {self.step:,}; the same command goes on from there")
        return self.interrupt.exit_code

    def _loop(self) -> None:
        train, batches = self.config.train, iter(self.loader)
        if self.environment.compile:
            self.model.compile_parts()
        window = _Window()
        while not self.interrupt and (progress := self._progress()) < 1:
            began = perf_counter()
            result = train_step(
                self.model,
                self.optimizer,
                batches,
                grad_accum=train.grad_accum,
                grad_clip=self.config.optim.grad_clip,
                lr=learning_rate(self.config.optim, self.step, progress),
                environment=self.environment,
            )
            self.step += 1
            self.tokens += result.tokens
            window.add(result, perf_counter() - began)
            if self.step % train.log_every == 0 or self.step == 1:
                self._log(window)
                window = _Window()
            if self.step % train.eval_every == 0:
                self._validate()
            if self.step % train.checkpoint_every == 0 and self._progress() < 1:
                self._save()

    def _progress(self) -> float:
        """The share of the run that is done, by steps or, where that is further, by time."""
        train = self.config.train
        by_steps = self.step / train.max_steps
        by_time = self.elapsed / (60 * train.max_minutes) if train.max_minutes else 0.0
        return max(by_steps, by_time)

    @property
    def elapsed(self) -> float:
        """Seconds of training, earlier starts of this run included."""
        return self._earlier_seconds + perf_counter() - self._started

    # What is said and written on the way.

    def _log(self, window: "_Window") -> None:
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
        self._record(record)
        train = self.config.train
        left = (train.max_steps - self.step) * train.tokens_per_step / record["tokens_per_s"]
        if train.max_minutes:
            left = min(left, 60 * train.max_minutes - self.elapsed)
        # The first step waits for the compiler: it says nothing about the ones to come.
        self.progress.update(record, None if self.step == 1 else left)

    def _record(self, record: dict[str, Any]) -> None:
        self.metrics.write(record)
        if self.wandb:
            self.wandb.log(record)

    def _validate(self) -> None:
        result = self.validator(self.model, self.environment, lambda: bool(self.interrupt))
        if result is None:
            return
        self.last_validation = {
            "step": self.step,
            "tokens": self.tokens,
            "val_loss": result.loss,
            "val_bits_per_byte": result.bits_per_byte,
        }
        self._record(self.last_validation)
        self.progress.validation = f"{result.loss:.3f}"
        self.progress.say(
            f"step {self.step:,}: validation {result.loss:.4f} nats per token, {result.bits_per_byte:.4f} bits per byte"
        )
        train = self.config.train
        with (self.root / "samples.md").open("a", encoding="utf-8") as file:
            for prompt in train.sample_prompts:
                text = sample(
                    self.model,
                    self.tokenizer,
                    prompt,
                    max_tokens=train.sample_tokens,
                    temperature=train.sample_temperature,
                )
                self.progress.say("  " + text.replace("\n", "\n  "))
                file.write(f"## step {self.step}\n\n{text}\n\n")
        plot_losses(metrics.read(self.metrics.path), self.root / "loss.png", self.config.name)

    # Checkpoints.

    def _save(self) -> None:
        path = self.root / "checkpoints" / f"step-{self.step:08d}"
        if path.exists() and not self.interrupt:
            return
        tensors = state_tensors(self.model, self.optimizer) | {RNG: torch.get_rng_state()}
        state = {
            "format": STATE_FORMAT,
            "step": self.step,
            "tokens": self.tokens,
            "elapsed_s": self.elapsed,
            "validation": self.last_validation,
            "loader": self.loader.state_dict(),
            "config": self.resolved,
        }
        with self.interrupt.saving():
            checkpoint.save_checkpoint(path, self.model, self.tokenizer.save, tensors=tensors, state=state)
            point_latest(self.root)
            for old in list_checkpoints(self.root)[: -self.config.train.keep_last]:
                checkpoint.remove(old)
        self.progress.say(f"step {self.step:,}: saved {path}")

    def _restore(self, start: Start) -> None:
        state = start.state
        checkpoint.load_into(self.model, checkpoint.load_weights(start.checkpoint), where=str(start.checkpoint))
        load_state_tensors(self.model, self.optimizer, start.tensors)
        torch.set_rng_state(start.tensors[RNG])
        self.loader.load_state_dict(state["loader"])
        self.step, self.tokens, self._earlier_seconds = state["step"], state["tokens"], state["elapsed_s"]

    def summary(self) -> str:
        """One line on what came out."""
        text = f"{self.tokens:,} tokens in {duration(self.elapsed)}"
        if self.last_validation:
            text += (
                f"; validation {self.last_validation['val_loss']:.4f} nats per token, "
                f"{self.last_validation['val_bits_per_byte']:.4f} bits per byte"
            )
        return text


class _Window:
    """Steps since the last record, averaged."""

    def __init__(self) -> None:
        self.steps, self.tokens, self.seconds, self.data_seconds = 0, 0, 0.0, 0.0
        self._loss = self._norm = 0.0

    def add(self, result: StepResult, seconds: float) -> None:
        self.steps += 1
        self.tokens += result.tokens
        self.seconds += seconds
        self.data_seconds += result.data_seconds
        self._loss += result.loss
        self._norm += result.grad_norm

    @property
    def loss(self) -> float:
        return self._loss / self.steps

    @property
    def grad_norm(self) -> float:
        return self._norm / self.steps


def write_config(root: Path, resolved: dict[str, Any]) -> None:
    """The resolved configuration as ``config.yaml``."""
    from omegaconf import OmegaConf

    atomic_write_text(root / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
