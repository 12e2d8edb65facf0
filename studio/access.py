"""Who may open the page: whoever has the token of the printed address, or the password.

A page of another site cannot use the browser's cookie: it is sent to this site only (``SameSite=Strict``), the ``Host``
must be one of ours (a foreign name that leads here is refused), and whatever changes something must come from our own
``Origin``.
"""

import asyncio
import os
import secrets
from pathlib import Path
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from slm.studio.config import StudioConfig

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
AFTER_A_WRONG_PASSWORD_S = 1.0
YEAR_S = 365 * 86400
OPEN = ("/login", "/web/login.css", "/web/colors.css", "/web/icon.svg")
"""What needs no token."""


def token_of(folder: Path) -> str:
    """The workspace's token. It is kept, so that an open page goes on when studio was started again."""
    path = folder / "token"
    try:
        found = path.read_text(encoding="ascii").strip()
        if len(found) >= 32 and path.stat().st_mode & 0o077 == 0:
            return found
    except (OSError, ValueError):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    made = secrets.token_urlsafe(32)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(made)
    return made


class Access:
    """Lets a request through to ``app``, or answers it."""

    def __init__(self, app: ASGIApp, *, config: StudioConfig, token: str, port: int) -> None:
        self.app, self._config, self._token = app, config, token
        self._cookie = f"slm_studio_{port}"
        """Cookies of all ports of a host are sent to each of them."""
        self._hosts = {f"{name}:{port}" for name in LOCAL_NAMES} if config.is_local else None
        self._guessing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The application's own start and end pass; there are no other kinds of requests.
        answer = await self._answer(Request(scope, receive)) if scope["type"] == "http" else None
        await (answer or self.app)(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """The answer to a request that goes no further; None for one that may."""
        headers = Headers(scope=request.scope)
        host = headers.get("host", "")
        if self._hosts is not None and host not in self._hosts:
            return _refused(403, f"studio is not called {host[:80]}: open the address that it printed")
        origin = headers.get("origin")
        if request.method not in ("GET", "HEAD") and origin is not None and origin != f"{request.url.scheme}://{host}":
            return _refused(403, "this request comes from another site")
        if request.method not in ("GET", "HEAD") and headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
            return _refused(403, "this request comes from another site")
        if request.url.path == "/" and "token" in request.query_params:
            return self._entered(request.query_params["token"])
        if request.url.path == "/login" and request.method == "POST":
            return await self._login(request)
        if request.url.path in OPEN or self._is_token(request.cookies.get(self._cookie, "")):
            return None
        if request.url.path == "/":
            return RedirectResponse("/login", status_code=303)
        return _refused(401, "open the address that studio printed when it started")

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())

    def _entered(self, token: str) -> Response:
        if not self._is_token(token):
            return RedirectResponse("/login?" + urlencode({"wrong": 1}), status_code=303)
        answer = RedirectResponse("/", status_code=303)  # the token leaves the address, and the history
        answer.set_cookie(
            self._cookie, self._token, max_age=YEAR_S, httponly=True, samesite="strict", secure=False, path="/"
        )
        return answer

    async def _login(self, request: Request) -> Response:
        typed = parse_qs((await request.body())[:4096].decode("utf-8", errors="replace")).get("password", [""])[0]
        right = self._config.password or ""
        async with self._guessing:  # one guess at a time, however many ask
            if self._is_token(typed) or (right and secrets.compare_digest(typed.encode(), right.encode())):
                return self._entered(self._token)
            await asyncio.sleep(AFTER_A_WRONG_PASSWORD_S)
        return RedirectResponse("/login?" + urlencode({"wrong": 1}), status_code=303)


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)
