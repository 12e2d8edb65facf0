"""A load generator that takes little processor time: plain sockets, one thread, no parsing while the clock runs.

``python -m slm.serve.bench.load`` reads a ``Load`` as JSON from stdin and writes a ``Report`` to stdout. It is a
separate process, so that it shares its interpreter neither with the benchmark nor with a server.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import subprocess
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import Any

_READ = 1 << 16


@dataclass(kw_only=True)
class Load:
    """What to send.

    Closed loop: ``clients`` holds the request bodies of each client, which sends the next one when the last is
    answered. Open loop: with ``arrivals`` there is one client, and its i-th request is sent at that second whether
    earlier ones are answered or not.
    """

    port: int
    clients: list[list[dict[str, Any]]]
    arrivals: list[float] | None = None
    host: str = "127.0.0.1"
    path: str = "/v1/completions"
    timeout_s: float = 120.0


@dataclass(kw_only=True)
class Outcome:
    """One request; seconds are counted from its sending."""

    first_wave: bool
    """Whether it is a client's first request; those are sent all at once."""
    sent_at: float
    """Seconds since the load began."""
    ttft_s: float | None = None
    """Until the first text; None where there was none."""
    total_s: float = 0.0
    longest_gap_s: float = 0.0
    """Between two arrivals of text."""
    prompt_tokens: int = 0
    """0 where the server does not report it."""
    cached_tokens: int = 0
    tokens: int = 0
    error: str | None = None


@dataclass(kw_only=True)
class Report:
    """The outcomes of a load."""

    outcomes: list[Outcome]
    wall_s: float
    cpu_s: float
    """Processor time of the client itself."""

    @property
    def completed(self) -> list[Outcome]:
        """Requests without an error."""
        return [each for each in self.outcomes if each.error is None]


def run_load(load: Load) -> Report:
    """Runs the load in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "slm.serve.bench.load"],
        input=json.dumps(asdict(load)).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(done.stdout)
    return Report(**(report | {"outcomes": [Outcome(**each) for each in report["outcomes"]]}))


@dataclass(slots=True, kw_only=True, eq=False)
class _Exchange:
    body: dict[str, Any]
    socket: socket.socket
    waiting: deque[dict[str, Any]]
    """The requests that the same client sends next."""
    first_wave: bool
    began: float
    data: bytearray = field(default_factory=bytearray)
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    error: str | None = None


def drive(load: Load) -> Report:
    """Sends, receives and takes the times. Parses what was received after the last request has ended."""
    selector = selectors.DefaultSelector()
    finished: list[_Exchange] = []
    start = time.perf_counter()

    def send(waiting: deque[dict[str, Any]], *, first_wave: bool) -> None:
        """Sends the next request that can be sent; those that cannot have failed."""
        while waiting and not begin(waiting, first_wave=first_wave):
            first_wave = False

    def begin(waiting: deque[dict[str, Any]], *, first_wave: bool) -> bool:
        body = waiting.popleft()
        raw = json.dumps(body).encode()
        head = (
            f"POST {load.path} HTTP/1.1\r\nHost: {load.host}:{load.port}\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        connection = socket.socket()
        connection.settimeout(load.timeout_s)
        began = time.perf_counter()
        exchange = _Exchange(body=body, socket=connection, waiting=waiting, first_wave=first_wave, began=began)
        try:
            connection.connect((load.host, load.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(head.encode() + raw)
            connection.setblocking(False)
        except OSError as error:
            exchange.error = f"no connection: {error.strerror or error}"
            connection.close()
            finished.append(exchange)
            return False
        selector.register(connection, selectors.EVENT_READ, exchange)
        return True

    def close(exchange: _Exchange) -> None:
        selector.unregister(exchange.socket)
        exchange.socket.close()
        finished.append(exchange)
        if exchange.waiting and load.arrivals is None:
            send(exchange.waiting, first_wave=False)

    pending: deque[float] = deque(load.arrivals or [])
    queue: deque[dict[str, Any]] = deque(load.clients[0] if load.arrivals is not None else [])
    if load.arrivals is None:
        for bodies in load.clients:
            send(deque(bodies), first_wave=True)
    while selector.get_map() or pending:
        now = time.perf_counter() - start
        while pending and pending[0] <= now:
            pending.popleft()
            send(deque([queue.popleft()]), first_wave=False)
        for key, _ in selector.select(max(0.0, pending[0] - now) if pending else 1.0):
            exchange: _Exchange = key.data
            try:
                data = exchange.socket.recv(_READ)
            except OSError as error:
                exchange.error, data = f"connection lost: {error.strerror}", b""
            exchange.times.append(time.perf_counter())
            exchange.sizes.append(len(data))
            exchange.data += data
            if not data or exchange.data.endswith(b"\r\n0\r\n\r\n"):
                close(exchange)
        if time.perf_counter() - start > load.timeout_s:
            pending.clear()
            for key in list(selector.get_map().values()):
                key.data.error = f"not finished after {load.timeout_s:g} s"
                key.data.waiting.clear()
                close(key.data)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    outcomes = [_read(each, start) for each in finished]
    return Report(outcomes=outcomes, wall_s=wall, cpu_s=used.ru_utime + used.ru_stime)


def _read(exchange: _Exchange, start: float) -> Outcome:
    outcome = Outcome(first_wave=exchange.first_wave, sent_at=exchange.began - start, error=exchange.error)
    head, _, rest = bytes(exchange.data).partition(b"\r\n\r\n")
    if outcome.error is None and b" 200 " not in head.split(b"\r\n", 1)[0]:
        outcome.error = (head.split(b"\r\n", 1)[0] + b" " + rest[:200]).decode("utf-8", "replace")
    if outcome.error is not None:
        return outcome
    ends = list(accumulate(exchange.sizes))
    arrived: list[float] = []
    finish, n_texts = None, 0
    stream = _events(rest, len(head) + 4)
    last = None
    for at, text in stream:
        last = text
        if text == b"[DONE]":
            break
        event = json.loads(text)
        if usage := event.get("usage"):
            outcome.tokens, outcome.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
            outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices", []):
            finish = choice.get("finish_reason") or finish
            if choice.get("text"):
                n_texts += 1
                arrived.append(exchange.times[bisect_left(ends, at)])
    outcome.total_s = exchange.times[-1] - exchange.began
    wanted = exchange.body["max_tokens"]
    if not outcome.tokens:
        outcome.tokens = wanted if finish == "length" else n_texts
    if arrived:
        outcome.ttft_s = arrived[0] - exchange.began
        outcome.longest_gap_s = max((b - a for a, b in pairwise(arrived)), default=0.0)
    if last != b"[DONE]" or finish is None:
        outcome.error = "the stream broke off"
    elif outcome.tokens < wanted:
        outcome.error = f"{outcome.tokens} tokens instead of {wanted}"
    return outcome


def _events(chunked: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """The server-sent events of a chunked body, each with the position in the received bytes where it was complete.

    ``offset``: the position at which the body begins.
    """
    text, at = b"", 0
    while at < len(chunked):
        line_end = chunked.find(b"\r\n", at)
        if line_end < 0:
            return
        size = int(chunked[at:line_end].split(b";")[0] or b"0", 16)
        at = line_end + 2 + size + 2
        text += chunked[line_end + 2 : line_end + 2 + size].replace(b"\r\n", b"\n")
        while b"\n\n" in text:
            event, _, text = text.partition(b"\n\n")
            for row in event.split(b"\n"):
                if row.startswith(b"data:"):
                    yield offset + min(at, len(chunked)), row[5:].strip()


def main() -> None:
    """Reads the load from stdin, writes the report to stdout."""
    print(json.dumps(asdict(drive(Load(**json.load(sys.stdin))))))


if __name__ == "__main__":
    main()
