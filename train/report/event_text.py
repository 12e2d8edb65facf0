"""What happened to a run, in sentences.

Tested in tests/train/report/test_html.py.
"""

import signal
from typing import Any

from slm.report import duration
from slm.train.report.formatting import fact_text
from slm.train.report.run_record import Event, RunRecord

PLANNED = ("start", "end", "quantized", "superposed", "single_tokens", "calibrated", "slept", "asked")


def is_serious(event: Event) -> bool:
    """Whether something went wrong: not starts, ends and the phases of a run."""
    return event.kind not in PLANNED or event.facts.get("status") == "failed"


def describe_events(run: RunRecord) -> list[tuple[Event, str]]:
    """Every event with a sentence for it."""
    out, running = [], False
    for event in run.events():
        if event.kind == "start":
            text = _start_text(event.facts)
            if running:  # no end was recorded since the last start
                text += "; before that it ended unexpectedly (killed, or the machine went down)"
            running = True
        elif event.kind == "end":
            text, running = _end_text(event.facts), False
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
    """A guard's record as a sentence; for a kind that is not known here, its name and all its facts."""
    facts = event.facts
    try:
        if event.kind == "skipped":
            return f"update skipped: {facts['error']} ({facts['skipped']} so far)"
        if event.kind == "spike":
            return f"the loss jumped to {facts['loss']:.4f}, {facts['times']:.1f} times the median"
        if event.kind == "rolled_back":
            return (
                f"rolled back: the loss of step {facts['from']:,} was {facts['loss']:.4f}, {facts['times']:.1f} times "
                f"the median; {facts['tokens']:,} tokens skipped"
            )
        if event.kind == "quantized":
            return f"from here on the model computes with the weights of a {facts['file_type']} file ({facts['types']})"
        if event.kind == "superposed":
            return f"bags of {facts['bag']} tokens for the first {facts['share']:.0%} of the run"
        if event.kind == "single_tokens":
            return "from here on single tokens: losses before this cannot be compared"
        if event.kind == "calibrated":
            return f"the head is calibrated: {facts['before']:.4f} -> {facts['after']:.4f} nats per held-out token"
        if event.kind == "asked":
            return str(facts["line"])
        if event.kind == "slept":
            return f"the machine slept for {duration(facts['seconds'])}"
    except (KeyError, TypeError, ValueError):
        pass
    details = ", ".join(f"{key} {fact_text(value)}" for key, value in facts.items())
    return event.kind.replace("_", " ") + (f" ({details})" if details else "")
