"""A path prefix behind a proxy: requests with it and without it are answered alike.

Tested in tests/serve/api/test_root_path.py.
"""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class WithoutPrefix:
    """ASGI middleware: takes ``prefix`` off every path that begins with it. Some proxies take it off themselves."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == self._prefix:
            # The page's links are relative to its folder.
            await RedirectResponse(self._prefix + "/")(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"].startswith(self._prefix + "/"):
            scope = {**scope, "path": scope["path"][len(self._prefix) :]}
        await self._app(scope, receive, send)
