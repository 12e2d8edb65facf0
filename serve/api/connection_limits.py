"""Limits on connections: slow request heads, clients that stop reading, and the number of open connections.

uvicorn has no limits in these places. Bodies have theirs in ``request_body.py``, streams in ``core/streaming.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import resource
import time
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from slm.serve.api.errors import ApiError

MAX_OPEN = 4096
"""Most connections at a time, where the limit on open files allows it. An idle one costs about 5 KB."""

BACKLOG = 512
"""Most connections that wait to be accepted."""

_OTHER_FILES = 128
"""Open files other than connections: the log, the engine's pipes, modules while they are imported."""

_BACKLOGS = 3
"""Backlogs of connections that may be open beyond the limit: asyncio accepts a whole backlog in each turn of its loop.
The first turn accepts, the second makes transports, the third turns the longest idle away, and the fourth closes their
files, before it accepts more."""

_BUSY_BODY = json.dumps(
    ApiError(503, "Too many connections.", type="server_error", code="too_many_connections").body,
    separators=(",", ":"),
).encode()
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_BUSY_BODY), _BUSY_BODY)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Seconds that one connection may take, and how many there may be."""

    head_timeout_s: float
    """From a connection's opening, or a request's first byte, to the end of the request's head."""
    write_timeout_s: float
    """While the client reads nothing."""
    max_open: int
    """Connections at a time."""


def connection_options(*, head_timeout_s: float, write_timeout_s: float) -> dict[str, Any]:
    """Options for ``uvicorn.Config``: limited connections, as many as the limit on open files allows.

    Raises the process's limit on open files as far as it may.
    """
    files = _open_files()
    backlog = min(BACKLOG, files // (4 * _BACKLOGS))
    limits = ConnectionLimits(
        head_timeout_s=head_timeout_s,
        write_timeout_s=write_timeout_s,
        max_open=min(MAX_OPEN, max(files - _BACKLOGS * backlog - _OTHER_FILES, files // 4)),
    )
    return {"http": functools.partial(LimitedConnection, limits), "ws": "none", "backlog": backlog}


def _open_files() -> int:
    wanted = MAX_OPEN + _BACKLOGS * BACKLOG + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return wanted if soft == resource.RLIM_INFINITY else soft


class LimitedConnection(H11Protocol):
    """One connection. When there are too many, the one that has been idle longest is closed."""

    def __init__(self, limits: ConnectionLimits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._idle_since = time.monotonic()
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    # -- from the transport --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)
        if len(self.connections) > self._limits.max_open:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop_head_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            # The first bytes of another request; more of them do not move its limit.
            self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    # -- from uvicorn --------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._idle_since = time.monotonic()
        super().on_response_complete()
        self._watch_unsent()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_unsent()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_unsent()

    # -- limits --------------------------------------------------------------------------------------------

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.idle:
            self.timeout_keep_alive_handler()

    def _watch_unsent(self) -> None:
        # A closing transport waits until its buffer has been read, however long that takes.
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        if self._write_timer is None:
            unsent = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self._check_reader, unsent)

    def _check_reader(self, before: int) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size() < before:
            self._watch_reader()  # slow, but reading
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        idle = [
            each
            for each in self.connections
            if isinstance(each, LimitedConnection)
            and each is not self
            and each.idle
            and not each.transport.is_closing()
        ]
        if idle:
            min(idle, key=lambda each: each._idle_since).transport.abort()
        else:
            self.transport.write(_BUSY)
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
