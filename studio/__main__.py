"""``python -m slm.studio [port=8765 ...]``: the page, until Ctrl-C. Jobs go on without it."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import uvicorn

from slm import cli
from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.studio.app import make_app
from slm.studio.config import StudioConfig


def main(argv: list[str]) -> int:
    """Serve the page until a signal ends it. UserError for what the person can mend."""
    values = load_config("studio", argv, literal=("password", "folders"))
    values["password"] = values["password"] or os.environ.get("SLM_STUDIO_PASSWORD") or None
    config = build(StudioConfig, values)
    root = Path.cwd()
    if not os.access(root, os.W_OK):
        raise UserError(f"{root} cannot be written: start studio in a folder of yours, where its runs/ are to be")
    with contextlib.closing(_listen(config)) as listener:
        port = listener.getsockname()[1]
        app, token = make_app(replace(config, port=port), root, port)
        server = _Server(
            uvicorn.Config(
                app,
                log_level="warning",
                server_header=False,
                access_log=False,
                timeout_graceful_shutdown=1,  # live streams never end by themselves
            ),
            lambda: _banner(config, port, token),
        )
        logging.getLogger("uvicorn.error").addFilter(_is_worth_saying)
        server.run(sockets=[listener])
    return 0


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """False for the end of live streams, which the end of the server cuts off."""
    cancelled = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and "graceful shutdown" not in record.getMessage()


class _Server(uvicorn.Server):
    """``on_listening`` is called when a signal ends the server in an orderly way; such an end has status 0."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        self._on_listening()
        yield


def _listen(config: StudioConfig) -> socket.socket:
    """Bound before anything else, so that a port in use is reported at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (socket.gaierror, UnicodeError):
        raise UserError(f"host={config.host} is not known: use 127.0.0.1 or 0.0.0.0") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {config.port} is in use: is a studio open there already? Or choose another with port=..."
            ) from None
        raise UserError(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from None
    return listener


def _banner(config: StudioConfig, port: int, token: str) -> None:
    shown = config.host if config.is_local else socket.gethostname()
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    print(f"studio   {url}?token={token}" if config.is_local else f"studio   {url} (with the password)")
    print("jobs     go on when this ends, or is killed; Ctrl-C ends the page", flush=True)
    if config.open and config.is_local and _has_desktop():
        webbrowser.open(f"{url}?token={token}")


def _has_desktop() -> bool:
    """Whether a browser would open a window: in a bare terminal it would take the terminal over."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


if __name__ == "__main__":
    cli.run(main)
