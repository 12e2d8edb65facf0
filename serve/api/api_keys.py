"""API keys: requests without a valid one, as a bearer token or in ``x-api-key``, are refused."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from slm.serve.api.access_log import record_of
from slm.serve.api.errors import ApiError
from slm.serve.keys import Key


class RequireKey:
    """ASGI middleware: 401 unless the bearer token, or ``x-api-key``, is one of ``keys``, or ``is_open`` is true for
    the path. ``respond`` makes the response of an error.

    The request's access-log record gets the number of the key, counted from 1 (0 is none of them), and its name.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[Key],
        is_open: Callable[[str], bool],
        respond: Callable[[Scope, ApiError], Response],
    ) -> None:
        self._app, self._is_open, self._respond = app, is_open, respond
        self._keys = [_spellings(key.secret) for key in keys]
        self._names = [key.name or None for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            record = record_of(scope)
            record.key = self._key_number(scope)
            record.key_name = self._names[record.key - 1] if record.key else None
            if not record.key and not self._is_open(scope["path"]):
                message = "A key is needed: send it as `Authorization: Bearer KEY` (or `x-api-key: KEY`)."
                record.error = "invalid_api_key"
                error = ApiError(401, message, code=record.error, headers={"WWW-Authenticate": "Bearer"})
                await self._respond(scope, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _key_number(self, scope: Scope) -> int:
        headers = dict(scope["headers"])
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            key = headers.get(b"x-api-key", b"")
        # Every key is compared, each in constant time, so that the time reveals nothing about them.
        given = key.strip()
        equal = [sum(hmac.compare_digest(given, each) for each in spellings) > 0 for spellings in self._keys]
        return equal.index(True) + 1 if given and any(equal) else 0


def _spellings(key: str) -> list[bytes]:
    """A key as programs send it: an umlaut comes in UTF-8, and from a browser in Latin-1."""
    try:
        return [key.encode(), key.encode("latin-1")]
    except UnicodeEncodeError:
        return [key.encode()]
