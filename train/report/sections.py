"""The parts of a report: figures, samples, tables and curves of a run as plain text and numbers.

Nothing here is HTML. Names, samples and options are other people's text; the template escapes all of it.
"""

import math
import signal
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from slm.report import duration
from train.report.curves import POINTS
from train.report.run_record import Event, RunStory

SHOWN_SAMPLES, SAMPLE_CHARACTERS = 6, 4000
SHOWN_VALIDATIONS = 200
SHOWN_EVENTS = 200
STATUS = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "gone": "ended without a word",
}


# Numbers.


def number_text(value: float | None, digits: int = 4) -> str:
    """A loss or a rate with ``digits`` decimals; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def count_text(value: float | None) -> str:
    """A count, from a million on with four significant digits: ``2.886M``, ``512,000``."""
    if value is None:
        return "–"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{float(f'{value / size:.4g}'):g}{letter}"
    return f"{value:,.0f}"


def when_text(seconds: float | None) -> str:
    return "–" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def values(column: Iterable[float], digits: int = 5) -> list[float | None]:
    """Numbers short enough for a page: ``digits`` significant ones, None where there is no finite one."""
    out: list[float | None] = []
    for value in column:
        if value is None or not math.isfinite(value):
            out.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        out.append(int(short) if short.is_integer() else short)
    return out


# Curves, for the script of the page.


def curves(story: RunStory, name: str, status: str, limit: int = POINTS) -> dict[str, Any]:
    """What the page draws of a run."""
    points = story.curves.points(limit)
    train: dict[str, Any] = {
        "step": values(points.mean("step"), 9),
        "tokens": values(points.mean("tokens"), 9),
        "time": values(points.mean("elapsed_s"), 7),
        "loss": values(points.mean("loss")),
        "lr": values(points.mean("lr")),
        "grad": values(points.mean("grad_norm"), 4),
        "speed": values(points.mean("tokens_per_s"), 4),
        "memory": values(points.mean("rss_gb"), 4),
        "wait": values(points.mean("data_wait"), 3),
    }
    if points.stride > 1:
        for key, field in (("loss", "loss"), ("grad", "grad_norm"), ("speed", "tokens_per_s")):
            train |= {f"{key}_low": values(points.low(field), 4), f"{key}_high": values(points.high(field), 4)}
    chosen = thin(story.validations, limit)
    val = {
        key: values([math.nan if (value := one.get(field)) is None else value for one in chosen], digits)
        for key, field, digits in (
            ("step", "step", 9),
            ("tokens", "tokens", 9),
            ("time", "elapsed_s", 7),
            ("loss", "val_loss", 6),
            ("bpb", "val_bits_per_byte", 6),
        )
    }
    marks = [mark(story, event, text) for event, text in told(story) if event.kind != "end"]
    events = [one for one in marks if one["step"] > 0]
    return {
        "name": name,
        "status": status,
        "stride": points.stride,
        "train": train,
        "val": val,
        "events": thin(events, SHOWN_EVENTS),
    }


def thin(items: list[Any], limit: int) -> list[Any]:
    """At most ``limit`` of ``items``, evenly spread, the first and the last among them."""
    if len(items) <= limit:
        return items
    picks = np.unique(np.linspace(0, len(items) - 1, limit).round().astype(int))
    return [items[int(pick)] for pick in picks]


def mark(story: RunStory, event: Event, text: str) -> dict[str, Any]:
    """Where an event stands on each of the horizontal axes."""
    steps = story.curves["step"]
    at = min(int(np.searchsorted(steps, event.step)), len(steps) - 1) if len(steps) else None
    place = {} if at is None else {"tokens": story.curves["tokens"][at], "time": story.curves["elapsed_s"][at]}
    where = {key: values([place.get(key, math.nan)], 9)[0] for key in ("tokens", "time")}
    return {"step": event.step, **where, "text": text[:300], "serious": event.kind not in ("start", "end")}


# Events, in words.


def told(story: RunStory) -> list[tuple[Event, str]]:
    """Every event with a sentence for it."""
    out, open_start = [], False
    for event in story.events():
        if event.kind == "start":
            text = _start_text(event.facts)
            if open_start:
                text += "; before that it ended without a word (killed, or the machine went down)"
            open_start = True
        elif event.kind == "end":
            text, open_start = _end_text(event.facts), False
        else:
            text = _guard_text(event)
        out.append((event, text))
    return out


def _start_text(facts: dict[str, Any]) -> str:
    if not facts.get("from"):
        return "started"
    text = f"resumed from {facts['from']}"
    again = facts.get("again")
    return f"{text}; {again:,} steps were computed again" if isinstance(again, int) and again > 0 else text


def _end_text(facts: dict[str, Any]) -> str:
    status = str(facts.get("status", "ended"))
    if facts.get("signal"):
        try:
            return f"{status} by {signal.Signals(facts['signal']).name}"
        except (ValueError, TypeError):
            return status
    return f"{status}: {facts['reason']}" if facts.get("reason") else status


def _guard_text(event: Event) -> str:
    """A guard's record in words; all its facts, where it is of a kind that has no words here."""
    facts = event.facts
    try:
        if event.kind == "skipped":
            return f"update skipped: {facts['error']} ({facts['skipped']} so far)"
        if event.kind == "spike":
            return f"the loss jumped to {facts['loss']:.4f}, {facts['times']:.1f} times the median"
        if event.kind == "rolled_back":
            return (
                f"rolled back: the loss of step {facts['from']:,} was {facts['loss']:.4f}, {facts['times']:.1f} times "
                f"the median; {facts['tokens']:,} tokens passed over"
            )
        if event.kind == "slept":
            return f"the machine slept for {duration(facts['seconds'])}"
    except (KeyError, TypeError, ValueError):
        pass
    details = ", ".join(f"{key} {_brief(value)}" for key, value in facts.items())
    return event.kind.replace("_", " ") + (f" ({details})" if details else "")


def _brief(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def event_rows(story: RunStory) -> list[dict[str, Any]]:
    """The table of starts, stops and incidents: the latest if there are very many."""
    return [
        {
            "when": when_text(event.time),
            "step": f"{event.step:,}",
            "text": text,
            "serious": event.kind not in ("start", "end") or event.facts.get("status") == "failed",
        }
        for event, text in told(story)[-SHOWN_EVENTS:]
    ]


# What a person reads first.


def progress_text(story: RunStory, status: str) -> str:
    """Steps, share, time and what is left."""
    max_steps, minutes = story.setting("train.max_steps"), story.setting("train.max_minutes")
    text = f"step {story.step():,}"
    if isinstance(max_steps, int):
        text += f" of {max_steps:,}"
    text += f" · {100 * story.progress():.1f} % · {duration(story.elapsed())} of training"
    if minutes:
        text += f" of at most {duration(60 * minutes)}"
    left = story.seconds_left()
    if status == "running" and left is not None:
        text += f" · about {duration(left)} left"
    return text


def subtitle(story: RunStory) -> str:
    """The model and its text in one line."""
    facts, parts = story.model_facts(), []
    if "n_params" in facts:
        parts.append(f"{facts['n_params']:,} parameters")
    parts += [str(value) for key in ("model.arch",) if (value := story.setting(key))]
    if "vocab_size" in facts:
        parts.append(f"vocabulary {facts['vocab_size']:,}")
    if isinstance(story.setting("train.seq_len"), int):
        parts.append(f"sequences of {story.setting('train.seq_len'):,} tokens")
    if story.setting("data.kind"):
        parts.append(f"data: {story.setting('data.name') or story.setting('data.kind')}")
    if story.start().get("precision"):
        parts.append(str(story.start()["precision"]))
    return " · ".join(parts)


def tiles(story: RunStory) -> list[dict[str, str]]:
    """The run's figures of the moment."""
    last = story.validations[-1] if story.validations else {}
    best, speed, facts = story.best() or {}, story.speed(), story.model_facts()
    bits, loss = last.get("val_bits_per_byte"), last.get("val_loss")
    best_text = f"best {number_text(best.get('val_bits_per_byte'))} at step {int(best.get('step') or 0):,}"
    perplexity = "no validation yet" if loss is None else f"nats per token; perplexity {math.exp(min(loss, 700)):,.4g}"
    recent = story.recent("loss")
    wait, memory = story.recent("data_wait"), story.curves["rss_gb"]
    memory = memory[~np.isnan(memory)]
    flops = f"{speed * facts['flops_per_token'] / 1e9:,.0f} GFLOP/s; " if speed and "flops_per_token" in facts else ""
    per_step = [story.setting(f"train.{name}") for name in ("micro_batch", "grad_accum", "seq_len")]
    steps = story.setting("train.max_steps")
    total = math.prod(per_step) * steps if all(isinstance(n, int) for n in (*per_step, steps)) else None
    parameters = facts.get("n_params")
    per_parameter = f"; {story.tokens() / parameters:.2g} per parameter" if parameters else ""
    planned = f"of {count_text(total)} planned" if total else "seen in training"
    waiting = f"{100 * (wait or 0):.1f} % waiting for data"
    return [
        _tile("bits per byte", number_text(bits), f"of validation text; {best_text}" if best else "no validation yet"),
        _tile("validation loss", number_text(loss), perplexity),
        _tile("training loss", number_text(recent), "nats per token; mean of the last 20 records"),
        _tile("tokens", count_text(story.tokens()), planned + per_parameter),
        _tile("tokens/s", "–" if speed is None else f"{speed:,.0f}", f"median; {flops}{waiting}"),
        _tile("memory, GiB", f"{memory.max():.2f}" if len(memory) else "–", "most resident memory of the records"),
    ]


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def warnings(story: RunStory, status: str) -> list[str]:
    """What an engineer should look at."""
    out = []
    broken = story.curves.not_finite()
    if broken:
        out.append(f"{broken:,} training records hold a loss or gradient norm that is not a finite number.")
    if status == "gone":
        out.append(
            "The process ended without saying so: it was killed, or the machine went down. "
            "The same command goes on from the last checkpoint."
        )
    if status == "failed" and story.journal and story.journal[-1].facts.get("reason"):
        out.append(f"The run failed: {story.journal[-1].facts['reason']}")
    best, last = story.best(), story.validations[-1] if story.validations else None
    if best and last and last is not best and (last.get("val_loss") or 0) > 1.02 * best["val_loss"]:
        share = 100 * (last["val_loss"] / best["val_loss"] - 1)
        out.append(f"The last validation loss is {share:.1f} % above the best, that of step {int(best['step']):,}.")
    wait = story.recent("data_wait")
    if wait is not None and wait > 0.05:
        out.append(f"{100 * wait:.0f} % of the steps' time goes by waiting for data: raise train.workers.")
    return out


# Samples and tables.


def sample_groups(story: RunStory) -> list[dict[str, Any]]:
    """Samples by step, oldest first; a few spread over the run are shown at once, the last among them."""
    prompts = [str(prompt) for prompt in story.setting("train.sample_prompts", []) or []]
    by_step: dict[int, list[str]] = {}
    for sample in story.samples:
        by_step.setdefault(sample.step, []).append(sample.text)
    figures = {one["step"]: one for one in story.validations}
    steps = sorted(by_step)
    shown = set(thin(steps, SHOWN_SAMPLES))
    groups = []
    for step in steps:
        texts = []
        for text in by_step[step]:
            prompt = max((p for p in prompts if text.startswith(p)), key=len, default="")
            rest = text[len(prompt) :]
            cut = "…" if len(rest) > SAMPLE_CHARACTERS else ""
            texts.append({"prompt": prompt, "rest": rest[:SAMPLE_CHARACTERS] + cut})
        one = figures.get(step, {})
        bits = one.get("val_bits_per_byte")
        note = "" if bits is None else f"{bits:.4f} bits per byte"
        groups.append({"step": f"{step:,}", "texts": texts, "figures": note, "shown": step in shown})
    return groups


def validation_rows(story: RunStory) -> list[dict[str, Any]]:
    """Validations as text, evenly thinned out where there are very many; the best and the last always there."""
    best = story.best()
    rows = thin(story.validations, SHOWN_VALIDATIONS)
    if best is not None and best not in rows:
        rows = sorted([*rows, best], key=lambda one: one["step"])
    return [
        {
            "best": one is best,
            "cells": [
                f"{int(one['step']):,}",
                f"{int(one.get('tokens') or 0):,}",
                "–" if one.get("elapsed_s") is None else duration(one["elapsed_s"]),
                number_text(one.get("val_loss")),
                number_text(one.get("val_bits_per_byte")),
            ],
        }
        for one in rows
    ]


def flat(tree: Any, prefix: str = "") -> dict[str, str]:
    """Dotted names and values of a configuration."""
    out = {}
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = "null" if value is None else str(value)[:1000]
    return out


def machine_rows(story: RunStory) -> list[tuple[str, str]]:
    """Where the run's last start was made."""
    start = story.start()
    machine = start.get("machine") if isinstance(start.get("machine"), dict) else {}
    rows = [
        (label, f"{machine[key]}{unit}")
        for label, key, unit in (
            ("processor", "cpu", ""),
            ("cores", "cores", ""),
            ("memory", "memory_gib", " GiB"),
            ("system", "system", ""),
            ("Python", "python", ""),
        )
        if key in machine
    ]
    versions = machine.get("versions")
    rows += [(str(key), str(value)) for key, value in versions.items()] if isinstance(versions, dict) else []
    shown = ("from", "again", "machine", "n_params", "flops_per_token", "vocab_size")
    return rows + [(key.replace("_", " "), _brief(value)) for key, value in start.items() if key not in shown]
