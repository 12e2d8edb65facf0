"""What a server without a key asks of requests, so that web pages which somebody visits cannot use it.

A page's script can reach servers of this machine. DNS rebinding makes it the server's own page: the attacker's name
leads to 127.0.0.1, and the request's ``Host`` shows it. A form, or a ``text/plain`` request, needs no permission of the
server at all; one of ``application/json`` does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from slm.serve.api.access_log import record_of
from slm.serve.api.errors import ApiError

_OPEN = ("/health", "/v1/health")
"""Tell nothing, and load balancers ask for it under names of theirs."""
_OF_PROGRAMS = ("", "application/x-www-form-urlencoded")
"""Content types that curl sends unless told otherwise. A browser names the page's origin with them."""


class BrowserGuard:
    """ASGI middleware: 403 for a ``Host`` that is no name of this machine, 415 for a body that any page may send.

    ``hosts``: names that are right besides localhost and addresses; ``*``: all. ``respond`` makes the response of an
    error.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], respond: Callable[[Scope, ApiError], Response]) -> None:
        self._app, self._respond = app, respond
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error(scope) if scope["type"] == "http" and scope["path"] not in _OPEN else None
        if error is None:
            await self._app(scope, receive, send)
            return
        record_of(scope).error = error.body["error"]["code"]
        await self._respond(scope, error)(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host")
        # Only programs leave it out (HTTP/1.0).
        if host is not None and not self._is_ours(host):
            message = (
                f"This server takes no key, so it does not answer under the name {host[:100]!r}. Use localhost or an "
                "address, start it with serve.hosts=[NAME], or set a key (serve.api_keys)."
            )
            return ApiError(403, message, code="host_not_allowed")
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json" or kind.endswith("+json"):
            return None
        if kind in _OF_PROGRAMS and "origin" not in headers and "sec-fetch-site" not in headers:
            return None
        message = (
            f"The body's type is {kind[:100] or 'not given'}; send it as `Content-Type: application/json`. (This "
            "server takes no key, and any web page may send other types.)"
        )
        return ApiError(415, message, code="unsupported_media_type")

    def _is_ours(self, host: str) -> bool:
        name = host.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0].removesuffix(".")
        if name == "localhost" or name.endswith(".localhost") or {name, "*"} & self._hosts:
            return True
        try:
            ipaddress.ip_address(name)  # an address cannot be made to lead elsewhere
        except ValueError:
            return False
        return True
