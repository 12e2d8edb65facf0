"""The access log: one line per request with what was asked for and what it cost, never the text."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import logging.handlers
import os
import queue
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slm.data.errors import UserError
from slm.serve.api import client_fields
from slm.serve.api.errors import ApiError, engine_down
from slm.serve.engine.protocol import Delta, PrefillDone

_GIVEN_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_KEY = "slm.record"
_MOST_WAITING = 4096
"""Lines: about a megabyte."""


@dataclass(kw_only=True)
class Record:
    """What is known of a request; its handlers fill it in."""

    id: str
    began: float
    """Seconds of ``time.perf_counter``, like the other times."""
    key: int | None = None
    """The number of the request's key, counted from 1; 0: none of the server's keys."""
    key_name: str | None = None
    """Whose key it is, where the key file says it."""
    model: str | None = None
    stream: bool | None = None
    queue_s: float | None = None
    """Seconds of waiting for a slot."""
    first_text: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    """The code of the error, for a request that failed."""
    ignored: list[str] = field(default_factory=list)
    """Names of the request's fields that had no effect; the response names them."""

    def add(self, event: PrefillDone | Delta) -> None:
        """Takes the times from an event of the engine."""
        if isinstance(event, PrefillDone):
            self.queue_s = max(self.queue_s or 0.0, event.queue_s)
        elif self.first_text is None and event.completion_tokens:
            self.first_text = time.perf_counter()


def record_of(scope: Scope) -> Record:
    """The record that ``AccessLog`` has made for a request."""
    return scope[_KEY]


class AccessLog:
    """ASGI middleware, the outermost: gives every request an id and writes its line when it has ended.

    ``respond`` makes the response for a request that the end of the server cuts off.
    """

    def __init__(self, app: ASGIApp, *, write: Writer | None, respond: Callable[[Scope, ApiError], ASGIApp]) -> None:
        self._app, self._write, self._respond = app, write, respond

    def close(self) -> None:
        """Waits a moment for lines that are still to be written."""
        if self._write is not None:
            self._write.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(id=_request_id(scope), began=time.perf_counter())
        scope[_KEY] = record
        status, begun, complete = 499, False, False  # 499 is nginx's status for a client that has left

        async def send_with_id(message: Message) -> None:
            nonlocal status, begun, complete
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.id
                if record.ignored:
                    headers[client_fields.HEADER] = client_fields.header_value(record.ignored)
            elif not message.get("more_body"):
                complete = True
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The server ends, and the request is cut off.
            if begun:
                raise  # uvicorn closes the connection: the client sees that the response is not whole
            record.error = "engine_unavailable"
            error = engine_down("The server is shutting down; try again.")
            await self._respond(scope, error)(scope, receive, send_with_id)
        finally:
            if self._write is not None:
                self._write.line(scope, record, status if complete else 499)


def _request_id(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode() if _GIVEN_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


class Writer:
    """Writes lines to a file or to stdout.

    A file that is renamed, as logrotate does, is opened anew. A line that cannot be written is lost; the request is
    not affected. A thread writes: a terminal that somebody has stopped (Ctrl-S), or a full pipe, blocks nobody else.
    Then ``_MOST_WAITING`` lines wait, and further ones are counted. Raises ``UserError`` when the file cannot be
    opened.
    """

    def __init__(self, form: Literal["text", "json"], path: str | None) -> None:
        self._line = _as_json if form == "json" else _as_text
        try:
            self._handler = _FileHandler(path) if path else _StdoutHandler(sys.stdout)
        except OSError as error:
            raise UserError(
                f"serve.access_log_file={path} cannot be opened: {error.strerror}; name another file"
            ) from None
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._n_lost = 0
        self._thread: threading.Thread | None = None

    def line(self, scope: Scope, record: Record, status: int) -> None:
        """Hands the line of a request that has ended to the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, daemon=True, name="access-log")
            self._thread.start()
        try:
            self._lines.put_nowait(self._line(_fields(scope, record, status)))
        except queue.Full:
            self._n_lost += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            self._handler.handle(logging.makeLogRecord({"msg": line}))
            if self._n_lost and self._lines.empty():
                lost, self._n_lost = self._n_lost, 0
                print(f"the access log could not be written for a while: {lost} lines are lost", file=sys.stderr)

    def close(self, timeout_s: float = 1.0) -> None:
        """Waits so long for the lines that are still to be written."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(None)
            self._thread.join(timeout_s)


class _ReportsOnce(logging.Handler):
    """Reports the first line that it cannot write on stderr, and the others nowhere."""

    _target = "stdout"
    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._reported:
            self._reported = True
            print(f"the access log cannot be written to {self._target}: {sys.exc_info()[1]}", file=sys.stderr)


class _FileHandler(_ReportsOnce, logging.handlers.WatchedFileHandler):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._target = path

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file was renamed, and a new one cannot be opened
            self.handleError(record)


class _StdoutHandler(_ReportsOnce):
    """Writes without Python's own buffer: at the end of the program its lock could be held by a thread that waits."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._number = stream.fileno()

    def emit(self, record: logging.LogRecord) -> None:
        rest = f"{self.format(record)}\n".encode()
        try:
            while rest:
                rest = rest[os.write(self._number, rest) :]
        except OSError:
            self.handleError(record)


def _fields(scope: Scope, record: Record, status: int) -> dict[str, Any]:
    def since(then: float | None, now: float | None) -> float | None:
        return None if then is None or now is None else round(now - then, 6)

    client = scope.get("client")
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "id": record.id,
        "client": client[0] if client else None,
        "key": record.key,
        "key_name": record.key_name,
        "method": scope["method"],
        "route": scope["path"][:200],
        "model": record.model,
        "status": status,
        "stream": record.stream,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "queue_s": None if record.queue_s is None else round(record.queue_s, 6),
        "ttft_s": since(record.began, record.first_text),
        "total_s": since(record.began, time.perf_counter()),
        "finish_reason": record.finish_reason,
        "error": record.error,
    }


def _as_json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"))


def _as_text(fields: dict[str, Any]) -> str:
    route = json.dumps(fields["route"])[1:-1]  # a path may hold anything, line ends too
    parts = [fields["time"], str(fields["client"]), fields["method"], route, str(fields["status"])]
    parts.append(f"{fields['total_s']:.3f}s")
    if fields["key_name"]:
        parts.append(fields["key_name"])
    if fields["model"]:
        parts.append(fields["model"])
    if fields["prompt_tokens"] is not None:
        cached = f" ({fields['cached_tokens']} cached)" if fields["cached_tokens"] else ""
        parts.append(f"{fields['prompt_tokens']}{cached}+{fields['completion_tokens']} tokens")
    if fields["ttft_s"] is not None:
        parts.append(f"first after {fields['ttft_s']:.3f}s")
    parts.extend(str(fields[name]) for name in ("finish_reason", "error") if fields[name])
    # ASCII, which any terminal and any locale can show.
    return " ".join([*parts, fields["id"]]).encode("ascii", "backslashreplace").decode()
