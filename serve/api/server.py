"""HTTP on a bound socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from serve.api.app import make_app
from serve.api.connections import limited
from serve.config import ServerOptions
from serve.pool.model_pool import Pool


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own would raise the signal again after a clean end; ours ends with status 0.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def listen(pool: Pool, options: ServerOptions, keys: list[str], listener: socket.socket) -> None:
    """Answers requests with a started pool, which is closed at the end. Raises ``UserError`` when the access log cannot
    be opened."""
    config = uvicorn.Config(
        make_app(pool, options, keys=keys),
        log_level="warning",
        timeout_keep_alive=15,
        **limited(head_timeout_s=options.body_timeout_s, write_timeout_s=options.write_timeout_s),
        timeout_graceful_shutdown=max(1, round(options.drain_s)),
        server_header=False,
        lifespan="on",
        access_log=False,  # serve.api.access_log has its own
    )
    await _Server(config).serve(sockets=[listener])
