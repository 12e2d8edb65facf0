"""What a run's directory tells of the run: curves, validations, samples, starts and stops, how far it is.

Everything is read from files, by the run itself or by another process while it goes on. What is missing, cut off or
written by another version is passed over, so that a picture of a run never fails for a detail.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from slm.model.config import ModelConfig
from slm.runs import CHECKPOINT_NAME, list_checkpoints
from train.report.curves import Curves, Tail, number, records
from train.run_lock import LOCK, is_locked

SAMPLED_STEPS = 200
"""Text samples are kept of so many steps; of more, every second one goes."""

RECENT = 20
"""Records that "now" is the mean or the median of."""

_HEADING = re.compile(r"## step (\d+)")


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: a start, an end, a step skipped, the run rolled back."""

    kind: str
    step: int
    time: float | None
    """Seconds since 1970, where it is known."""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A text the model wrote."""

    step: int
    text: str


class RunStory:
    """A run's directory as it is read again and again. ``update`` reads what was added since."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._metrics, self._journal = Tail(root / "metrics.jsonl"), Tail(root / "journal.jsonl")
        self._samples = Tail(root / "samples.md")
        self.curves = Curves()
        self.validations: list[dict[str, float | None]] = []
        """``step tokens elapsed_s val_loss val_bits_per_byte`` of each validation."""
        self.guards: list[Event] = []
        """What the run's guards wrote among the metrics."""
        self.journal: list[Event] = []
        self.samples: list[Sample] = []
        self.config: dict[str, Any] = {}
        self.last_change: float | None = None
        """When metrics.jsonl was last written, seconds since 1970."""
        self._config_stamp: Any = None

    def update(self) -> bool:
        """Read what is new; whether there was any."""
        lines, restarted = self._metrics.read()
        if restarted:
            self.curves.clear()
            self.validations, self.guards = [], []
        self._read_metrics(list(records(lines)))
        entries, journal_restarted = self._journal.read()
        if journal_restarted:
            self.journal = []
        self.journal += [_event(record) for record in records(entries)]
        texts, samples_restarted = self._samples.read()
        if samples_restarted:
            self.samples = []
        self._read_samples(texts)
        config_changed = self._read_config()
        try:
            self.last_change = self._metrics.path.stat().st_mtime
        except OSError:
            self.last_change = None
        return bool(lines or entries or texts or restarted or config_changed)

    def _read_metrics(self, found: list[dict[str, Any]]) -> None:
        training: list[dict[str, Any]] = []
        for record in found:
            if "event" in record:
                self.guards.append(_event(record))
            elif "val_loss" in record or "val_bits_per_byte" in record:
                self._add_validation(record, training)
            elif "loss" in record:
                training.append(record)
        self.curves.extend(training)

    def _add_validation(self, record: dict[str, Any], training: list[dict[str, Any]]) -> None:
        """A validation record, with the time of the training record before it."""
        if training:
            before = number(training[-1].get("elapsed_s"))
        else:
            before = _last(self.curves["elapsed_s"])
        while self.validations and self.validations[-1]["step"] >= record["step"]:
            self.validations.pop()
        names = ("step", "tokens", "elapsed_s", "val_loss", "val_bits_per_byte")
        self.validations.append({"elapsed_s": before} | {n: number(record[n]) for n in names if n in record})

    def _read_samples(self, lines: list[str]) -> None:
        validated = {validation["step"] for validation in self.validations}
        step, text = None, []
        for line in [*lines, None]:
            match = _HEADING.fullmatch(line) if line is not None else None
            # A model may write a line like a heading: only steps that were validated are believed.
            if line is not None and not (match and int(match.group(1)) in validated):
                text.append(line)
                continue
            self._add_text(step, "\n".join(text))
            if match:
                step, text = int(match.group(1)), []
        kept = sorted({sample.step for sample in self.samples})
        if len(kept) > SAMPLED_STEPS:
            kept = {*kept[::2], kept[-1]}
            self.samples = [sample for sample in self.samples if sample.step in kept]

    def _add_text(self, step: int | None, text: str) -> None:
        if step is not None:
            if self.samples and self.samples[-1].step > step:
                self.samples = [sample for sample in self.samples if sample.step < step]
            self.samples.append(Sample(step, text.strip("\n")))
        elif self.samples and text.strip("\n"):
            last = self.samples.pop()
            self.samples.append(Sample(last.step, f"{last.text}\n{text}".rstrip("\n")))

    def _read_config(self) -> bool:
        from omegaconf import OmegaConf

        path = self.root / "config.yaml"
        try:
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp == self._config_stamp:
                return False
            self.config = OmegaConf.to_container(OmegaConf.load(path), resolve=False) or {}
        except Exception:  # a file that is not there, is being replaced or was edited is not what is looked at
            return False
        self._config_stamp = stamp
        return True

    # What follows from it.

    @property
    def name(self) -> str:
        return self.root.name

    def setting(self, key: str, default: Any = None) -> Any:
        """An option of the run by its dotted name."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def events(self) -> list[Event]:
        """Starts, ends and what the guards did, in order."""
        return sorted(self.journal + self.guards, key=lambda event: (event.time or 0, event.step))

    def start(self) -> dict[str, Any]:
        """What the last start wrote down of machine and model."""
        return next((event.facts for event in reversed(self.journal) if event.kind == "start"), {})

    def step(self) -> int:
        """Steps done, as far as they were written down."""
        seen = [self.curves["step"][-1]] if len(self.curves) else []
        seen += [validation["step"] for validation in self.validations[-1:]]
        return int(max(seen, default=0))

    def tokens(self) -> int:
        seen = [_last(self.curves["tokens"])] + [validation.get("tokens") for validation in self.validations[-1:]]
        return int(max((value for value in seen if value is not None), default=0))

    def elapsed(self) -> float:
        """Seconds of training, all starts together."""
        return _last(self.curves["elapsed_s"]) or 0.0

    def progress(self) -> float:
        """The share of the run that is done, by steps or by time, whichever is further; 0 where it is not known."""
        max_steps, minutes = number(self.setting("train.max_steps")), number(self.setting("train.max_minutes"))
        shares = [self.step() / max_steps] if max_steps else []
        shares += [self.elapsed() / (60 * minutes)] if minutes else []
        return min(1.0, max(shares, default=0.0))

    def seconds_left(self) -> float | None:
        """What remains at the speed of late, validations and saves included; None where it cannot be told."""
        max_steps, minutes = number(self.setting("train.max_steps")), number(self.setting("train.max_minutes"))
        steps, seconds = self.curves["step"][-RECENT:], self.curves["elapsed_s"][-RECENT:]
        left = []
        if max_steps and len(steps) > 2 and seconds[-1] > seconds[1]:
            left.append((max_steps - self.step()) * (seconds[-1] - seconds[1]) / (steps[-1] - steps[1]))
        if minutes:
            left.append(60 * minutes - self.elapsed())
        return max(0.0, min(left)) if left and math.isfinite(min(left)) else None

    def recent(self, name: str) -> float | None:
        """Mean of a field over the last records."""
        values = self.curves[name][-RECENT:]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else None

    def speed(self) -> float | None:
        """Tokens per second: median of the records. The first waits for the compiler and is left out."""
        values = self.curves["tokens_per_s"][1:] if len(self.curves) > 1 else self.curves["tokens_per_s"]
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else None

    def for_plot(self) -> list[dict[str, float]]:
        """Training and validation records as in ``metrics.jsonl``, thinned out where there are very many."""
        points = self.curves.points()
        pairs = zip(points.mean("tokens"), points.mean("loss"), strict=True)
        training = [{"tokens": tokens, "loss": loss} for tokens, loss in pairs if not math.isnan(tokens + loss)]
        names = ("tokens", "val_loss", "val_bits_per_byte")
        return training + [one for one in self.validations if all(one.get(name) is not None for name in names)]

    def best(self) -> dict[str, float | None] | None:
        """The validation of the lowest loss."""
        known = [validation for validation in self.validations if validation.get("val_loss") is not None]
        return min(known, key=lambda validation: validation["val_loss"], default=None)

    def status(self, held: bool | None = None) -> str:
        """``running``, ``finished``, ``stopped`` (it saved and left), ``failed`` or ``gone`` (ended without a word).

        ``held``: whether a process held the run's lock before the last ``update``. What a run writes at its end
        it writes before it lets go.
        """
        if is_locked(self.root / LOCK) if held is None else held:
            return "running"
        last = self.journal[-1] if self.journal else None
        if last is None:  # a run of a version that kept no journal
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
        flops = shape.flops_per_token(number(self.setting("train.seq_len")))
        return {"n_params": shape.n_params, "flops_per_token": flops, "vocab_size": shape.vocab_size}


def find_run(path: str) -> Path:
    """The directory of the run that ``path`` names. ``<runs>/latest`` is the one written to last, saved or not."""
    from slm.runs import LATEST, resolve

    given = Path(path)
    if given.name == LATEST and (given.is_symlink() or not given.exists()) and given.parent.is_dir():
        written = [(file.stat().st_mtime, file.parent) for file in given.parent.glob("*/metrics.jsonl")]
        if written:
            return max((when, folder.resolve()) for when, folder in written)[1]
    if CHECKPOINT_NAME.fullmatch(given.name) and given.parent.name == "checkpoints":
        given = given.parent.parent
    root = resolve(given).root
    if not (root / "metrics.jsonl").exists() and not (root / "config.yaml").exists():
        raise UserError(f"{path} is no training run: it holds neither metrics.jsonl nor config.yaml; give runs/<name>")
    return root


def _event(record: dict[str, Any]) -> Event:
    facts = {key: value for key, value in record.items() if key not in ("event", "step", "time")}
    return Event(str(record.get("event", "?")), int(record["step"]), number(record.get("time")), facts)


def _last(values: np.ndarray) -> float | None:
    return float(values[-1]) if len(values) and not np.isnan(values[-1]) else None
