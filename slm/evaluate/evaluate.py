"""``python -m slm.evaluate run=RUN``: perplexity of a checkpoint and of every GGUF made from it, in one table; with
``tasks=...`` the tasks of lm-evaluation-harness (``slm.evaluate.tasks``).

Each model is scored on one text, the run's held-out text unless another is given, in two definitions that must
not be mixed up (see ``slm.evaluate.perplexity``). The last line printed is a JSON list of rows.
"""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from slm import report, runs
from slm.cli import spelled
from slm.configuration import load
from slm.data.errors import UserError
from slm.evaluate.config import LONGEST_DEFAULT_CONTEXT, EvalConfig, EvaluateConfig
from slm.evaluate.perplexity import (
    Score,
    Scorer,
    bits_per_byte,
    chunked_plan,
    contiguous_plan,
    reduce,
    sliding_plan,
    word_perplexity,
)
from slm.evaluate.progress import progress_bar
from slm.evaluate.scorers import GGUFScorer, checkpoint_scorer
from slm.evaluate.text import Text, first_documents, read_text, shorten, text_file
from slm.exported import stale_lines
from slm.hub import models
from slm.llama.gguf_check import read_header
from slm.llama.verdict import require_working_build
from slm.machine.crash_guard import doing
from slm.machine.hardware import compute_threads, share_cores


def main(argv: list[str]) -> int:
    """Score everything, print the table and the JSON line."""
    config = load(EvaluateConfig, "evaluate", argv, literal=("run", "tasks"))
    share_cores()
    if file := models.gguf_file(config.run):
        if config.eval.files is not None:
            raise UserError(f"run={config.run} is a GGUF file and the only one that is scored: leave eval.files= out")
        run = runs.Run(root=file.path)
        config = replace(config, eval=replace(config.eval, files=[file.path], checkpoint=False))
    else:
        run = models.resolve(config.run)
    if config.tasks:
        report.final_json(run_tasks(run, config))
        return 0
    rows = evaluate(run, config.eval)
    show(run, rows)
    found = [{key: row[key] for key in ROW_KEYS} for row in rows]
    if config.eval.coherence_stories:
        found += coherence_rows(run, config.eval.coherence_stories)
    report.final_json(found)
    return 0


def coherence_rows(run: runs.Run, stories: int) -> list[dict[str, Any]]:
    """Print how coherent the checkpoint's stories are; a row for JSON. Empty for a run on other text."""
    from slm.evaluate.stories import checkpoint_coherence, is_of_tales

    value = checkpoint_coherence(run.checkpoint(), stories) if is_of_tales(run) else None
    if value is None:
        print("coherence: left out, since the run was not trained on the embedded stories")
        return []
    name = run.checkpoint().name
    about = "0 to 1; stories of the corpus: 1.00; six checks, see docs/data.md"
    print(f"coherence of {stories} stories by {name}: {value:.3f} ({about})")
    return [
        {"file": run.checkpoint().name, "engine": "torch", "definition": f"coherence/{stories}", "coherence": value}
    ]


def run_tasks(run: runs.Run, config: EvaluateConfig) -> list[dict[str, Any]]:
    """Run the tasks on every model and print their table; the rows."""
    from slm.evaluate.tasks import Tasks, check_names, show

    check_names(config.tasks, config.harness)
    files = files_to_score(run, config.eval)
    tasks = Tasks(config.tasks, config.harness)
    threads = config.eval.threads or compute_threads()
    rows: list[dict[str, Any]] = []
    if config.eval.checkpoint:
        rows += tasks.run(checkpoint_scorer(run.checkpoint(), threads))
    for path in files:
        # The same context for every model; it takes no memory before it is used.
        with GGUFScorer(path, context=sys.maxsize, n_threads=threads) as scorer:
            rows += tasks.run(scorer)
    show(f"Tasks of lm-evaluation-harness, {run.name}", tasks.shown(rows))
    return rows


ROW_KEYS = ("file", "engine", "definition", "perplexity", "stderr", "word_perplexity", "bits_per_byte", "tokens")


def evaluate(run: runs.Run, config: EvalConfig) -> list[dict[str, Any]]:
    """Two rows per model (three with ``contiguous``), checkpoint first.

    UserError where there is nothing to score or the text is too short.
    """
    files = files_to_score(run, config)
    text = read_text(text_file(config.text, run))
    rows: list[dict[str, Any]] = []
    threads = config.threads or compute_threads()
    if config.checkpoint:
        rows += score(checkpoint_scorer(run.checkpoint(), threads), text, config)
    for path in files:
        with GGUFScorer(path, context=longest_window(config, path), n_threads=threads) as scorer:
            rows += score(scorer, text, config)
    return rows


def files_to_score(run: runs.Run, config: EvalConfig) -> list[Path]:
    """The GGUF files that the options name, checked; a line where they are older than the run's newest checkpoint.

    UserError where there is nothing to score.
    """
    files = [Path(path) for path in config.files] if config.files is not None else run.ggufs()
    for path in files:
        check_is_model(path)
    if config.checkpoint:
        run.checkpoint()  # its absence is reported before anything is read
        if line := run.choice_line():
            print(line, flush=True)
    if not files and not config.checkpoint:
        raise UserError(f"{run.root} holds no GGUF file; export one first: `{spelled('export', run=run.root)}`")
    for line in stale_lines(files):
        print(line, flush=True)
    if files:
        require_working_build()
    return files


def check_is_model(path: Path) -> None:
    """UserError unless the file is a GGUF language model (an importance matrix is a GGUF too)."""
    metadata = read_header(path).metadata
    if "general.architecture" not in metadata or metadata.get("general.type") in ("adapter", "imatrix"):
        raise UserError(
            f"{path} is a GGUF file but not a model (an importance matrix, or an adapter?); leave it out of files="
        )


def longest_window(config: EvalConfig, path: Path) -> int:
    """Tokens of context the file's scorer needs for both definitions."""
    metadata = read_header(path).metadata
    own = metadata.get(f"{metadata['general.architecture']}.context_length", LONGEST_DEFAULT_CONTEXT)
    return min(own, max(config.n_ctx, config.contiguous or 0, sliding_context(config, own)))


def sliding_context(config: EvalConfig, own: int) -> int:
    """Context of the sliding window for a model with a context of ``own`` tokens."""
    return min(own, config.context or LONGEST_DEFAULT_CONTEXT)


def score(scorer: Scorer, text: Text, config: EvalConfig) -> list[dict[str, Any]]:
    """All definitions for one model."""
    # llama.cpp's tool drops one newline at the end; both definitions do, so that they score the same tokens.
    content, ids = shorten(scorer, text.content.removesuffix("\n"), config.max_tokens)
    part = Text(content=content, name=text.name)
    context = sliding_context(config, scorer.max_context)
    chunked = chunked_plan(scorer, ids, config.n_ctx)
    sliding = sliding_plan(scorer, ids, context)
    n_ctx = chunked[1][0].stop - chunked[1][0].start
    doing(f"scoring {scorer.name}")
    plans = [chunked, sliding]
    if config.contiguous:
        # Text that is no documents is one, shortened already.
        documents, ids_of_each = (
            first_documents(scorer, text, config.max_tokens) if text.documents else ([content], [ids])
        )
        plans.append(contiguous_plan(scorer, ids_of_each, config.contiguous))
    total = sum(window.stop - window.start for _, windows in plans for window in windows)
    with progress_bar(scorer.name, total) as progress:
        scores = [reduce(scorer.nll(windows, stream, progress)) for stream, windows in plans]
    rows = [
        row(scorer, f"llama.cpp/{n_ctx}", scores[0], None),
        row(scorer, f"sliding/{context}", scores[1], part),
    ]
    if config.contiguous:
        length = min(config.contiguous, scorer.max_context)
        n_bytes = sum(len(document.encode()) for document in documents)
        corpus = row(scorer, f"contiguous/{length}", scores[2], None)
        rows.append(corpus | {"bits_per_byte": bits_per_byte(scores[2].nll, n_bytes)})
    return rows


def row(scorer: Scorer, definition: str, score: Score, text: Text | None) -> dict[str, Any]:
    """One row. Words and bytes are counted only where every token of the text was scored."""
    return {
        "file": scorer.name,
        "engine": scorer.engine,
        "definition": definition,
        "perplexity": score.perplexity,
        "stderr": score.stderr,
        "word_perplexity": word_perplexity(score.nll, text.n_words) if text else None,
        "bits_per_byte": bits_per_byte(score.nll, text.n_bytes) if text else None,
        "tokens": score.tokens,
    }


def show(run: runs.Run, rows: list[dict[str, Any]]) -> None:
    """The table, with what each definition means under it."""

    def number(value: float | None, digits: int) -> str:
        return "" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"

    report.table(
        f"Perplexity of {run.name}",
        ["file", "definition", "perplexity", "± stderr", "word perplexity", "bits per byte", "tokens"],
        [
            [
                each["file"],
                each["definition"],
                report.perplexity_text(each["perplexity"]),
                number(each["stderr"], 4),
                "" if each["word_perplexity"] is None else report.perplexity_text(each["word_perplexity"]),
                number(each["bits_per_byte"], 4),
                f"{each['tokens']:,}",
            ]
            for each in rows
        ],
        key=2,
        caption=(
            "llama.cpp/N: windows of N tokens that do not overlap, second halves scored (as llama-perplexity does)\n"
            "sliding/T: context T, stride T/2, every token scored once; word perplexity and bits per byte are its own\n"
            "contiguous/T: windows of T tokens that do not overlap, every token scored; bits per byte of documents\n"
            "they are different quantities: compare only rows of one definition, and perplexities of one tokenizer"
        ),
    )
