"""API keys: requests without a valid one, as a bearer token or in ``x-api-key``, are refused, and those beyond the
limits of a key: requests at a time, and requests and tokens in a minute."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from slm.serve.api.access_log import record_of
from slm.serve.api.errors import ApiError
from slm.serve.keys import Key, Limits


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


class KeyLimits:
    """ASGI middleware behind ``RequireKey``: 429 for what goes beyond the limits of the request's key.

    Requests that only read something (GET) are free. What a request costs in tokens is known at its end: the one
    that exceeds a minute's tokens is answered whole, and the next ones wait until its tokens are paid off.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[Key], respond: Callable[[Scope, ApiError], Response]) -> None:
        self._app, self._respond = app, respond
        self._accounts = [_Account(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not (number := record_of(scope).key):
            await self._app(scope, receive, send)
            return
        record, account = record_of(scope), self._accounts[number - 1]
        if (refusal := account.refusal(time.monotonic())) is not None:
            record.error = "rate_limit_exceeded"
            await self._respond(scope, refusal)(scope, receive, send)
            return
        account.running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            account.running -= 1
            account.tokens.take((record.prompt_tokens or 0) + (record.completion_tokens or 0), time.monotonic())


class _Bucket:
    """An amount that fills up to ``most`` within a minute; 0: without limit. It may be overdrawn."""

    def __init__(self, most: int) -> None:
        self._most, self._left, self._at = most, float(most), 0.0

    def take(self, n: float, now: float) -> None:
        self._fill(now)
        self._left -= n

    def wait_s(self, now: float) -> float:
        """Seconds until there is something to take."""
        self._fill(now)
        return 0.0 if not self._most else max(0.0, (1 - self._left) * 60 / self._most)

    def _fill(self, now: float) -> None:
        self._left = min(float(self._most), self._left + (now - self._at) * self._most / 60)
        self._at = now


class _Account:
    """What a key has used."""

    def __init__(self, key: Key) -> None:
        self._who = f"The key {key.name}" if key.name else "This key"
        self._limits: Limits = key.limits
        self.running = 0
        self.requests, self.tokens = _Bucket(key.limits.requests_per_minute), _Bucket(key.limits.tokens_per_minute)

    def refusal(self, now: float) -> ApiError | None:
        """Why it may not send a request now; else the request counts."""
        limits = self._limits
        if limits.parallel and self.running >= limits.parallel:
            return _refused(f"{self._who} may have {limits.parallel} requests at a time.", 1)
        for bucket, most, what in (
            (self.requests, limits.requests_per_minute, "requests"),
            (self.tokens, limits.tokens_per_minute, "tokens"),
        ):
            if wait_s := bucket.wait_s(now):
                return _refused(f"{self._who} may use {most} {what} a minute.", math.ceil(wait_s))
        self.requests.take(1, now)
        return None


def _refused(message: str, wait_s: int) -> ApiError:
    message += f" Try again in {wait_s} s."
    headers = {"Retry-After": str(wait_s)}
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)
