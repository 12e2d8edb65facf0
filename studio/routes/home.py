"""The first page: models, folders, the trash, the disk.

Tested in tests/studio/test_app.py.
"""

import asyncio
import shutil
import sys
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from slm import runs
from slm.data.errors import UserError
from slm.studio import trash
from slm.studio.jobs import job as jobs
from slm.studio.models import models
from slm.studio.places import Places
from slm.studio.routes.base import answer, body, studio, text


async def home(request: Request) -> Response:
    """All models and folders."""
    places = studio(request).places
    return answer(await asyncio.to_thread(_home, places))


def _home(places: Places) -> dict[str, object]:
    return {
        "models": models(places),
        "folders": [{"path": str(each), "added": each in places.added} for each in places.folders],
        "may_add": places.may_add,
        "known": places.known() if places.may_add else [],
        "trash": trash.listed(places),
        "root": str(places.root),
        "disk": {"free": shutil.disk_usage(places.root).free},
        "python": sys.executable,
    }


async def add_folder(request: Request) -> Response:
    """Give studio another folder."""
    places = studio(request).places
    places.add(text(await body(request), "path"))
    return answer()


async def remove_folder(request: Request) -> Response:
    """Take a folder back."""
    studio(request).places.remove(text(await body(request), "path"))
    return answer()


async def delete(request: Request) -> Response:
    """Move a model to the trash."""
    found = studio(request)
    path = text(await body(request), "path")
    for job, folder in found.queue.all():
        own = [job.run, str(runs.teacher_folder(Path(job.run)))] if job.run else []
        if path in own and jobs.state(folder) == "running":
            raise UserError(f"{path} is being trained: stop it first")
    found.servers.unload_below(path)
    await asyncio.to_thread(trash.delete, found.places, path)
    return answer()


async def put_back(request: Request) -> Response:
    """Take something out of the trash."""
    trash.put_back(studio(request).places, text(await body(request), "id"))
    return answer()


async def empty_trash(request: Request) -> Response:
    """Remove for good what the trash holds."""
    await asyncio.to_thread(trash.empty, studio(request).places)
    return answer()


async def download(request: Request) -> Response:
    """A GGUF file, or the description of one for Ollama."""
    path = studio(request).places.path(request.query_params.get("path", ""))
    if not path.is_file() or (path.suffix != ".gguf" and path.name != "Modelfile"):
        raise UserError(f"{path.name} is no GGUF file: only those are downloaded here")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


async def report(request: Request) -> Response:
    """A run's report. It is a file that may have come from anywhere, so it runs as a page of nobody."""
    root = studio(request).places.path(request.query_params.get("run", ""))
    path = root / "report.html"
    if not path.is_file():
        raise UserError(f"{root.name} has no report yet")
    policy = {"Content-Security-Policy": "sandbox allow-scripts; frame-ancestors 'none'"}
    return FileResponse(path, media_type="text/html", headers=policy | {"X-Content-Type-Options": "nosniff"})


ROUTES = [
    Route("/api/home", home),
    Route("/api/folders/add", add_folder, methods=["POST"]),
    Route("/api/folders/remove", remove_folder, methods=["POST"]),
    Route("/api/models/delete", delete, methods=["POST"]),
    Route("/api/trash/back", put_back, methods=["POST"]),
    Route("/api/trash/empty", empty_trash, methods=["POST"]),
    Route("/api/download", download),
    Route("/api/report", report),
]
