"""``python -m slm.evaluate run=RUN``: perplexity of a checkpoint and of every GGUF made from it, in one table.

Each model is scored on one text, WikiText-2's raw test set unless another is given, in two definitions that must
not be mixed up (see :mod:``slm.evaluate.perplexity``). The last line printed is a JSON list of rows.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from data.errors import UserError
from slm import report, runs
from slm.configuration import build, load_config
from slm.evaluate.perplexity import (
    GGUFScorer,
    Progress,
    Score,
    Scorer,
    TorchScorer,
    bits_per_byte,
    chunked_plan,
    reduce,
    sliding_plan,
    word_perplexity,
)
from slm.machine.hardware import compute_threads, share_cores

LONGEST_DEFAULT_CONTEXT = 1024


@dataclass(kw_only=True)
class EvalConfig:
    """What to score and how much of it."""

    text: Path | None = None
    """A UTF-8 text file; None takes WikiText-2's raw test set from the Hub."""
    n_ctx: int = 512
    """Window of llama.cpp's definition, tokens; a model with less context gets less."""
    context: int | None = None
    """Context of the sliding window, tokens; None takes the model's own, at most 1024."""
    max_tokens: int | None = None
    """Use about this many tokens from the start of the text."""
    files: list[Path] | None = None
    """GGUF files to score instead of all the run's."""
    checkpoint: bool = True
    """Score the checkpoint too."""
    threads: int | None = None
    """CPU threads; None for the physical cores that this process may use."""

    def __post_init__(self) -> None:
        if self.n_ctx < 8 or (self.context is not None and self.context < 8):
            raise UserError("eval.n_ctx and eval.context must be at least 8 tokens")
        if self.max_tokens is not None and self.max_tokens < 16:
            raise UserError(f"eval.max_tokens={self.max_tokens} is too few to score; give at least 16")


@dataclass(kw_only=True)
class EvaluateConfig:
    """The command's configuration."""

    run: Path
    """A run, one of its checkpoints, or a Hugging Face model directory."""
    eval: EvalConfig = field(default_factory=EvalConfig)


@dataclass(frozen=True, kw_only=True)
class Text:
    """What is scored."""

    content: str
    name: str

    @property
    def n_words(self) -> int:
        return len(self.content.split())

    @property
    def n_bytes(self) -> int:
        return len(self.content.encode("utf-8"))


def main(argv: list[str]) -> int:
    """Score everything, print the table and the JSON line."""
    config = build(EvaluateConfig, load_config("evaluate", argv), where="")
    share_cores()
    run = runs.resolve(config.run)
    rows = evaluate(run, config.eval)
    show(run, rows)
    report.final_json([{key: row[key] for key in ROW_KEYS} for row in rows])
    return 0


ROW_KEYS = ("file", "engine", "definition", "perplexity", "stderr", "word_perplexity", "bits_per_byte", "tokens")


def evaluate(run: runs.Run, config: EvalConfig) -> list[dict[str, Any]]:
    """Two rows per model, checkpoint first. UserError where there is nothing to score or the text is too short."""
    files = [Path(path) for path in config.files] if config.files is not None else run.ggufs()
    for path in files:
        check_is_model(path)
    if not files and not config.checkpoint:
        raise UserError(f"{run.root} holds no GGUF file; export one first: python -m export run={run.root}")
    text = read_text(config.text)
    rows: list[dict[str, Any]] = []
    threads = config.threads or compute_threads()
    if config.checkpoint:
        rows += score(checkpoint_scorer(run.checkpoint(), threads), text, config)
    for path in files:
        with GGUFScorer(path, context=longest_window(config, path), n_threads=threads) as scorer:
            rows += score(scorer, text, config)
    return rows


def checkpoint_scorer(checkpoint: Path, threads: int | None = None) -> TorchScorer:
    """A scorer of a checkpoint directory, f32."""
    import torch

    from data.tokenizers.make import load_tokenizer
    from slm.model.checkpoint import load_model
    from slm.model.special_tokens import read_specials

    torch.set_num_threads(threads or compute_threads())
    model = load_model(checkpoint)
    specials = read_specials(checkpoint, model.config.vocab_size)
    return TorchScorer(
        model,
        load_tokenizer(checkpoint).encode,
        name=checkpoint.name,
        bos=specials.bos_added,
        document_start=specials.document_start,
    )


def check_is_model(path: Path) -> None:
    """UserError unless the file is a GGUF language model (an importance matrix is a GGUF too)."""
    from slm.llama.gguf_check import read_header

    if "general.architecture" not in read_header(path).metadata:
        raise UserError(f"{path} is a GGUF file but not a model (an importance matrix?); leave it out of eval.files")


def longest_window(config: EvalConfig, path: Path) -> int:
    """Tokens of context the file's scorer needs for both definitions."""
    from slm.llama.gguf_check import read_header

    metadata = read_header(path).metadata
    own = metadata.get(f"{metadata['general.architecture']}.context_length", LONGEST_DEFAULT_CONTEXT)
    return min(own, max(config.n_ctx, sliding_context(config, own)))


def sliding_context(config: EvalConfig, own: int) -> int:
    """Context of the sliding window for a model whose own is ``own`` tokens."""
    return min(own, config.context or LONGEST_DEFAULT_CONTEXT)


def read_text(path: Path | None) -> Text:
    """The text to score. A file is taken as it is; without one, WikiText-2's raw test set."""
    from data.sources import wikitext

    return Text(content=wikitext.load(path), name="WikiText-2 raw test" if path is None else path.name)


def score(scorer: Scorer, text: Text, config: EvalConfig) -> list[dict[str, Any]]:
    """Both definitions for one model."""
    # llama.cpp's tool drops one newline at the end; both definitions do, so that they score the same tokens.
    content, ids = shorten(scorer, text.content.removesuffix("\n"), config.max_tokens)
    part = Text(content=content, name=text.name)
    context = sliding_context(config, scorer.max_context)
    chunked = chunked_plan(scorer, ids, config.n_ctx)
    sliding = sliding_plan(scorer, ids, context)
    n_ctx = chunked[1][0].stop - chunked[1][0].start
    total = sum(window.stop - window.start for _, windows in (chunked, sliding) for window in windows)
    with progress_bar(scorer.name, total) as progress:
        by_chunks = reduce(scorer.nll(chunked[1], chunked[0], progress))
        by_sliding = reduce(scorer.nll(sliding[1], sliding[0], progress))
    return [
        row(scorer, f"llama.cpp/{n_ctx}", by_chunks, None),
        row(scorer, f"sliding/{context}", by_sliding, part),
    ]


def shorten(scorer: Scorer, content: str, max_tokens: int | None) -> tuple[str, np.ndarray]:
    """The text, or its whole words from the start with about ``max_tokens`` at most; and its ids."""
    ids = scorer.tokenize(content)
    if max_tokens is None or len(ids) <= max_tokens:
        return content, ids
    part = content[: int(len(content) * max_tokens / len(ids))]
    while part and not part[-1].isspace():
        part = part[:-1]
    part = part.rstrip() or content
    return part, scorer.tokenize(part)


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
        ["file", "engine", "definition", "perplexity", "± stderr", "word perplexity", "bits per byte", "tokens"],
        [
            [
                each["file"],
                each["engine"],
                each["definition"],
                number(each["perplexity"], 4),
                number(each["stderr"], 4),
                number(each["word_perplexity"], 2),
                number(each["bits_per_byte"], 4),
                f"{each['tokens']:,}",
            ]
            for each in rows
        ],
        caption=(
            "llama.cpp/N: windows of N tokens that do not overlap, second halves scored (as llama-perplexity does)\n"
            "sliding/T: context T, stride T/2, every token scored once; word perplexity and bits per byte are its own\n"
            "the two are different quantities: compare only rows of one definition, and perplexities of one tokenizer"
        ),
    )


PLAIN_SECONDS = 30.0
"""Without a terminal, a line of progress at most this often."""


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Progress | None]:
    """A bar with the time left in a terminal, else a line now and then."""
    from rich.progress import Progress as Bar

    if not sys.stdout.isatty():
        yield plain_progress(name, total)
        return
    with Bar(transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda tokens: bar.advance(task, tokens)


def plain_progress(name: str, total: int) -> Progress:
    """Prints how far the scoring is and the minutes left, for logs."""
    started = last = perf_counter()
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done, last
        done += tokens
        now = perf_counter()
        if now - last >= PLAIN_SECONDS:
            last = now
            left = (now - started) / done * (total - done)
            print(f"{name}: {done:,} of {total:,} tokens, {left / 60:.1f} min left", flush=True)

    return advance
