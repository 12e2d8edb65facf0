"""The sections of a report as plain text and numbers: header, tiles, warnings, samples and tables.

Nothing here is HTML. Names, samples and options are text of other people; the template escapes all of it.

Tested in tests/train/report/test_html.py, tests/train/report/test_samples.py.
"""

import math
from typing import Any

import numpy as np

from slm.report import duration
from slm.train.report.chart_data import SHOWN_EVENTS
from slm.train.report.curves import number
from slm.train.report.event_text import describe_events, is_serious
from slm.train.report.formatting import count_text, fact_text, number_text, thin_out, time_text
from slm.train.report.run_record import RunRecord
from slm.train.report.samples import expected_and_given

SHOWN_SAMPLES, SAMPLE_CHARACTERS, FOLDED_CHARACTERS = 6, 4000, 700
"""Samples at first sight, the longest text of one, and from where a text is folded."""
SHOWN_VALIDATIONS = 200
STATUS = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "gone": "ended unexpectedly",
}


def progress_text(run: RunRecord, status: str) -> str:
    """Steps, share, time and what is left."""
    max_steps, minutes = run.planned_steps(), run.setting("train.max_minutes")
    text = f"step {run.step():,}"
    if max_steps:
        text += f" of {max_steps:,}"
    text += f" · {100 * run.progress():.1f} % · {duration(run.elapsed())} of training"
    if minutes:
        text += f" of at most {duration(60 * minutes)}"
    left = run.seconds_left()
    if status == "running" and left is not None:
        text += f" · about {duration(left)} left"
    return text


def subtitle(run: RunRecord) -> str:
    """The model and its text in one line."""
    facts, parts = run.model_facts(), []
    if "n_params" in facts:
        parts.append(f"{facts['n_params']:,} parameters")
    parts += [str(value) for key in ("model.arch",) if (value := run.setting(key))]
    if "vocab_size" in facts:
        parts.append(f"vocabulary {facts['vocab_size']:,}")
    if isinstance(run.setting("train.seq_len"), int):
        parts.append(f"sequences of {run.setting('train.seq_len'):,} tokens")
    if run.setting("data.kind"):
        parts.append(f"data: {run.setting('data.name') or run.setting('data.kind')}")
    if run.start().get("precision"):
        parts.append(str(run.start()["precision"]))
    return " · ".join(parts)


def tiles(run: RunRecord) -> list[dict[str, str]]:
    """The figures of the moment, each with a label and a note."""
    return [*_loss_tiles(run), *_speed_tiles(run)]


def _loss_tiles(run: RunRecord) -> list[dict[str, str]]:
    last, best = (run.validations[-1] if run.validations else None), run.best()
    bits, loss = (last.bits_per_byte, last.loss) if last else (None, None)
    bits_note = loss_note = "no validation yet"
    if best:
        bits_note = f"of validation text; best {number_text(best.bits_per_byte)} at step {best.step:,}"
    if loss is not None:
        of_tokens = not run.setting("preference.loss")
        loss_note = run.loss_unit + (f"; perplexity {math.exp(min(loss, 700)):,.4g}" if of_tokens else "")
    return [
        _tile("bits per byte", number_text(bits), bits_note),
        _tile("validation loss", number_text(loss), loss_note),
        _tile("training loss", number_text(run.recent("loss")), f"{run.loss_unit}; {run.recent_note('loss')}"),
    ]


def _speed_tiles(run: RunRecord) -> list[dict[str, str]]:
    speed, facts = run.speed(), run.model_facts()
    parameters = facts.get("n_params")
    per_parameter = f"; {run.tokens() / parameters:.2g} per parameter" if parameters else ""
    planned = f"of {count_text(tokens)} planned" if (tokens := _planned_tokens(run)) else ""
    flops = f"{speed * facts['flops_per_token'] / 1e9:,.0f} GFLOP/s; " if speed and "flops_per_token" in facts else ""
    waiting = f"{100 * (run.recent('data_wait') or 0):.1f} % waiting for data"
    memory = run.curves["rss_gb"]
    memory = memory[~np.isnan(memory)]
    return [
        _tile("tokens", count_text(run.tokens()), (planned or "seen in training") + per_parameter),
        _tile("tokens/s", "–" if speed is None else f"{speed:,.0f}", f"median; {flops}{waiting}"),
        _tile("memory, GiB", f"{memory.max():.2f}" if len(memory) else "–", "most resident memory of the records"),
    ]


def _planned_tokens(run: RunRecord) -> int | None:
    """Those of all steps, or where time ends the run, those that the plan expects; None where nobody knows."""
    steps = run.planned_steps()
    if steps is None:
        expected = run.setting("facts.predicted.tokens")
        return expected if isinstance(expected, int) else None
    counts = [run.setting(f"train.{name}") for name in ("micro_batch", "grad_accum", "seq_len")]
    return steps * math.prod(counts) if all(isinstance(n, int) for n in counts) else None


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def warnings(run: RunRecord, status: str) -> list[str]:
    """What somebody should look at."""
    out: list[str] = []
    broken = run.curves.n_nonfinite()
    if broken:
        out.append(f"{broken:,} training records hold a loss or gradient norm that is not a finite number.")
    if status == "gone":
        out.append(
            "The process ended unexpectedly: it was killed, or the machine went down. "
            "The same command goes on from the last checkpoint."
        )
    if status == "failed" and run.event_log and run.event_log[-1].facts.get("reason"):
        out.append(f"The run failed: {run.event_log[-1].facts['reason']}")
    best, last = run.best(), run.validations[-1] if run.validations else None
    if best and best.loss and last and last.loss and last.loss > 1.02 * best.loss:
        share = 100 * (last.loss / best.loss - 1)
        out.append(f"The last validation loss is {share:.1f} % above the best, which was at step {best.step:,}.")
    wait = run.recent("data_wait")
    if wait is not None and wait > 0.05:
        out.append(f"{100 * wait:.0f} % of the steps' time is spent waiting for data: raise train.workers.")
    return out


def sample_groups(run: RunRecord) -> list[dict[str, Any]]:
    """Samples by step, oldest first. A few spread over the run are ``shown`` at once, the last among them."""
    by_step: dict[int, list[str]] = {}
    for sample in run.samples:
        by_step.setdefault(sample.step, []).append(sample.text)
    bits_per_byte = {each.step: each.bits_per_byte for each in run.validations}
    prompts = [str(prompt) for prompt in run.setting("train.sample_prompts", []) or []]
    shown = set(thin_out(sorted(by_step), SHOWN_SAMPLES))
    groups = []
    for step in sorted(by_step):
        bits = bits_per_byte.get(step)
        groups.append(
            {
                "step": f"{step:,}",
                "texts": [_split_prompt(text, prompts) for text in by_step[step]],
                "figures": "" if bits is None else f"{bits:.4f} bits per byte",
                "shown": step in shown,
            }
        )
    return groups


def _split_prompt(text: str, prompts: list[str]) -> dict[str, str]:
    """A sample as its prompt, the beginning of what the model wrote, and the rest, which is folded.

    A text that is hardly longer than a fold is not folded, and a very long one is cut off.
    """
    if answer := expected_and_given(text):
        return {"prompt": answer[0], "rest": answer[1], "folded": ""}
    prompt = max((prompt for prompt in prompts if text.startswith(prompt)), key=len, default="")
    written = text[len(prompt) :]
    written = written[:SAMPLE_CHARACTERS] + ("…" if len(written) > SAMPLE_CHARACTERS else "")
    if len(written) <= 1.3 * FOLDED_CHARACTERS:
        return {"prompt": prompt, "rest": written, "folded": ""}
    cut = written.rfind(" ", FOLDED_CHARACTERS // 2, FOLDED_CHARACTERS) + 1 or FOLDED_CHARACTERS
    return {"prompt": prompt, "rest": written[:cut], "folded": written[cut:]}


def validation_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Validations as text, thinned out where there are very many; the best and the last are always there."""
    best = run.best()
    validations = thin_out(run.validations, SHOWN_VALIDATIONS)
    if best is not None and best not in validations:
        validations = sorted([*validations, best], key=lambda each: each.step)
    return [
        {
            "best": each is best,
            "cells": [
                f"{each.step:,}",
                f"{int(each.tokens or 0):,}",
                "–" if each.elapsed_s is None else duration(each.elapsed_s),
                number_text(each.loss),
                number_text(each.bits_per_byte),
            ],
        }
        for each in validations
    ]


def event_rows(run: RunRecord) -> list[dict[str, Any]]:
    """The table of starts, stops and incidents: the latest if there are very many."""
    return [
        {
            "when": time_text(event.time),
            "step": f"{event.step:,}",
            "text": text,
            "serious": is_serious(event),
        }
        for event, text in describe_events(run)[-SHOWN_EVENTS:]
    ]


def flatten(tree: Any, prefix: str = "") -> dict[str, str]:
    """Dotted names and values of a configuration."""
    out: dict[str, str] = {}
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = "null" if value is None else str(value)[:1000]
    return out


MACHINE = (
    ("processor", "cpu", ""),
    ("cores", "cores", ""),
    ("memory", "memory_gib", " GiB"),
    ("system", "system", ""),
    ("Python", "python", ""),
)
"""Label, key and unit of what a start records about the machine."""


TEXT_COLUMNS = ("records", "taken", "tokens", "left out", "files left out")


def text_rows(run: RunRecord) -> list[tuple[str, ...]]:
    """What the last start read of each source and left out: cells under ``TEXT_COLUMNS`` after the source's name."""
    accounts = run.start().get("text")
    rows: list[tuple[str, ...]] = []
    for each in accounts if isinstance(accounts, list) else ():
        if not isinstance(each, dict):
            continue
        about = "" if each.get("exact") else "about "
        files = each.get("files")
        tokens = number(each.get("tokens"))
        rows.append(
            (
                str(each.get("source", "")),
                *(about + _count(each.get(name)) for name in ("read", "taken")),
                "" if tokens is None else f"about {tokens:,.0f}",
                _reasons(each.get("left_out"), about),
                _reasons(files.get("left_out") if isinstance(files, dict) else None, ""),
            )
        )
    return rows


def _reasons(counts: Any, about: str) -> str:
    if not isinstance(counts, dict) or not counts:
        return "nothing"
    return ", ".join(f"{about}{_count(count)} {why}" for why, count in counts.items())


def _count(value: Any) -> str:
    """A count, or nothing where it is none."""
    return "" if (found := number(value)) is None else f"{found:,.0f}"


def machine_rows(run: RunRecord) -> list[tuple[str, str]]:
    """The machine of the run's last start, and what else was recorded there."""
    start = run.start()
    machine = start.get("machine")
    if not isinstance(machine, dict):
        machine = {}
    rows = [(label, f"{machine[key]}{unit}") for label, key, unit in MACHINE if key in machine]
    versions = machine.get("versions")
    rows += [(str(key), str(value)) for key, value in versions.items()] if isinstance(versions, dict) else []
    shown_elsewhere = ("from", "again", "machine", "n_params", "flops_per_token", "vocab_size", "text")
    return rows + [
        (key.replace("_", " "), fact_text(value)) for key, value in start.items() if key not in shown_elsewhere
    ]
