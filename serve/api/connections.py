"""Connections with limits: heads that come too slowly, readers that take nothing, more of them than may be open.

uvicorn's protocol waits for ever in these places. Bodies and the events of streams have their own limits in
serve/http.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import time
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_OPEN = 4096
"""Connections at a time, where the limit on open files allows it; an idle one costs about 5 KB."""

BACKLOG = 512
"""Connections that wait to be accepted, at most."""

_OTHER_FILES = 128
"""Open files that are no connections: the log, the engine's pipes, modules on their way in."""

_BUSY_BODY = (
    b'{"error":{"message":"Too many connections.","type":"server_error","param":null,"code":"too_many_connections"}}'
)
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_BUSY_BODY), _BUSY_BODY)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What one connection may take, and how many there may be."""

    head_timeout_s: float
    """From a connection's opening, or a request's first byte, to the end of its head."""
    write_timeout_s: float
    """Without the reader taking anything."""
    max_open: int


def limited(*, head_timeout_s: float, write_timeout_s: float) -> dict[str, Any]:
    """Options of uvicorn's: connections of this kind, as many as the limit on open files allows, which is raised as
    far as this process may."""
    files = _open_files()
    # As many as the backlog holds are accepted in one go, before any of them can be turned away.
    backlog = min(BACKLOG, files // 4)
    limits = ConnectionLimits(
        head_timeout_s=head_timeout_s,
        write_timeout_s=write_timeout_s,
        max_open=min(MAX_OPEN, max(files - backlog - _OTHER_FILES, files // 4)),
    )
    return {"http": functools.partial(LimitedConnection, limits), "ws": "none", "backlog": backlog}


def _open_files() -> int:
    wanted = MAX_OPEN + BACKLOG + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return wanted if soft == resource.RLIM_INFINITY else soft


class LimitedConnection(H11Protocol):
    """One connection. When there are too many, the one that has been idle for longest gives way."""

    def __init__(self, limits: ConnectionLimits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._idle_since = time.monotonic()
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is in work."""
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
            self._head_timer = _stopped(self._head_timer)
        elif self._head_timer is None and not self.transport.is_closing():
            # The first bytes of another request; more of them do not move its limit.
            self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._write_timer = _stopped(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer, self._write_timer = _stopped(self._head_timer), _stopped(self._write_timer)
        super().connection_lost(exc)

    # -- from uvicorn --------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._idle_since = time.monotonic()
        super().on_response_complete()
        self._watch_rest()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_rest()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_rest()

    # -- limits --------------------------------------------------------------------------------------------

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.idle:
            self.timeout_keep_alive_handler()

    def _watch_rest(self) -> None:
        # A transport that is closing waits until its buffer has been taken, however long that may be.
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        if self._write_timer is None:
            left = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self._look_at_reader, left)

    def _look_at_reader(self, before: int) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size() < before:
            self._watch_reader()  # slow, but it reads
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        others = [each for each in self.connections if each is not self and each.idle]
        others = [each for each in others if not each.transport.is_closing()]
        if others:
            min(others, key=lambda each: each._idle_since).transport.abort()
        else:
            self.transport.write(_BUSY)
            self.transport.close()


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
