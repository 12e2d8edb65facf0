"""What the routes share: the parts of studio, bodies, answers, and a person's words as words of a command.

Tested in tests/studio/test_app.py.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slm import runs
from slm.data.errors import UserError
from slm.durations import seconds_of
from slm.hub.name import hub_name
from slm.report import finite
from slm.studio import uploads
from slm.studio.config import StudioConfig
from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue
from slm.studio.places import Places
from slm.studio.serving import Servers

BODY_BYTES = 16 << 20
"""Most bytes of a request, except uploads."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
KEEP_ALIVE_S = 15.0
"""Seconds after which a quiet stream says that it is still there."""
END = b"event: end\ndata: {}\n\n"


@dataclass(frozen=True)
class Studio:
    """The parts that routes use."""

    config: StudioConfig
    places: Places
    queue: Queue
    servers: Servers


def studio(request: Request) -> Studio:
    """The studio of a request."""
    found: Studio = request.app.state.studio
    return found


async def body(request: Request) -> dict[str, Any]:
    """The JSON object of a request. UserError for anything else."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY_BYTES:
            raise UserError("the request is too large")
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        raise UserError("the request is no JSON") from None
    if not isinstance(found, dict):
        raise UserError("the request is no JSON object")
    return found


def text(values: dict[str, Any], key: str) -> str:
    """A text of the request. UserError where there is none."""
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{key} is missing")
    return value.strip()


def answer(value: Any = None) -> Response:
    """JSON without NaN."""
    return Response(_json({} if value is None else value), media_type="application/json")


def problem(line: str, status: int = 400) -> Response:
    """What is wrong, in one line."""
    return Response(_json({"error": line}), status, media_type="application/json")


def _json(value: Any) -> bytes:
    """A name on the disk may be no UTF-8, and a text may hold half a character: a ``?`` stands for those."""
    return json.dumps(finite(value), ensure_ascii=False).encode("utf-8", "replace")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of ``work``, which is cancelled where nobody waits for it any more."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=0.5))[0]:
            if await request.is_disconnected():
                raise UserError("nobody waits for this any more")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def events(source: AsyncIterator[Any]) -> StreamingResponse:
    """Server-sent events, one for each value; a UserError is the last one, as ``{"error": line}``."""

    async def stream() -> AsyncIterator[bytes]:
        following = asyncio.ensure_future(anext(source))
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=KEEP_ALIVE_S)
                if not done:
                    yield b": still here\n\n"
                    continue
                try:
                    value = following.result()
                except StopAsyncIteration:
                    yield END
                    return
                except UserError as error:
                    yield b"data: " + _json({"error": str(error)}) + b"\n\n" + END
                    return
                yield b"data: " + _json(value) + b"\n\n"
                following = asyncio.ensure_future(anext(source))
        finally:
            following.cancel()
            await asyncio.wait({following})
            await source.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def sources(places: Places, values: dict[str, Any]) -> list[Path]:
    """The files and folders of a request: uploads by their id, and paths. UserError where there are none."""
    given = values.get("sources")
    found: list[Path] = []
    for each in given if isinstance(given, list) else []:
        if isinstance(each, dict) and isinstance(each.get("upload"), str):
            folder = uploads.folder(places, each["upload"])
            if not folder.is_dir():
                raise UserError("the uploaded files are not there any more: drop them again")
            found.append(folder)
        elif isinstance(each, dict) and isinstance(each.get("path"), str):
            found.append(places.path(each["path"]))
    if not found:
        raise UserError("no text is chosen: drop files, or give the path of a file or a folder")
    return found


def files_word(places: Places, paths: list[Path]) -> str:
    """The word ``data.files=[...]``, whatever characters the paths have."""
    # Backslashes stand for themselves, unless a quotation mark follows, or what would name another option.
    escaped = [re.sub(r"(\\*)('|\Z)", _escaped, places.shown(path)).replace("${", "\\${") for path in paths]
    quoted = [f"'{each}'" for each in escaped]
    return f"data.files=[{','.join(quoted)}]"


def _escaped(found: re.Match[str]) -> str:
    return 2 * found[1] + ("\\'" if found[2] else "")


def new_name(studio: Studio, values: dict[str, Any]) -> str:
    """The name of a new run. UserError for one that cannot be, or is taken: the command would go on with that run."""
    name = text(values, "name")
    if not NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} cannot be a name: letters, digits and . _ - , a letter or digit first")
    # The name of a job that failed before it made its folder is free: the person mends what was wrong and tries again.
    taken = {job.run for job, folder in studio.queue.all() if jobs.state(folder) in ("waiting", "running")}
    root = studio.places.runs / name
    if root.exists() or f"runs/{name}" in taken:
        raise UserError(f"runs/{name} exists already: choose another name, or continue that run")
    if (teacher := runs.teacher_folder(root)).exists():
        raise UserError(f"runs/{teacher.name} exists already, and would teach this run: choose another name")
    return name


def model(places: Places, word: str) -> str:
    """The model that a command is to take: a path that studio may read, or a name on the Hub."""
    if hub_name(word) is not None:
        return word
    return places.shown(places.path(word))


def seconds(values: dict[str, Any]) -> int | None:
    """The time of a request in whole seconds, given as a person types it (``30m``); None where it has none."""
    if values.get("time") in (None, ""):
        return None
    return max(1, round(seconds_of(text(values, "time").replace(" ", ""), "time")))
