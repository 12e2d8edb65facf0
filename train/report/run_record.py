"""The record of a run, read from its directory: curves, validations, samples, starts and ends, progress.

The run itself reads these files, or another process while the run goes on. What is missing, cut off or written by
another version is skipped, so that a report never fails because of a detail.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slm.data.errors import UserError
from slm.model.config import ModelConfig
from slm.runs import CHECKPOINT_NAME, CONFIG, LATEST, list_checkpoints, place, resolve, saved_config
from slm.train.report.curves import Curves, Tail, number, records
from slm.train.report.samples import SAMPLES, Samples
from slm.train.run_lock import LOCK, is_locked

RECENT = 20
"""The number of last records; their means are shown as the figures of the moment."""


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: a start, an end, a skipped update, a roll-back."""

    kind: str
    step: int
    time: float | None
    """Seconds since 1970, where it is known."""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Validation:
    """The figures of one validation; None for what the record does not hold."""

    step: int
    tokens: float | None
    """Training tokens so far."""
    elapsed_s: float | None
    loss: float | None
    """Nats per token."""
    bits_per_byte: float | None


class RunRecord:
    """What a run has written. ``update`` reads what was added since the last call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._metrics_file, self._event_file = Tail(root / "metrics.jsonl"), Tail(root / "journal.jsonl")
        self._samples_file = Tail(root / SAMPLES)
        self.curves = Curves()
        self.latest: dict[str, Any] = {}
        """The last training record, as it was written."""
        self.validations: list[Validation] = []
        self.guard_events: list[Event] = []
        """What the run's guards wrote among the metrics: skipped updates, roll-backs and the like."""
        self.event_log: list[Event] = []
        """Starts and ends, from ``journal.jsonl``."""
        self.samples = Samples()
        self.config: dict[str, Any] = {}
        self.last_change: float | None = None
        """When metrics.jsonl was last written, seconds since 1970."""
        self._config_stamp: Any = None

    def update(self) -> bool:
        """Read what is new. Returns whether there was anything."""
        lines, replaced = self._metrics_file.read()
        if replaced:
            self.curves.clear()
            self.validations, self.guard_events, self.latest = [], [], {}
        self._read_metrics(records(lines))
        entries, events_replaced = self._event_file.read()
        if events_replaced:
            self.event_log = []
        self.event_log += [_event(record) for record in records(entries)]
        texts, samples_replaced = self._samples_file.read()
        if samples_replaced:
            self.samples.clear()
        asked_first = {0} if any(each.kind == "asked" and each.step == 0 for each in self.guard_events) else set()
        self.samples.read(texts, {validation.step for validation in self.validations} | asked_first)
        config_changed = self._read_config()
        try:
            self.last_change = self._metrics_file.path.stat().st_mtime
        except OSError:
            self.last_change = None
        return bool(lines or entries or texts or replaced or config_changed)

    def _read_metrics(self, found: Iterable[dict[str, Any]]) -> None:
        training: list[dict[str, Any]] = []
        for record in found:
            if "event" in record:
                self.guard_events.append(_event(record))
            elif "val_loss" in record or "val_bits_per_byte" in record:
                self._add_validation(record, training)
            elif "loss" in record:
                training.append(record)
                self.latest = record
        self.curves.extend(training)

    def _add_validation(self, record: dict[str, Any], training: list[dict[str, Any]]) -> None:
        """Keep a validation record, with the time of the training record before it."""
        if training:
            before = number(training[-1].get("elapsed_s"))
        else:
            before = _last(self.curves["elapsed_s"])
        step = int(record["step"])
        while self.validations and self.validations[-1].step >= step:  # the run went back to an earlier checkpoint
            self.validations.pop()
        self.validations.append(
            Validation(
                step,
                tokens=number(record.get("tokens")),
                elapsed_s=number(record.get("elapsed_s", before)),
                loss=number(record.get("val_loss")),
                bits_per_byte=number(record.get("val_bits_per_byte")),
            )
        )

    def _read_config(self) -> bool:
        try:
            status = (self.root / CONFIG).stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp == self._config_stamp:
                return False
            config = saved_config(self.root)
        except (OSError, UserError):  # the file is missing, is being replaced, or somebody broke it
            return False
        self.config = {str(key): value for key, value in config.items()}
        self._config_stamp = stamp
        return True

    # What follows from the files.

    @property
    def name(self) -> str:
        return self.root.name

    def setting(self, key: str, default: Any = None) -> Any:
        """The run's option of a dotted name, or ``default`` where the configuration has none."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def events(self) -> list[Event]:
        """Starts, ends and what the guards did, in the order in which they happened."""
        return sorted(self.event_log + self.guard_events, key=lambda event: (event.time or 0, event.step))

    def start(self) -> dict[str, Any]:
        """What the last start recorded about machine and model."""
        return next((event.facts for event in reversed(self.event_log) if event.kind == "start"), {})

    def step(self) -> int:
        """The last optimizer step that was recorded."""
        recorded = self.curves["step"][-1] if len(self.curves) else 0
        return int(max(recorded, self.validations[-1].step if self.validations else 0))

    def tokens(self) -> int:
        """Training tokens up to that step."""
        validated = self.validations[-1].tokens if self.validations else None
        return int(max(_last(self.curves["tokens"]) or 0, validated or 0))

    def elapsed(self) -> float:
        """Seconds of training in all starts together."""
        return _last(self.curves["elapsed_s"]) or 0.0

    def progress(self) -> float:
        """The share of the run that is done, by steps or by time, whichever is larger; 0 where it is not known."""
        max_steps, limit = number(self.setting("train.max_steps")), self._limit_seconds()
        shares = [self.step() / max_steps] if max_steps else []
        shares += [self.elapsed() / limit] if limit else []
        return min(1.0, max(shares, default=0.0))

    @property
    def loss_unit(self) -> str:
        """What losses are counted in."""
        return "nats per pair" if self.setting("preference.loss") else "nats per token"

    def planned_steps(self) -> int | None:
        """The steps that end the run; None where time does, of which ``train.max_steps`` is only a bound."""
        max_steps, limit = self.setting("train.max_steps"), self._limit_seconds()
        if not isinstance(max_steps, int) or (limit and self.step() / max_steps <= self.elapsed() / limit):
            return None
        return max_steps

    def _limit_seconds(self) -> float | None:
        """Seconds of training after which time ends the run; None where it does not."""
        minutes = number(self.setting("train.max_minutes"))
        return number(self.latest.get("limit_s")) or (60 * minutes if minutes else None)

    def forecast(self) -> str | None:
        """The loss that the run expects at its end, with its unit; None where it has said nothing yet."""
        for unit in ("bits per byte", "nats per token"):
            name = "forecast_" + unit.replace(" ", "_")
            value, low, high = (number(self.latest.get(key)) for key in (name, f"{name}_low", f"{name}_high"))
            if value is not None:
                spread = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
                of = "validation" if unit == "bits per byte" else "training"
                return f"{value:.3f} {unit} of the {of} text{spread}"
        return None

    def seconds_left(self) -> float | None:
        """Seconds that remain at the recent speed, validations and saves included; None where that is not known."""
        max_steps, limit = number(self.setting("train.max_steps")), self._limit_seconds()
        steps, seconds = self.curves["step"][-RECENT:], self.curves["elapsed_s"][-RECENT:]
        left = []
        if max_steps and len(steps) > 2 and seconds[-1] > seconds[1]:
            left.append((max_steps - self.step()) * (seconds[-1] - seconds[1]) / (steps[-1] - steps[1]))
        if limit:
            left.append(limit - self.elapsed())
        return max(0.0, min(left)) if left and math.isfinite(min(left)) else None

    def recent(self, name: str) -> float | None:
        """The mean of a field over the last ``RECENT`` records."""
        values = self.curves[name][-RECENT:]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else None

    def recent_note(self, name: str) -> str:
        """What ``recent`` is the mean of, in words."""
        n = int((~np.isnan(self.curves[name][-RECENT:])).sum())
        return {0: "no records yet", 1: "1 record"}.get(n, f"mean of the last {n} records")

    def speed(self) -> float | None:
        """Tokens per second, the median of the records. The first one is left out: it waits for the compiler."""
        values = self.curves["tokens_per_s"][1:] if len(self.curves) > 1 else self.curves["tokens_per_s"]
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else None

    def plot_records(self) -> list[dict[str, Any]]:
        """Training and validation records as in ``metrics.jsonl``, thinned out where there are very many."""
        points = self.curves.points()
        pairs = zip(points.mean("tokens"), points.mean("loss"), strict=True)
        training: list[dict[str, Any]]
        training = [{"tokens": tokens, "loss": loss} for tokens, loss in pairs if not math.isnan(tokens + loss)]
        return training + [
            {"tokens": each.tokens, "val_loss": each.loss, "val_bits_per_byte": each.bits_per_byte}
            for each in self.validations
            if None not in (each.tokens, each.loss, each.bits_per_byte)
        ]

    def best(self) -> Validation | None:
        """The validation with the lowest loss, the first of several."""
        known = [each for each in self.validations if each.loss is not None]
        return min(known, key=lambda each: math.inf if each.loss is None else each.loss, default=None)

    def status(self, held: bool | None = None) -> str:
        """``running``, ``finished``, ``stopped`` (it saved and ended), ``failed`` or ``gone`` (it recorded no end).

        ``held``: whether a process held the run's lock before the last ``update``. A run writes its end before it
        releases the lock, so the lock must be looked at first. None: look now.
        """
        if is_locked(self.root / LOCK) if held is None else held:
            return "running"
        last = self.event_log[-1] if self.event_log else None
        if last is None and not self.step():  # its directory was made a moment ago, or its start died
            return "gone"
        if last is None:  # a run of a version that kept no event log
            return "finished" if self.progress() >= 1 else "stopped"
        if last.kind != "end":
            return "gone"
        return str(last.facts.get("status", "stopped"))

    def model_facts(self) -> dict[str, int]:
        """``n_params``, ``flops_per_token`` and ``vocab_size``, from the last start or the newest checkpoint."""
        names = ("n_params", "flops_per_token", "vocab_size")
        facts = {name: int(value) for name in names if (value := number(self.start().get(name))) is not None}
        if len(facts) == len(names):
            return facts
        try:
            text = (list_checkpoints(self.root)[-1] / "config.json").read_text(encoding="utf-8")
            shape = ModelConfig.from_hf(json.loads(text))
        except (IndexError, OSError, ValueError, KeyError, TypeError):
            return facts
        flops = self.flops_per_token(shape)
        return {"n_params": shape.n_params, "flops_per_token": flops, "vocab_size": shape.vocab_size}

    def flops_per_token(self, shape: ModelConfig) -> int:
        """FLOPs of a token of the run: its sequence length, its ``train.sampled_softmax``."""
        seq_len, words = (number(self.setting(f"train.{name}")) for name in ("seq_len", "sampled_softmax"))
        return shape.flops_per_token(int(seq_len) if seq_len else None, int(words or 0))


def find_run(path: str) -> Path:
    """The directory of the run that ``path`` names: a run, one of its checkpoints, or ``<runs>/latest``.

    ``latest`` is the run that was written to last, even if it has no checkpoint yet. UserError where there is no run.
    """
    given = place(path)
    if given.name == LATEST and (given.is_symlink() or not given.exists()) and given.parent.is_dir():
        written = [(file.stat().st_mtime, file.parent.resolve()) for file in given.parent.glob("*/metrics.jsonl")]
        if written:
            return max(written)[1]
    if CHECKPOINT_NAME.fullmatch(given.name) and given.parent.name == "checkpoints":
        given = given.parent.parent
    root = resolve(given).root
    if not (root / "metrics.jsonl").exists() and not (root / CONFIG).exists():
        raise UserError(f"{path} is no training run: it holds neither metrics.jsonl nor config.yaml; give runs/<name>")
    return root


def _event(record: dict[str, Any]) -> Event:
    facts = {key: value for key, value in record.items() if key not in ("event", "step", "time")}
    return Event(str(record.get("event", "?")), int(record["step"]), number(record.get("time")), facts)


def _last(values: np.ndarray) -> float | None:
    return float(values[-1]) if len(values) and not np.isnan(values[-1]) else None
