"""All that is known of a run, as plain values for programs (``slm watch watch.json=true``).

Tested in tests/train/report/test_watch.py.
"""

from dataclasses import asdict
from typing import Any

from slm.train.report.event_text import describe_events, is_serious
from slm.train.report.run_record import RunRecord

POINTS = 300
"""The most points of each curve."""
CURVES = ("step", "tokens", "elapsed_s", "loss", "tokens_per_s")


def run_state(run: RunRecord, status: str) -> dict[str, Any]:
    """The run's progress, curves, validations, samples and events.

    Times are seconds, losses nats per token (``loss_unit``). ``curve``: columns of at most ``POINTS`` means.
    ``predicted`` is what the plan said before the run, ``forecast`` what the run says of its end now.
    """
    points = run.curves.points(POINTS)
    best = run.best()
    return {
        "name": run.name,
        "status": status,
        "step": run.step(),
        "planned_steps": run.planned_steps(),
        "tokens": run.tokens(),
        "progress": run.progress(),
        "elapsed_s": run.elapsed(),
        "seconds_left": run.seconds_left() if status == "running" else None,
        "tokens_per_s": run.recent("tokens_per_s"),
        "rss_gb": run.recent("rss_gb"),
        "loss": run.recent("loss"),
        "loss_unit": run.loss_unit,
        "predicted": run.setting("facts.predicted"),
        "forecast": run.forecast(),
        "model": run.model_facts(),
        "best_step": best.step if best else None,
        "curve": {name: points.mean(name).tolist() for name in CURVES},
        "validations": [asdict(each) for each in run.validations],
        "samples": [asdict(each) for each in run.samples],
        "events": [
            {"kind": each.kind, "step": each.step, "time": each.time, "serious": is_serious(each), "text": text}
            for each, text in describe_events(run)
        ],
    }
