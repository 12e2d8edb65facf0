"""The numbers that the page's script draws.

Tested in tests/train/report/test_html.py.
"""

import math
from typing import Any

import numpy as np

from slm.train.report.curves import POINTS
from slm.train.report.event_text import describe_events, is_serious
from slm.train.report.formatting import rounded, thin_out
from slm.train.report.run_record import Event, RunRecord

SHOWN_EVENTS = 200


def chart_data(run: RunRecord, name: str, status: str, limit: int = POINTS) -> dict[str, Any]:
    """The curves, validations and event markers of a run, each column at most ``limit`` values long."""
    points = run.curves.points(limit)
    train: dict[str, Any] = {
        "step": rounded(points.mean("step"), 9),
        "tokens": rounded(points.mean("tokens"), 9),
        "time": rounded(points.mean("elapsed_s"), 7),
        "loss": rounded(points.mean("loss")),
        "lr": rounded(points.mean("lr")),
        "grad": rounded(points.mean("grad_norm"), 4),
        "speed": rounded(points.mean("tokens_per_s"), 4),
        "memory": rounded(points.mean("rss_gb"), 4),
        "wait": rounded(points.mean("data_wait"), 3),
    }
    if points.stride > 1:
        for key, field in (("loss", "loss"), ("grad", "grad_norm"), ("speed", "tokens_per_s")):
            train |= {f"{key}_low": rounded(points.low(field), 4), f"{key}_high": rounded(points.high(field), 4)}
    validations = thin_out(run.validations, limit)
    val = {
        "step": rounded((each.step for each in validations), 9),
        "tokens": rounded((each.tokens for each in validations), 9),
        "time": rounded((each.elapsed_s for each in validations), 7),
        "loss": rounded((each.loss for each in validations), 6),
        "bpb": rounded((each.bits_per_byte for each in validations), 6),
    }
    described = [(event, text) for event, text in describe_events(run) if event.kind != "end" and event.step > 0]
    return {
        "name": name,
        "status": status,
        "stride": points.stride,
        "train": train,
        "val": val,
        "events": [_marker(run, event, text) for event, text in thin_out(described, SHOWN_EVENTS)],
    }


def _marker(run: RunRecord, event: Event, text: str) -> dict[str, Any]:
    """An event with its place on each of the horizontal axes: steps, tokens and time."""
    steps = run.curves["step"]
    place = {"tokens": math.nan, "time": math.nan}
    if len(steps):
        index = min(int(np.searchsorted(steps, event.step)), len(steps) - 1)
        place = {"tokens": run.curves["tokens"][index], "time": run.curves["elapsed_s"][index]}
    where = {key: rounded([value], 9)[0] for key, value in place.items()}
    return {"step": event.step, **where, "text": text[:300], "serious": is_serious(event)}
