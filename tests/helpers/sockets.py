"""Real sockets to a running server, and whether it is well afterwards."""

import contextlib
import socket
import time

import httpx
import psutil

PATIENCE_S = 20
"""For an answer on a busy machine; the limits under test are far below."""


def address(server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@contextlib.contextmanager
def connection(server, **options):
    with contextlib.closing(socket.socket()) as raw:
        for name, value in options.items():
            raw.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        raw.settimeout(PATIENCE_S)
        raw.connect(address(server))
        yield raw


def everything(raw: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def health_s(server) -> float:
    began = time.perf_counter()
    assert httpx.get(server.url + "/health", timeout=PATIENCE_S).status_code == 200
    return time.perf_counter() - began


def is_well(server) -> None:
    assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    metrics = server.metrics()
    assert sum(value for name, value in metrics.items() if name.startswith("slm_engine_restarts_total")) == 0
    assert sum(value for name, value in metrics.items() if name.startswith("slm_sequences_in_flight")) == 0
    assert "Traceback" not in server.log.read_text()


def n_connections(server) -> int:
    port = address(server)[1]
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(1 for each in found if each.laddr.port == port and each.raddr)
