"""The queue: its jobs as they change, and what can be done with each.

Tested in tests/studio/test_app.py.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slm.data.errors import UserError
from slm.studio import run_files
from slm.studio.jobs import job as jobs
from slm.studio.jobs.job import Job
from slm.studio.places import Places
from slm.studio.routes.base import Studio, answer, body, events, seconds, studio

EVERY_S = 1.0
"""Seconds between two readings of the queue."""
LINE_BYTES = 16 << 10
"""The end of a log that is read for its last line, every second."""
LOG_BYTES = 256 << 10
"""The most of a log that is sent at once."""


def view(places: Places, job: Job, folder: Path) -> dict[str, Any]:
    """A job as the page shows it."""
    state = jobs.state(folder)
    began, ended = jobs.facts(folder / jobs.BEGAN), jobs.facts(folder / jobs.ENDED)
    found: dict[str, Any] = {
        "id": job.id,
        "kind": job.kind,
        "title": job.title,
        "run": job.run,
        "state": state,
        "created": job.created,
        "began": began.get("at"),
        "ended": ended.get("at"),
        "command": shlex.join(["slm", *job.words]),
        "form": job.form,
    }
    if state == "running":
        if job.run and job.kind in ("train", "tune"):
            found["progress"] = run_files.progress(places.root / job.run, began.get("at", 0.0))
        found["line"] = jobs.last_line(jobs.tail(folder, LINE_BYTES))[:300]
    elif state in ("failed", "gone"):
        found["error"] = jobs.error_line(jobs.tail(folder), ended.get("status"), ended.get("free"))
    elif state == "done":
        found["result"] = jobs.final_json(jobs.tail(folder))
    return found


class _Views:
    """The views of all jobs; of one that has ended made once."""

    def __init__(self, found: Studio) -> None:
        self._studio = found
        self._ended: dict[str, dict[str, Any]] = {}

    def all(self) -> list[dict[str, Any]]:
        shown, held = [], self._studio.queue.waits_for()
        for job, folder in self._studio.queue.all():
            made = self._ended.get(job.id) or view(self._studio.places, job, folder)
            if made["state"] not in ("waiting", "running"):
                self._ended[job.id] = made
            elif made["state"] == "waiting" and held:
                made["error"] = held
            shown.append(made)
        return shown


async def follow(request: Request) -> Response:
    """The whole queue, whenever something in it has changed."""
    found = studio(request)

    async def states() -> AsyncIterator[Any]:
        views, before = _Views(found), None
        while True:
            now = await asyncio.to_thread(views.all)
            if now != before:
                yield {"jobs": now}
                before = now
            await asyncio.sleep(EVERY_S)

    return events(states())


async def stop(request: Request) -> Response:
    """Stop a job as Ctrl-C does, or remove it where it waits."""
    studio(request).queue.stop(request.path_params["id"])
    return answer()


async def again(request: Request) -> Response:
    """Go on with a job, with more time where ``time`` says so."""
    found = studio(request)
    id = request.path_params["id"]
    words = None
    if (time := seconds(await body(request))) is not None:
        old = jobs.read(found.queue.folder_of(id))
        assert old is not None
        words = [_timed(word, time) for word in old.words]
        if words == old.words:
            raise UserError("this job has no time limit: it ends when its work is done")
    job = await asyncio.to_thread(found.queue.again, id, words)
    return answer({"id": job.id})


def _timed(word: str, time: int) -> str:
    name = word.partition("=")[0]
    return {"budget": f"budget={time}s", "train.max_minutes": f"train.max_minutes={time / 60:.4g}"}.get(name, word)


async def move(request: Request) -> Response:
    """Put a waiting job before another, or at the end."""
    before = (await body(request)).get("before")
    studio(request).queue.move(request.path_params["id"], before if isinstance(before, str) else None)
    return answer()


async def forget(request: Request) -> Response:
    """Remove an ended job from the list."""
    studio(request).queue.forget(request.path_params["id"])
    return answer()


async def log(request: Request) -> Response:
    """A part of a job's log, from a byte on; where it goes on."""
    path = studio(request).queue.folder_of(request.path_params["id"]) / jobs.LOG
    try:
        begin = int(request.query_params.get("from", "-1"))
    except ValueError:
        raise UserError("from is a number of bytes") from None
    if not path.is_file():
        return answer({"text": "", "next": 0})
    with path.open("rb") as file:
        end = file.seek(0, 2)
        begin = max(0, end - LOG_BYTES) if begin < 0 or begin > end else begin
        file.seek(begin)
        content = file.read(LOG_BYTES)
    return answer({"text": content.decode("utf-8", errors="replace"), "next": begin + len(content)})


ROUTES = [
    Route("/api/jobs/events", follow),
    Route("/api/jobs/{id}/stop", stop, methods=["POST"]),
    Route("/api/jobs/{id}/again", again, methods=["POST"]),
    Route("/api/jobs/{id}/move", move, methods=["POST"]),
    Route("/api/jobs/{id}/forget", forget, methods=["POST"]),
    Route("/api/jobs/{id}/log", log),
]
