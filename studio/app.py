"""The application: the page, its routes, and errors as one line."""

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from slm.data.errors import UserError, one_line
from slm.studio import uploads
from slm.studio.access import Access, token_of
from slm.studio.config import StudioConfig
from slm.studio.jobs.queue import Queue
from slm.studio.pages import page_routes
from slm.studio.places import Places
from slm.studio.routes import chat, home, make, queue, run
from slm.studio.routes.base import Studio, problem
from slm.studio.serving import Servers

_LOG = logging.getLogger(__name__)
EVERY_S = 10.0
"""Seconds between two looks at what waits and what is idle."""


def make_app(config: StudioConfig, root: Path, port: int) -> tuple[ASGIApp, str]:
    """The application over the workspace ``root``, and the token that opens it."""
    places = Places(root, [Path(each) for each in config.folders], may_add=config.is_local)
    studio = Studio(config, places, Queue(places.jobs), Servers(places))

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        studio.servers.end_leftovers()
        uploads.remove_unused(places, _options(places))
        keeping = asyncio.create_task(_keep(studio))
        try:
            yield
        finally:
            keeping.cancel()
            studio.servers.close()

    app = Starlette(
        routes=[*page_routes(), *home.ROUTES, *queue.ROUTES, *make.ROUTES, *run.ROUTES, *chat.ROUTES],
        exception_handlers={
            UserError: _user_error,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            OSError: _os_error,
            Exception: _defect,
        },
        lifespan=life,
    )
    app.state.studio = studio
    token = token_of(places.state)
    return Access(app, config=config, token=token, port=port), token


def _options(places: Places) -> str:
    """The options of all runs and jobs, those in the trash too: what was uploaded for them is in one of these."""
    files = [
        *places.runs.glob("*/config.yaml"),
        *places.trash.glob("*/it/config.yaml"),
        *places.jobs.glob("*/job.json"),
    ]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


async def _keep(studio: Studio) -> None:
    """Start what waits where a job's own process could not, and unload models that nobody uses."""
    while True:
        try:
            await asyncio.to_thread(studio.queue.start_next)
        except OSError as error:  # a folder that just went, say: the next look may find all in order
            _LOG.warning("the queue: %s", one_line(error))
        studio.servers.unload_idle()
        await asyncio.sleep(EVERY_S)


async def _user_error(_: Request, error: Exception) -> Response:
    return problem(one_line(error))


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.detail, error.status_code)


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _os_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if isinstance(error, PermissionError):
        line = (
            f"{error.filename or 'a file'} cannot be read or changed by the user who started studio: give it the right"
        )
        return problem(one_line(line))
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    return problem("the disk is full, so nothing was done: make room, then try again", 507)


async def _defect(_: Request, error: Exception) -> Response:
    # Starlette raises it again, so that the traceback is in the terminal.
    return problem("a defect of studio; its terminal has the details", 500)
