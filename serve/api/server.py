"""Serves HTTP on a bound socket until a signal ends it.

Tested in tests/serve/test_life.py.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from serve.api.app import make_app
from serve.api.connection_limits import connection_options
from serve.config import ServerOptions
from serve.pool.model_pool import Pool

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """``on_listening`` is called when signals end the server in an orderly way."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own handlers raise the signal again after a clean end; a clean end here has exit status 0.
        for number in _SIGNALS:
            signal.signal(number, lambda *_: self.stop())
        self._on_listening()
        try:
            yield
        finally:
            # What is left to do is short. A further signal would end it in the middle, with a traceback.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def serve_http(
    pool: Pool, options: ServerOptions, keys: list[str], listener: socket.socket, on_listening: Callable[[], None]
) -> None:
    """Answers requests with a started pool until a signal comes. After it returns, signals are ignored.

    The first signal lets running requests finish; a second one does not. ``on_listening`` is called before requests
    are answered, when signals are already handled. The caller closes the pool. Raises ``UserError`` when the access log
    cannot be opened.
    """
    config = uvicorn.Config(
        make_app(pool, options, keys=keys),
        log_level="warning",
        timeout_keep_alive=15,
        **connection_options(head_timeout_s=options.body_timeout_s, write_timeout_s=options.write_timeout_s),
        timeout_graceful_shutdown=max(1, round(options.drain_s)),
        server_header=False,
        lifespan="off",
        access_log=False,  # `serve.api.access_log` writes one
    )
    await _Server(config, on_listening).serve(sockets=[listener])
