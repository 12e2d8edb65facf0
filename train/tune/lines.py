"""What a tuned run says of itself: one line at its start, one at its end.

Tested in tests/train/tune/test_lines.py.
"""

import json
from pathlib import Path
from typing import Any

from slm.report import duration
from slm.train.config import RunConfig
from slm.train.tune.look import Look
from slm.train.tune.rule import HELD_OUT_FROM, LEAST_HELD_OUT, SHARES, Choice


def plan(
    choice: Choice,
    seen: Look | None,
    *,
    max_minutes: float | None,
    held_out: int | None = None,
    once: bool = False,
    learns: bool = True,
) -> str:
    """What the rule has chosen, for a person.

    ``held_out``: how many conversations a person holds out; None: the rule decides. ``once``: copies of conversations
    are left out. ``learns``: validations end no run with a falling training loss.
    """
    text = f"plan: {choice.max_steps:,} updates of up to {choice.step_tokens:,} tokens"
    if max_minutes is not None:
        text += f", or as many as {duration(60 * max_minutes)} allow"
    if seen is None or choice.passes is None:
        return text
    text += (
        f"; {seen.distinct:,} conversations of {seen.mean_length:,.0f} tokens ({seen.scored:.0%} scored), "
        f"{choice.passes:,.1f} epochs"
    )
    if once:
        text += f"; {seen.records - seen.distinct:,} copies are left out (data.dedup=none reads them, too)"
    if seen.shared >= SHARES * seen.mean_length:
        text += f"; {seen.shared:,} tokens at their beginning are the same and computed once in an update"
    if choice.patience:
        kept = f"{choice.val_fraction:.1%} of them are held out, and " if choice.val_fraction else ""
        text += f"; {kept}{choice.patience} validations in a row without improvement end the run"
        return text + (", unless the loss in training still falls" if learns else "")
    if held_out and held_out < LEAST_HELD_OUT:
        return (
            f"{text}; {held_out:,} held-out conversations are too few to stop by ({LEAST_HELD_OUT} are enough): the "
            "plan is carried out, and the last checkpoint is taken"
        )
    if held_out or choice.val_fraction:
        return f"{text}; validations end no run (train.patience=0)"
    return f"{text}; fewer than {HELD_OUT_FROM} are all learned, and validations score what is learned"


def end(config: RunConfig) -> str | None:
    """What became of a run that has ended; None where nothing was trained."""
    records = _records(config.root / "metrics.jsonl")
    first = next((each["loss"] for each in records if "loss" in each), None)
    moved = max((n for n, each in enumerate(records) if each.get("event") == "interpolated"), default=-1)
    validated = [each for each in records[moved + 1 :] if "val_loss" in each and "event" not in each]
    if first is None or not validated:
        return None
    best, steps = min(validated, key=lambda each: each["val_loss"]), validated[-1]["step"]
    if any(each.get("event") == "last_taken" and each["step"] == steps for each in records):
        best = validated[-1]
    planned = config.train.max_steps
    text = f"tuned: {steps:,} of {planned:,} updates"
    if passes := (config.facts.get("tune") or {}).get("passes"):
        text += f", {passes * steps / planned:,.1f} epochs of the conversations"
    what = "held-out conversations" if config.data.val_fraction or config.data.val_files else "the conversations"
    unit = config.preference.loss_unit
    return f"{text}; loss {first:.3f} at first, {best['val_loss']:.3f} {unit} on {what} at step {best['step']:,}"


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
