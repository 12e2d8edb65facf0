"""Serves HTTP on a bound socket until a signal ends it; behind a proxy with a path prefix, too.

Tested in tests/serve/test_life.py, tests/serve/api/test_root_path.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from slm.serve.api.app import make_app
from slm.serve.api.connection_limits import connection_options
from slm.serve.config import ServerOptions
from slm.serve.keys import Key
from slm.serve.pool.model_pool import Pool


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


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """``on_listening`` is called when signals end the server in an orderly way."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self.forced_by: int | None = None
        """The second signal's number, where it cut requests off."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own handlers raise the signal again after a clean end; a clean end here has exit status 0.
        for number in _SIGNALS:
            signal.signal(number, lambda number, _: self.stop(number))
        self._on_listening()
        try:
            yield
        finally:
            # What is left to do is short. A further signal would end it in the middle, with a traceback.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def stop(self, number: int) -> None:
        """Called for each signal: the first lets running requests finish, the second cuts them off."""
        running = len(self.server_state.tasks)
        if not self.should_exit:
            after = f" after the running requests ({running}); another signal cuts them off" if running else ""
            print(f"stopping{after}", file=sys.stderr, flush=True)
        elif not self.force_exit:
            self.force_exit = True
            if running:
                self.forced_by = number
                print("interrupted: running requests are cut off", file=sys.stderr, flush=True)
        self.should_exit = True


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """False for the traceback of a request that the end of the server cuts off: uvicorn cancels it."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def serve_http(
    pool: Pool, options: ServerOptions, keys: Sequence[Key], listener: socket.socket, on_listening: Callable[[], None]
) -> int:
    """Answers requests with a started pool until a signal comes. After it returns, signals are ignored.

    Returns the exit status. The first signal lets running requests finish, which is a clean end (0). A second one cuts
    off those that still run (128 and the signal's number, as a shell reports it). ``on_listening`` is called before
    requests are answered, when signals are already handled. The caller closes the pool. Raises ``UserError`` when the
    access log cannot be opened.
    """
    app = make_app(pool, options, keys=keys)
    config = uvicorn.Config(
        WithoutPrefix(app, options.root_path) if options.root_path else app,
        log_level="warning",
        timeout_keep_alive=15,
        **connection_options(head_timeout_s=options.body_timeout_s, write_timeout_s=options.write_timeout_s),
        timeout_graceful_shutdown=max(1, round(options.drain_s)),
        server_header=False,
        lifespan="off",
        ssl_certfile=options.cert,
        ssl_keyfile=options.key_pem,
        access_log=False,  # `slm.serve.api.access_log` writes one
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    server = _Server(config, on_listening)
    await server.serve(sockets=[listener])
    await asyncio.to_thread(app.close)
    return 0 if server.forced_by is None else 128 + server.forced_by
