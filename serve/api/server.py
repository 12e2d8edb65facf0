"""Serves HTTP on a bound socket until a signal ends it.

Tested in tests/serve/test_life.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from serve.api.app import make_app
from serve.api.connection_limits import connection_options
from serve.config import ServerOptions
from serve.pool.model_pool import Pool


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own handlers raise the signal again after a clean end; a clean end here has exit status 0.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def serve_http(pool: Pool, options: ServerOptions, keys: list[str], listener: socket.socket) -> None:
    """Answers requests with a started pool and closes it at the end.

    Raises ``UserError`` when the access log cannot be opened.
    """
    config = uvicorn.Config(
        make_app(pool, options, keys=keys),
        log_level="warning",
        timeout_keep_alive=15,
        **connection_options(head_timeout_s=options.body_timeout_s, write_timeout_s=options.write_timeout_s),
        timeout_graceful_shutdown=max(1, round(options.drain_s)),
        server_header=False,
        lifespan="on",
        access_log=False,  # `serve.api.access_log` writes one
    )
    await _Server(config).serve(sockets=[listener])
