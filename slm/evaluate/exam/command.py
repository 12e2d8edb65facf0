"""``slm exam run=RUN``: how many questions a model answers rightly. With ``data=my.jsonl`` those of a person's own
conversations (``own``), else the embedded ones about stories (``stories``). The last line printed is a JSON list of
rows."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slm import cli, report, runs
from slm.configuration import load
from slm.data.chat.story_chat import exam
from slm.data.errors import UserError
from slm.data.sources import files as data_files
from slm.evaluate.evaluate import check_is_model
from slm.evaluate.exam import own, questions, stories
from slm.evaluate.exam.answers import Answers, GGUFAnswers, checkpoint_answers
from slm.evaluate.exam.config import ExamConfig
from slm.exported import stale_lines
from slm.hub import models
from slm.llama.verdict import require_working_build
from slm.machine.crash_guard import doing
from slm.machine.hardware import compute_threads, share_cores


def main(argv: list[str]) -> int:
    """Ask every model, print the table and the JSON line."""
    config = load(ExamConfig, "exam", argv, literal=("run", "data"))
    share_cores()
    name, checkpoint, files = _models(config)
    if config.data:
        found, line = questions.read(config.data)
        print(line, flush=True)
        chosen = questions.choose_scores(questions.sample(found.questions, config.questions), config.score)
        for each in found.lines(len(chosen)):
            print(each, flush=True)
        if note := trained_line(name, config.data):
            print(note, flush=True)
        title = f"{len(chosen):,} questions of {', '.join(config.data)}, {name.name}"
        rows = _each(config, checkpoint, files, lambda model: own.ask(model, chosen, config.max_tokens, config.show))
        own.show(title, rows)
    else:
        asked = exam(config.questions)
        most = config.max_tokens or stories.MOST_TOKENS
        rows = _each(config, checkpoint, files, lambda model: stories.ask(model, asked, most, config.show))
        stories.show(name.name, rows)
        if (own_questions := name.root / runs.QUESTIONS).is_file():
            asks = cli.spelled("exam", run=_typed(config.run), data=_typed(own_questions))
            print(f"this run has questions from its held-out conversations: `{asks}`", flush=True)
    report.final_json(rows)
    return 0


def _models(config: ExamConfig) -> tuple[runs.Run, Path | None, list[Path]]:
    """The run, its checkpoint where that is asked, and the GGUF files. UserError where there is nothing to ask."""
    if file := models.gguf_file(config.run):
        if config.files is not None:
            raise UserError(f"run={config.run} is a GGUF file and the only one that is asked: leave files= out")
        run, checkpoint, files = runs.Run(root=file.path), None, [file.path]
    else:
        run = models.resolve(config.run)
        files = [Path(path) for path in config.files] if config.files is not None else run.ggufs()
        if not files and not config.checkpoint:
            raise UserError(f"{run.root} holds no GGUF file; export one first: `{cli.spelled('export', run=run.root)}`")
        checkpoint = run.checkpoint() if config.checkpoint else None
        if checkpoint and (line := run.choice_line()):
            print(line, flush=True)
    for path in files:
        check_is_model(path)
    for line in stale_lines(files):
        print(line, flush=True)
    if files:
        require_working_build()
    return run, checkpoint, files


def _each(
    config: ExamConfig, checkpoint: Path | None, files: list[Path], ask: Callable[[Answers], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for the checkpoint and for each file, one model in memory at a time."""
    threads = config.threads or compute_threads()
    rows = []
    if checkpoint is not None:
        rows.append(ask(checkpoint_answers(checkpoint, threads)))
    for path in files:
        doing(f"loading {path.name}")
        with GGUFAnswers(path, threads) as model:
            doing(f"asking {path.name}")
            rows.append(ask(model))
    return rows


def trained_line(run: runs.Run, data: list[str]) -> str | None:
    """A line where the run was trained on the conversations that it is asked about."""
    config = runs.saved_config(run.root) if run.root.is_dir() else {}
    saved = config.get("data") or {}
    patterns = [name for each in (saved, *(saved.get("sources") or [])) for name in each.get("files") or []]
    if not patterns:
        return None
    try:
        read = {os.path.realpath(path) for path in data_files.expand(patterns, plain_text=False)}
        asked = {os.path.realpath(path) for path in data_files.expand(data, "data", plain_text=False)}
    except UserError:
        return None  # what it was trained on is not here any more
    if not read & asked:
        return None
    own_questions = run.root / runs.QUESTIONS
    held_out = f"; questions that were held out are in {_typed(own_questions)}" if own_questions.is_file() else ""
    return f"note: {run.name} was trained on these conversations, so most of the questions are not held out{held_out}"


def _typed(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
