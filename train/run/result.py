"""What a run has come to, as the JSON line that ``slm train``, ``tune`` and ``qat`` end with.

Tested in tests/slm/command/test_output.py, tests/train/test_main.py.
"""

import json
from pathlib import Path
from typing import Any

from slm.model.checkpoint import TRAINER_STATE
from slm.runs import Run, list_checkpoints
from slm.train.report.run_record import RunRecord

SCORE = ("questions", "judged", "right")
"""Fields of a score of held-out questions."""


def result(root: Path) -> dict[str, Any]:
    """The figures of the run in ``root``, as its files have them, with the names that ``metrics.jsonl`` has.

    ``status`` is ``finished``, or ``stopped`` by a signal: the same command then resumes. ``checkpoint`` is the one
    that other commands take (None before the first), with its ``val_loss`` in nats per token and
    ``val_bits_per_byte``. ``elapsed_s`` and ``setup_s``: seconds of all starts together. A run on conversations has
    the score of its held-out questions in ``asked_first`` and ``asked_last``.
    """
    record = RunRecord(root)
    record.update()
    ends = [event.facts.get("status") for event in record.event_log if event.kind == "end"]
    found: dict[str, Any] = {"run": str(root), "status": ends[-1] if ends else None, "checkpoint": None}
    if checkpoints := list_checkpoints(root):
        newest, chosen = _state(checkpoints[-1]), Run(root=root).checkpoint()
        validation = _state(chosen).get("validation") or {}
        found |= {"checkpoint": str(chosen)} | {name: newest[name] for name in ("step", "tokens")}
        found |= {name: validation.get(name) for name in ("val_loss", "val_bits_per_byte")}
        found |= {name: newest[name] for name in ("elapsed_s", "setup_s")}
    if asked := [event.facts for event in record.guard_events if event.kind == "asked"]:
        for name, facts in (("asked_first", asked[0]), ("asked_last", asked[-1])):
            found[name] = {key: facts.get(key) for key in SCORE}
    return found


def _state(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))
    return state
