"""What every handler of a model's requests needs: the body, the model that the request names, and the time it has.

Tested in tests/serve/test_several_models.py, tests/serve/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from typing import Any, ClassVar

from starlette.requests import Request

from slm.serve.api.access_log import Record, record_of
from slm.serve.api.client_fields import header_value
from slm.serve.api.core.parsing import Body, parse
from slm.serve.api.core.streaming import unless_disconnected
from slm.serve.api.errors import ApiError, no_such_model, out_of_time
from slm.serve.api.request_body import read_body
from slm.serve.config import ServerOptions
from slm.serve.engine.protocol import ModelInfo, Query
from slm.serve.pool.model_pool import Lease, Pool

_REPORTED = 100
"""Most ignored fields that the log names."""


@dataclass(kw_only=True)
class RequestContext:
    """A request with the model that it holds until its end."""

    request: Request
    record: Record
    lease: Lease
    ends_at: float | None
    """When the request's time is over, on the loop's clock; None: no limit."""
    streams: bool = False
    """Whether the response is a stream, which releases the lease at its end."""

    @property
    def fingerprint(self) -> str:
        """What ``system_fingerprint`` is."""
        return _fingerprint(self.lease.name, self.lease.info)

    @property
    def seconds_left(self) -> float | None:
        """At least 0; None: no limit."""
        return None if self.ends_at is None else max(self.ends_at - asyncio.get_running_loop().time(), 0.0)


@lru_cache(maxsize=64)
def _fingerprint(name: str, info: ModelInfo) -> str:
    what = f"{metadata.version('slm')} {name} {replace(info, load_s=0)}"
    return f"fp_{hashlib.sha256(what.encode()).hexdigest()[:12]}"


class ModelRoutes:
    """Base of the handlers, over a started pool of models."""

    _reported: ClassVar[set[str]] = set()
    """Ignored fields that the log has named."""

    def __init__(self, pool: Pool, options: ServerOptions) -> None:
        self._pool, self._options = pool, options

    async def _read(self, request: Request, cls: type[Body]) -> Body:
        """The validated body. Raises ``ApiError``."""
        options = self._options
        raw = await read_body(request, max_bytes=options.max_body_bytes, timeout_s=options.body_timeout_s)
        body = parse(cls, raw, strict=options.strict_fields)
        record_of(request.scope).ignored = body.ignored  # the same list: handlers may find more
        for name in body.ignored:
            if name not in self._reported and len(self._reported) < _REPORTED:
                self._reported.add(name)
                shown = header_value([name])
                print(f"note: clients send the field {shown}, which has no effect here", file=sys.stderr, flush=True)
        return body

    def _model_name(self, given: str | None) -> str:
        """The name of a served model. Raises ``ApiError`` 404 when there is none of that name."""
        if given is None or given == "default":
            return self._pool.default.name
        found = self._pool.find(given)
        if found is not None:
            return found.name
        only_known = self._options.only_known_models
        if self._pool.several if only_known is None else only_known:
            raise no_such_model(given, list(self._pool.models))
        return self._pool.default.name

    @asynccontextmanager
    async def _model(
        self, request: Request, given: str | None, timeout_s: float | None
    ) -> AsyncIterator[RequestContext]:
        """The model that a request names, loaded if need be, and held until the block (or the stream begun in it)
        ends. ``timeout_s``: the request's own limit. Raises ``ApiError``."""
        record, limit_s = record_of(request.scope), self._limit_s(timeout_s)
        ends_at = asyncio.get_running_loop().time() + limit_s if limit_s else None
        if given is not None:
            await self._pulled(request, given, ends_at)
        name = self._model_name(given)
        record.model = name
        lease = self._pool.ready(name)
        if lease is None:
            try:
                async with asyncio.timeout_at(ends_at):
                    lease = await unless_disconnected(request.receive, self._pool.lease(name))
            except TimeoutError:
                raise out_of_time(f"The request's time ran out before {name} was loaded.") from None
        context = RequestContext(request=request, record=record, lease=lease, ends_at=ends_at)
        try:
            yield context
        finally:
            if not context.streams:
                lease.release()

    async def _pulled(self, request: Request, given: str, ends_at: float | None) -> None:
        """Waits until a model of the Hub is downloaded, where the name is of one that may be. Raises ``ApiError``."""
        source = self._pool.source
        if source is None or not source.may(given):
            return
        try:
            async with asyncio.timeout_at(ends_at):
                await unless_disconnected(request.receive, source.pull(given))
        except TimeoutError:
            raise out_of_time(f"{given} is being downloaded{source.how_far(given)}; ask again later.") from None

    async def _ask(self, context: RequestContext, query: Query) -> Any:
        """The engine's answer. Raises ``ApiError`` when the request's time is over."""
        try:
            async with asyncio.timeout_at(context.ends_at):
                return await unless_disconnected(context.request.receive, context.lease.engine.query(query))
        except TimeoutError:
            raise out_of_time("The request's time ran out before there was an answer.") from None

    def _limit_s(self, given: float | None) -> float | None:
        """Seconds that a request may take; None: no limit."""
        most = self._options.request_timeout_s
        if given is None:
            return most or None
        if most and given > most:
            message = f"timeout_s is {given:g}; this server allows a request at most {most:g} seconds."
            raise ApiError(400, message, param="timeout_s", code="invalid_value")
        return given
