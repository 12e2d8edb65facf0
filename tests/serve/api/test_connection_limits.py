"""Slow ends and crowds of connections, against a real server over real sockets.

Numbers refer to the reliability list (docs/results/serving-reliability.md).
"""

import contextlib
import json
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slm.serve.api.connection_limits import MAX_OPEN, connection_options
from tests.helpers.sockets import PATIENCE_S, connection, everything, health_s, is_well, n_connections


def test_a_head_that_comes_slowly_is_cut_off(tmp_path, tiny_path, start_server):
    """List, 20: a byte of a head now and then does not hold a connection, on the first request or a later one."""
    with start_server(tmp_path / "log", tiny_path, "serve.body_timeout_s=1") as server:
        for before in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with connection(server) as raw:
                raw.sendall(before)
                if before:
                    assert b" 200 " in raw.recv(4096)
                began = time.perf_counter()
                with contextlib.suppress(ConnectionError):
                    for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1000:
                        raw.sendall(bytes([byte]))
                        time.sleep(0.05)
                assert time.perf_counter() - began < 20  # of 50 s
        is_well(server)


def test_a_silent_connection_is_closed(tmp_path, tiny_path, start_server):
    """List, 20: also one that never says a word."""
    with start_server(tmp_path / "log", tiny_path, "serve.body_timeout_s=0.5") as server, connection(server) as raw:
        assert everything(raw) == b""
        is_well(server)


def test_a_reader_of_a_long_answer_who_stops_is_given_up(tmp_path, tiny_path, start_server):
    """List, 20: an answer of megabytes does not wait in memory for a reader that takes nothing."""
    with start_server(tmp_path / "log", tiny_path, "serve.write_timeout_s=0.5") as server:
        body = json.dumps({"content": "a" * (4_000_000)}).encode()
        with connection(server, SO_RCVBUF=4096) as raw:
            raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert raw.recv(10)
            assert server.wait(lambda: n_connections(server) == 0, PATIENCE_S) < 10
            assert len(everything(raw)) < 8_000_000
        # One that reads slowly but reads gets all of it.
        with connection(server, SO_RCVBUF=65536) as raw:
            raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
            raw.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            n = 0
            while part := raw.recv(1 << 19):
                n += len(part)
                time.sleep(0.01)
            assert n > 12_000_000
        is_well(server)


def test_hundreds_of_idle_connections_cost_nothing(tmp_path, tiny_path, start_server):
    """List, 20: with 600 silent connections the server answers as before; then they are closed."""
    with start_server(tmp_path / "log", tiny_path, "serve.body_timeout_s=5") as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connection(server)) for _ in range(600)]
        for _ in range(5):
            assert health_s(server) < 1
        is_well(server)
        assert all(everything(raw) == b"" for raw in silent)
        assert n_connections(server) < 10


def test_more_connections_than_open_files(tmp_path, tiny_path, start_server):
    """List, 20: where the limit on open files is 300, the longest idle of 500 connections give way to who speaks."""
    few_files = ("bash", "-c", 'ulimit -n 300 && exec "$@"', "limited")
    with start_server(tmp_path / "log", tiny_path, prefix=few_files) as server, contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(5) as clients:  # the server's backlog is full again before it has emptied it
            for opened in clients.map(lambda _: stack.enter_context(connection(server)), range(500)):
                assert opened
        for _ in range(5):
            assert health_s(server) < 3
        is_well(server)
        assert n_connections(server) <= 200
        assert "Too many open files" not in server.log.read_text()


@pytest.mark.parametrize("files", [300, 1024, 1_000_000])
def test_files_are_enough_for_the_backlogs_of_three_turns(files, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    options = connection_options(head_timeout_s=1, write_timeout_s=1)
    (limits,) = options["http"].args
    assert limits.max_open + 3 * options["backlog"] <= files - 100
    assert limits.max_open >= files // 4 or limits.max_open == MAX_OPEN
