"""Where a run goes on, and whether anything is left of it to do.

Tested in tests/train/test_resume.py, tests/train/test_main.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slm.train.components.component import Component
from slm.train.config import RunConfig
from slm.train.run.resume import ResumePoint, back_up_later_checkpoints, check_unchanged, find_resume_point
from slm.train.run.run_state import limit_seconds


def resume_point(config: RunConfig, components: Sequence[Component], resume: str, root: Path) -> ResumePoint:
    """The checkpoint to resume from, if any, checked against the configuration."""
    point = find_resume_point(resume, root, print)
    if point.checkpoint:
        check_unchanged(point.state["config"], config, root)
        if not finished(config, components, point.state):
            for name in back_up_later_checkpoints(root, point.checkpoint, point.state["step"]):
                print(f"{name} is not what the run goes on from, and is kept aside")
            print(f"resuming {root} from {point.checkpoint.name}")
    return point


def finished(config: RunConfig, components: Sequence[Component], state: dict[str, Any]) -> str | None:
    """How a run with this checkpoint's state has ended, and what it takes to train it further; None: it goes on."""
    if (state.get("validation") or {}).get("step") != state["step"]:
        return None  # stopped in its last validation, which is still to be done
    if any(each.unfinished(state) for each in components):
        return None
    step, most = state["step"], config.train.max_steps
    early = next((found for each in components if (found := each.ended_early(state))), None)
    limit = limit_seconds(config.train, state["setup_s"], state["closing_s"])
    if not early and state["elapsed_s"] < limit and step < most:
        return None
    how, more = early or (f"step {step:,} of {most:,}", "train.max_steps (or train.max_minutes)")
    return f"{how}. To train it further raise {more}; for a new run give name=... or resume=never"
