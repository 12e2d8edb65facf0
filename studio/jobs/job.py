"""One job: a command in its own folder, and what its files say of it.

``job.json`` says what is to run. The process that runs it writes ``began.json`` when it begins and ``ended.json`` when
the command has ended. So any process can tell the state, at any time, whether studio is there or not.

Tested in tests/studio/jobs/test_queue.py.
"""

import json
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from slm.data.storage import atomic_write_text

State = Literal["waiting", "running", "done", "stopped", "failed", "gone"]
"""``stopped``: it saved and ended; ``gone``: it ended without a word (the machine went down, say)."""
JOB, BEGAN, ENDED, LOG = "job.json", "began.json", "ended.json", "log.txt"
TAIL_BYTES = 1 << 20
"""Bytes read from the end of a log for its last lines."""
FULL = 1 << 18
"""A disk with fewer bytes free is full."""
INTERRUPTED = 130
_ENDS: dict[int, State] = {0: "done", INTERRUPTED: "stopped", -signal.SIGINT: "stopped"}
_CLOCK_S = 2.0
"""By so much the start of one process may seem to differ between two readings."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to run."""

    id: str
    kind: str
    """``train``, ``tune``, ``export``, ``types``: what the page shows of it."""
    title: str
    words: list[str]
    """The command without ``slm``."""
    run: str | None = None
    """The run's directory that the command writes, relative to the workspace."""
    created: float
    """Seconds since 1970."""
    order: float
    """Waiting jobs start in this order."""
    form: dict[str, Any] | None = None
    """What was entered on the page, so that it can be changed there."""


def write(folder: Path, job: Job) -> None:
    """Keep the job in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_text(folder / JOB, json.dumps(asdict(job), indent=1))


def read(folder: Path) -> Job | None:
    """The job of a folder; None where there is none that can be read."""
    try:
        return Job(**json.loads((folder / JOB).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def facts(path: Path) -> dict[str, Any]:
    """A small JSON file; empty where it is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def identity(pid: int) -> dict[str, float]:
    """What tells a process from a later one with the same number."""
    try:
        return {"pid": pid, "started": psutil.Process(pid).create_time()}
    except psutil.Error:
        return {"pid": pid, "started": 0.0}


def alive(process: dict[str, Any] | None) -> bool:
    """Whether the process of this ``identity`` runs."""
    if not process:
        return False
    try:
        found = psutil.Process(int(process["pid"]))
        same = abs(found.create_time() - float(process["started"])) < _CLOCK_S
        return same and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def state(folder: Path) -> State:
    """What the job is doing."""
    began = facts(folder / BEGAN)
    # Looked at before ended.json: a process writes that before it goes.
    runs = alive(began.get("runner")) or alive(began.get("command"))
    ended = facts(folder / ENDED)
    if ended:
        return _ENDS.get(ended.get("status", 1), "failed")
    if not began:
        return "waiting"
    return "running" if runs else "gone"


def tail(folder: Path, n_bytes: int = TAIL_BYTES) -> str:
    """The end of the log."""
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - n_bytes))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def last_line(text: str) -> str:
    """The last line of a log that says something; of a line that was drawn again and again its last state."""
    lines = [line.rpartition("\r")[2].strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split("\n")]
    return next((line for line in reversed(lines) if line and line[0] not in "{["), "")


def error_line(text: str, status: int | None, free: float | None = None) -> str:
    """Why a command failed, in its own line; where it left none, how it ended.

    ``free``: bytes that the disk had when it ended; on a full one the command can write no line.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    if free is not None and free < FULL:
        return (
            "the disk is full, so it could not even write why it ended: make room, then go on; what was saved is whole"
        )
    if status is None:
        return "it ended without a word: it was killed, or the machine went down"
    if status < 0:
        try:
            return f"it was killed ({signal.Signals(-status).name})"
        except ValueError:
            return f"it was killed (signal {-status})"
    said = last_line(text)
    return f"it ended with status {status}" + (f": {said[:300]}" if said else "")


def final_json(text: str) -> Any:
    """What the command's last line says: its result; None where there is none."""
    for line in reversed(text.splitlines()[-50:]):
        if line.startswith(("{", "[")):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None
