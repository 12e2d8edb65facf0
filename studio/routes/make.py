"""New models: uploads, a look at the text, the plan, and the commands that train, tune and export.

Tested in tests/studio/test_app.py.
"""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slm import runs
from slm.configuration import quoted
from slm.data.errors import UserError
from slm.studio import run_files, uploads
from slm.studio.asking import ask
from slm.studio.jobs import job as jobs
from slm.studio.routes.base import (
    Studio,
    answer,
    body,
    files_word,
    model,
    new_name,
    seconds,
    sources,
    studio,
    text,
    unless_gone,
)

LOOKED_DOCS, LOOKED_CHATS = 20_000, 5_000
"""The most documents and conversations of which tokens are counted for the first look."""
LOOKED_MB, TOKENIZER_MB = 16, 4
"""The most megabytes of that, and for the tokenizer, so that a file of 2 GB takes no longer."""
TYPES = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "iq4_xs", "q3_k_m", "q2_k")
"""What is compared in quality, size and speed."""
FORM = ("sources", "dedup", "mask_personal", "name", "time", "base", "lora", "aside", "model", "goal", "number")
"""What is kept of a form."""
SEARCHED_MB = 100
"""The most megabytes of files that are searched for near duplicates while a person waits."""
TIMES = ("2m", "5m", "10m", "20m", "1h", "2h", "4h", "8h", "1d", "3d")
"""The points of the dial."""
GOALS = {"smallest": "auto:4%", "balanced": "q4_k_m", "best": "q8_0"}
"""What export makes for a goal without a number."""
LORA_RANK = 16
BOOKS = Path(__file__).parents[1] / "books.json"
"""What measured runs on books of Project Gutenberg wrote, with their bits per byte (docs/results/studio.md)."""
ASIDE = 0.1
"""The share of conversations that is held out where a person asks for it."""


async def new_upload(request: Request) -> Response:
    """A folder for files that are dropped."""
    return answer({"id": uploads.new(studio(request).places)})


async def upload(request: Request) -> Response:
    """One file of an upload."""
    found = studio(request)
    length = request.headers.get("content-length", "")
    written = await uploads.save(
        found.places,
        request.path_params["id"],
        request.query_params.get("name", ""),
        int(length) if length.isdigit() else None,
        request.stream(),
        round(found.config.upload_gb * 1e9),
    )
    return answer({"bytes": written})


def _text_words(found: Studio, values: dict[str, Any], *, duplicates: bool = True) -> list[str]:
    words = ["data=local", files_word(found.places, sources(found.places, values))]
    if values.get("dedup") and duplicates:
        words.append("data.dedup=near")
    if values.get("mask_personal"):
        words.append("data.mask_personal=true")
    return words


def _searched(paths: list[Path]) -> bool:
    """Whether a person can wait until all of a text is searched for duplicates."""
    total = 0
    for path in paths:
        for each in path.rglob("*") if path.is_dir() else [path]:
            with contextlib.suppress(OSError):  # it may just go, or be closed to us: the command says so
                total += each.stat().st_size
            if total > SEARCHED_MB * 1e6:
                return False
    return True


async def look(request: Request) -> Response:
    """What ``slm data-stats`` says of a text, or of conversations."""
    found, values, later = studio(request), await body(request), False
    most = LOOKED_CHATS if values.get("chat") else LOOKED_DOCS
    words = ["data-stats", f"stats.max_docs={most}", f"stats.max_mb={LOOKED_MB}", "stats.plot="]
    words.append(f"tokenizer.sample_bytes={TOKENIZER_MB}000000")
    if values.get("chat"):
        # All are counted here; what tuning puts aside of that number is part of the answer.
        words += ["data=chat", files_word(found.places, sources(found.places, values)), "data.val_fraction=0"]
    else:
        searched = await asyncio.to_thread(_searched, sources(found.places, values))
        words += _text_words(found, values, duplicates=searched)
        later = bool(values.get("dedup")) and not searched
    seen = await unless_gone(request, ask(words, found.places.root))
    return answer({**seen, "later": later})


async def plan(request: Request) -> Response:
    """What ``slm plan`` says of every time on the dial."""
    found, values = studio(request), await body(request)
    price = values.get("price")
    words = ["plan", "preset=auto", "budget=1h", "plan.plot=", f"plan.times=[{','.join(TIMES)}]"]
    if isinstance(price, int | float) and not isinstance(price, bool) and price >= 0:
        words.append(f"plan.price_per_hour={price:g}")
    searched = await asyncio.to_thread(_searched, sources(found.places, values))
    words += _text_words(found, values, duplicates=searched)
    return answer(await unless_gone(request, ask(words, found.places.root)))


async def samples(request: Request) -> Response:
    """What a text of a quality reads like, by bits per byte: what runs of this machine wrote, and for a person without
    runs what a measured run on English books wrote (``books``)."""
    runs = studio(request).places.runs
    own, books = await asyncio.to_thread(_samples, runs), json.loads(BOOKS.read_text(encoding="utf-8"))
    return answer({"samples": own, "books": books})


def _samples(runs: Path) -> list[dict[str, Any]]:
    roots = [each.parent for each in runs.glob("[!.]*/samples.md") if not each.parent.is_symlink()]
    return [{"run": root.name, **each} for root in roots for each in run_files.samples(root)]


async def train(request: Request) -> Response:
    """Put a training in the queue."""
    found, values = studio(request), await body(request)
    name, time = new_name(found, values), seconds(values)
    if time is None:
        raise UserError("choose the time of the training")
    words = ["train", "preset=auto", f"budget={time}s", f"name={name}", *_text_words(found, values)]
    return await _queued(found, "train", name, words, f"runs/{name}", values)


async def tune(request: Request) -> Response:
    """Put a tuning in the queue."""
    found, values = studio(request), await body(request)
    base, name, time = model(found.places, text(values, "base")), new_name(found, values), seconds(values)
    words = ["tune", f"base={base}", f"name={name}", "data=chat"]
    words.append(files_word(found.places, sources(found.places, values)))
    if values.get("lora"):
        words.append(f"tune.lora={LORA_RANK}")
    if values.get("aside"):
        words.append(f"data.val_fraction={ASIDE}")
    if time is not None:
        words.append(f"train.max_minutes={time / 60:.4g}")
    return await _queued(found, "tune", name, words, f"runs/{name}", values)


async def go_on(request: Request) -> Response:
    """Put a run's further training in the queue, however it was begun; until ``time`` in all where there is one."""
    found, values = studio(request), await body(request)
    root, time = found.places.path(text(values, "run")), seconds(values)
    run = found.places.shown(root)
    runs.continued_config(root)
    of_run = [jobs.state(folder) for job, folder in found.queue.all() if job.run == run]
    if "running" in of_run or "waiting" in of_run:
        raise UserError(f"{run} is in the queue already")
    words = ["train", f"resume={quoted(run)}", *([f"budget={time}s"] if time is not None else [])]
    job = await asyncio.to_thread(found.queue.add, "train", root.name, words, run)
    return answer({"id": job.id})


async def export(request: Request) -> Response:
    """Put an export in the queue."""
    found, values = studio(request), await body(request)
    source = model(found.places, text(values, "model"))
    words = ["export", f"run={source}", f"quant={_quant(values)}"]
    return await _queued(found, "export", f"{source}: {_quant(values)}", words, source, values)


async def types(request: Request) -> Response:
    """Put a comparison of the types in the queue: their quality, size and speed on this machine."""
    found, values = studio(request), await body(request)
    source = model(found.places, text(values, "model"))
    words = ["bench-quant", f"run={source}", f"quant=[{','.join(TYPES)}]", "plain_below=0"]
    return await _queued(found, "types", f"{source}: types", words, source, values)


def _quant(values: dict[str, Any]) -> str:
    """The type or the goal of an export, as ``quant=`` takes it."""
    goal, number = values.get("goal"), values.get("number")
    if goal in GOALS:
        return GOALS[goal]
    if not isinstance(number, int | float) or isinstance(number, bool) or not number > 0:
        raise UserError("give the number of the goal: megabytes, or tokens a second")
    if goal == "size":
        return f"auto:{number:g}MB"
    if goal == "speed":
        return f"auto:{number:g}tok/s"
    raise UserError("choose what the file is to be: smallest, balanced, best, a size or a speed")


async def _queued(found: Studio, kind: str, title: str, words: list[str], run: str, values: dict[str, Any]) -> Response:
    form = {key: values[key] for key in FORM if key in values}
    job = await asyncio.to_thread(found.queue.add, kind, title, words, run, form)
    return answer({"id": job.id})


ROUTES = [
    Route("/api/uploads", new_upload, methods=["POST"]),
    Route("/api/uploads/{id}", upload, methods=["PUT"]),
    Route("/api/look", look, methods=["POST"]),
    Route("/api/plan", plan, methods=["POST"]),
    Route("/api/samples", samples),
    Route("/api/train", train, methods=["POST"]),
    Route("/api/tune", tune, methods=["POST"]),
    Route("/api/continue", go_on, methods=["POST"]),
    Route("/api/export", export, methods=["POST"]),
    Route("/api/types", types, methods=["POST"]),
]
