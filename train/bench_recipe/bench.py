"""``make bench-recipe``: who has the better model after the same time, set-up included.

Every contender has its own process, one after the other, with empty caches. All are scored alike: all of the text,
each document after the token that starts one, contiguous windows of the model's own tokens, all nats over all bytes.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from slm.configuration import load
from slm.data.errors import UserError
from slm.early_interrupt import EXIT_INTERRUPTED
from slm.evaluate.perplexity import bits_per_byte, contiguous_plan
from slm.evaluate.progress import progress_bar
from slm.evaluate.scorers import checkpoint_scorer
from slm.machine.busy import Others, mark
from slm.machine.record import machine_record
from slm.report import duration, final_json, table
from slm.train.bench_recipe.config import FINISHED, BenchRecipeConfig
from slm.train.bench_recipe.contender import (
    Entry,
    StoppedContenderError,
    append_finished,
    read_finished,
    step_note,
    steps_of,
)
from slm.train.bench_recipe.hf_trainer import available, hf_trainer
from slm.train.bench_recipe.nanochat import nanochat, python_of, score_nanochat, ways_note
from slm.train.bench_recipe.ours import NAME as OURS
from slm.train.bench_recipe.ours import chosen, ours
from slm.train.bench_recipe.texts import check_unread, documents_of, validation_documents, write_documents
from slm.train.resolve import AUTO, given_value


def score(model: Path, documents: Sequence[str], window: int, name: str = "scoring") -> float:
    """All nats over all UTF-8 bytes of ``documents``, each after the token that starts one, in bits. ``name``: in the
    lines that tell how far it is."""
    scorer = checkpoint_scorer(model)
    stream, windows = contiguous_plan(scorer, [scorer.tokenize(each) for each in documents], window)
    with progress_bar(name, sum(each.stop - each.start for each in windows)) as progress:
        nats = float(scorer.nll(windows, stream, progress).sum())
    return bits_per_byte(nats, sum(len(each.encode()) for each in documents))


NOT_TRAININGS = ("minutes", "budget", "name", "runs_dir", "resume")


def main(argv: list[str]) -> int:
    """Train everybody, score everybody, print the table and the JSON line. Returns the exit code.

    A contender other than ours that fails is left out and named; the exit code is then 1. Ctrl-C stops a contender,
    which saves; ``bench.resume`` goes on there.
    """
    automatic = given_value(argv, "preset") == AUTO
    config = load(BenchRecipeConfig, "bench_recipe", [word for word in argv if word != f"preset={AUTO}"])
    if config.data.has_chat:
        raise UserError("bench-recipe compares models of text: conversations are not for it")
    folder = config.bench.resume or Path(os.path.expanduser(config.runs_dir)) / "bench-recipe" / time.strftime(
        "%Y%m%d-%H%M%S"
    )
    texts = [validation_documents(config)]
    if config.bench.second_text is not None:
        name = config.bench.second_text.name
        name = str(config.bench.second_text) if name == texts[0][0] else name
        texts.append((name, documents_of(config.bench.second_text)))
    print(check_unread(config, texts), flush=True)
    folder = folder.absolute()
    if not config.bench.resume:
        folder.mkdir(parents=True)
        (folder / FINISHED).touch()
    plan = _plan(config, argv, automatic, folder)
    finished = read_finished(folder / FINISHED)
    waiting = [name for name, _ in plan if name not in finished]
    total = 60 * config.minutes * len(waiting)
    print(
        f"{folder}: {len(waiting)} runs of {config.minutes:g} minutes, about {duration(1.1 * total)} in all", flush=True
    )
    others = Others()
    entries: list[Entry] = []
    failed: dict[str, str] = {}
    for index, (name, train) in enumerate(plan, start=1):
        print(f"[{index}/{len(plan)}] {name} ...", flush=True)
        try:
            done = finished.get(name) or train(config)
        except StoppedContenderError:
            return _stopped(folder)
        except UserError as error:
            if name == OURS:
                raise
            failed[name] = str(error)
            print(f"  left out: {error}", flush=True)
            continue
        entries.append(done)
        if name not in finished:
            append_finished(folder / FINISHED, name, done)
        if automatic and name == OURS:
            config = chosen(config, folder)
        print(f"  {done.tokens:,} tokens in {duration(done.seconds)} ({done.note})", flush=True)
    files = [write_documents(folder / f"text-{index}.jsonl", text) for index, (_, text) in enumerate(texts)]
    rows = []
    for entry in entries:
        scores = {}
        try:
            for (title, documents), file in zip(texts, files, strict=True):
                if entry.name == "nanochat":
                    scores[title] = score_nanochat(config, entry.model, file)
                else:
                    name = f"scoring {entry.name} on {title}"
                    scores[title] = score(entry.model, documents, config.bench.window, name)
        except StoppedContenderError:
            return _stopped(folder)
        except UserError as error:
            if entry.name == OURS:
                raise
            failed[f"{entry.name}, {entry.note}"] = str(error)
            print(f"  {entry.name} ({entry.note}) is left out: {error}", flush=True)
            continue
        rows.append({"name": entry.name, **entry.record(), "bits_per_byte": scores})
    busy = others.share()
    show(config, rows, [title for title, _ in texts], mark(busy))
    final_json(
        {
            "others_share": busy,
            "minutes": config.minutes,
            "preset": config.preset,
            "folder": str(folder),
            "window": config.bench.window,
            "texts": {title: sum(len(each.encode()) for each in documents) for title, documents in texts},
            "best": {row["name"]: row for row in reversed(best_first(rows))},
            "runs": rows,
            "failed": failed,
            "machine": machine_record(),
        }
    )
    return 1 if failed else 0


def _stopped(folder: Path) -> int:
    """Say how a comparison that a signal stopped goes on. Returns the exit code."""
    print(f"stopped; the same command with bench.resume={folder} goes on", flush=True)
    return EXIT_INTERRUPTED


def _plan(
    config: BenchRecipeConfig, argv: list[str], automatic: bool, folder: Path
) -> list[tuple[str, Callable[[BenchRecipeConfig], Entry]]]:
    """Everybody's runs, by name, in their order: ours first, since it may choose the shape for all."""
    mine = (*NOT_TRAININGS, "bench")
    words = [word for word in argv if word.partition("=")[0].split(".")[0] not in mine]
    words = [f"preset={AUTO if automatic else config.preset}", *(word for word in words if word != f"preset={AUTO}")]
    plan: list[tuple[str, Callable[[BenchRecipeConfig], Entry]]] = [(OURS, partial(ours, words=words, folder=folder))]
    if "hf_trainer" in config.bench.baselines:
        if reason := available():
            print(f"hf_trainer is left out: {reason}", flush=True)
        else:
            for lr, tokens in product(config.bench.learning_rates, steps_of(config.bench.trainer_tokens)):
                name = f"hf_trainer at {lr:g}{step_note(tokens)}"
                plan.append((name, partial(hf_trainer, lr=lr, tokens=tokens, folder=folder)))
    if config.bench.nanochat is not None:
        python_of(config)
        steps = steps_of(config.bench.nanochat_tokens)
        for depth, factor, tokens in product(config.bench.nanochat_depths, config.bench.nanochat_lr_factors, steps):
            name = f"nanochat depth {depth}{ways_note(factor, tokens)}"
            plan.append((name, partial(nanochat, depth=depth, factor=factor, tokens=tokens, folder=folder)))
    return plan


def best_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by bits per byte of the first text."""
    return sorted(rows, key=lambda row: next(iter(row["bits_per_byte"].values())))


def show(config: BenchRecipeConfig, rows: list[dict[str, Any]], titles: list[str], busy: str = "") -> None:
    """Print the table, best first, and how far ours is from the best of each other one. ``busy``: the title's mark of a
    busy machine."""
    ordered = best_first(rows)
    table(
        f"{config.preset}, {config.minutes:g} minutes from the start of a process{busy}",
        ["", "run", *(f"bits per byte, {title}" for title in titles), "tokens", "tokens/s", "seconds"],
        [
            [
                row["name"],
                row["note"],
                *(f"{row['bits_per_byte'][title]:.4f}" for title in titles),
                f"{row['tokens']:,}",
                f"{row['tokens_per_s'] or 0:,.0f}",
                f"{row['seconds']:.1f}",
            ]
            for row in ordered
        ],
        key=2,
        chosen=[0],
        caption=(
            f"bits per byte: all of the text, contiguous windows of {config.bench.window} of the model's own tokens, "
            "all nats over all UTF-8 bytes;\ntokens/s: of training; seconds: from the start of a process to its end, "
            "set-up of kernels and tokenizer included"
        ),
    )
    mine = next(row for row in ordered if row["name"] == OURS)["bits_per_byte"][titles[0]]
    for name in dict.fromkeys(row["name"] for row in ordered):
        if name != OURS:
            theirs = next(row for row in ordered if row["name"] == name)["bits_per_byte"][titles[0]]
            print(f"ours is {mine / theirs - 1:+.1%} bits per byte against the best of {name}")
