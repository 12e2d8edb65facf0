"""One run, live: the lines of ``slm watch`` as server-sent events. Where a teacher is trained before, its lines first.

Tested in tests/studio/test_app.py.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slm import runs
from slm.studio.asking import lines
from slm.studio.routes.base import events, studio

EVERY_S = 2.0


async def follow(request: Request) -> Response:
    """The run's state, whenever there is more of it; the end of the stream is the end of the run."""
    places = studio(request).places
    named = request.query_params.get("run", "")

    async def states() -> AsyncIterator[Any]:
        # A browser reads no answer of a stream that is refused, so errors are events. Where a run is taught, the
        # teacher's folder comes first.
        teacher = runs.teacher_folder(places.root / named)
        taught = not (places.root / named).exists() and teacher.exists()
        found = places.path(str(teacher) if taught else named)
        run = places.shown(found.with_name(Path(named).name) if taught else found)
        async for line in lines(["watch", f"run={run}", "watch.json=true", f"watch.every_s={EVERY_S}"], places.root):
            yield json.loads(line)

    return events(states())


ROUTES = [Route("/api/run/events", follow)]
