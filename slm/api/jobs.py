"""The commands as functions: each starts ``slm COMMAND`` as a process, shows its lines, and returns its results.

Each process has separate threads, memory and signals: Ctrl-C in a notebook stops a training as in a terminal,
with a checkpoint, and a crash of native code does not end the notebook.

Tested in tests/slm/api/test_api.py.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm.api.runs import Run, run_of, runs
from slm.data.errors import UserError

__all__ = ["Export", "evaluate", "exam", "export", "plan", "runs", "serve", "train", "tune"]
PathLike = str | os.PathLike[str]


def train(
    data: PathLike | Sequence[PathLike] | None = None,
    *,
    budget: str | None = None,
    preset: str | None = None,
    show: bool = True,
    **options: Any,
) -> Run:
    """Train a model: ``slm.train(data="notes/", budget="1h", name="mine")``, as ``slm train`` does.

    ``data``: files, folders, or the name of a data set; default: the embedded stories. ``options``: of ``slm train``,
    with two underscores in place of a point (``train__max_steps=100``). A run that was stopped resumes when it is asked
    for again. ``show``: print the lines of the command. UserError with the command's own line where it fails.
    """
    if preset is None:
        preset = "auto" if budget else "tiny"
    words = _words(preset=preset, budget=budget, data=data, **options)
    return run_of(_record(_lines("train", words, show))["run"])


def tune(
    model: "PathLike | Run",
    data: PathLike | Sequence[PathLike],
    *,
    budget: str | None = None,
    show: bool = True,
    **options: Any,
) -> Run:
    """Tune a model on conversations: ``slm.tune("runs/mine", "chats.csv")``, as ``slm tune`` does. See ``train``."""
    words = _words(model=_named(model), budget=budget, data=data, **options)
    return run_of(_record(_lines("tune", words, show))["run"])


@dataclass(frozen=True, kw_only=True)
class Export:
    """What an export has written and proven."""

    files: list[Path]
    """The GGUF files, one for each type."""
    record: dict[str, Any]
    """All that ``slm export`` reports, as its JSON line has it."""


def export(
    model: "PathLike | Run", quant: str | Sequence[str] = "q4_k_m", *, show: bool = True, **options: Any
) -> Export:
    """Write proven GGUF files: ``slm.export(run, "q8_0")``, as ``slm export`` does.

    UserError where a file fails its proof: nothing is published then.
    """
    types = quant if isinstance(quant, str) else ",".join(quant)
    record = _record(_lines("export", _words(model=_named(model), quant=types, **options), show))
    folder = Path(record["out"])
    return Export(files=[folder / each["file"] for each in record["files"]], record=record)


def evaluate(
    model: "PathLike | Run", text: PathLike | None = None, *, show: bool = True, **options: Any
) -> list[dict[str, Any]]:
    """Perplexity and bits per byte of a checkpoint and its GGUF files, a row each, as ``slm eval`` does.

    ``text``: a file; ``"wikitext"``: WikiText-2's raw test set; default: the run's held-out text.
    """
    found: list[dict[str, Any]] = _record(_lines("eval", _words(model=_named(model), eval__text=text, **options), show))
    return found


def exam(
    model: "PathLike | Run", questions: PathLike | None = None, *, show: bool = True, **options: Any
) -> list[dict[str, Any]]:
    """Right answers to questions with known answers, a row for each engine and file, as ``slm exam`` does."""
    found: list[dict[str, Any]] = _record(_lines("exam", _words(model=_named(model), data=questions, **options), show))
    return found


def plan(*, budget: str | None = None, preset: str | None = None, show: bool = False, **options: Any) -> dict[str, Any]:
    """What a time gives, or what a preset costs, as ``slm plan`` says: its JSON line."""
    if preset is None:
        preset = "auto" if budget else "tiny"
    found: dict[str, Any] = _record(_lines("plan", _words(preset=preset, budget=budget, **options), show))
    return found


@contextlib.contextmanager
def serve(model: "PathLike | Run", *, port: int = 0, show: bool = False, **options: Any) -> Iterator[str]:
    """A server of the OpenAI API while the block runs: ``with slm.serve(run) as url: OpenAI(base_url=url, ...)``.

    ``port``: 0 takes a free one. The server ends with the block. UserError with the server's own line where it does not
    start.
    """
    process = _start("serve", _words(model=_named(model), port=port, **options))
    said: list[str] = []
    ready = threading.Event()
    url: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if show:
                print(line, end="", flush=True)
            if line.startswith("url "):
                url.append(line.split()[1])
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        ready.wait()
        if not url:
            process.wait()
            raise UserError(_failure("serve", said, process.returncode))
        yield url[0]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def _named(model: "PathLike | Run") -> str:
    return str(model.path) if isinstance(model, Run) else os.fspath(model)


def _words(**options: Any) -> list[str]:
    """The words of a command line. None: not given."""
    return [f"{key.replace('__', '.')}={_value(key, value)}" for key, value in options.items() if value is not None]


def _value(key: str, value: Any) -> str:
    """A value as Hydra reads it; names of models and files are read by us, as they are."""
    from slm.configuration import quoted

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_value('', each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}: {_value('', each)}" for name, each in value.items()) + "}"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and key not in ("model", "quant", "preset", "budget", "data"):
        return quoted(value)
    return str(value)


def _start(command: str, words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "slm", command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        bufsize=1,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def _lines(command: str, words: list[str], show: bool) -> list[str]:
    """What a command prints. UserError with its own line where it fails; Ctrl-C is passed on, and it may save."""
    process = _start(command, words)
    assert process.stdout is not None
    said: list[str] = []
    interrupted = False
    while True:
        try:
            for line in process.stdout:
                said.append(line)
                if show and not line.startswith(("{", "[{", "error: ")):
                    print(line, end="", flush=True)
            status = process.wait()
            break
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    if status:
        raise UserError(_failure(command, said, status))
    return said


def _failure(command: str, said: list[str], status: int) -> str:
    errors = [line.strip().removeprefix("error: ") for line in said if line.startswith("error: ")]
    last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
    return errors[-1] if errors else f"slm {command} ended with status {status}: {last}"


def _record(said: list[str]) -> Any:
    """The JSON that a command ends with."""
    for line in reversed(said):
        with contextlib.suppress(ValueError):
            return json.loads(line)
    raise UserError("the command printed no results")
