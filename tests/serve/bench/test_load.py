import http.server
import socket
import threading

import pytest

from slm.serve.bench.load import Load, _events, run_load
from slm.serve.bench.measure import summary


def test_a_server_that_is_not_there_or_says_no_is_counted_as_failed():
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(503)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    bodies = [[{"prompt": "a", "max_tokens": 4}] * 2] * 2
    report = run_load(Load(port=server.server_port, clients=bodies, timeout_s=20))
    server.shutdown()
    figures = summary(report)
    assert (figures["requests"], figures["failed"]) == (4, 4)
    assert "503" in figures["error"]
    assert figures["tokens_per_s"] == 0


def test_a_server_that_has_gone_is_counted_as_failed(free_port):
    bodies = [[{"prompt": "a", "max_tokens": 4}] * 2] * 2
    figures = summary(run_load(Load(port=free_port, clients=bodies, timeout_s=20)))
    assert (figures["requests"], figures["failed"]) == (4, 4)
    assert "no connection: Connection refused" in figures["error"]


@pytest.fixture
def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_events_are_found_wherever_the_chunks_end():
    whole = b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'
    for size in (1, 7, 16, 100):
        parts = [whole[i : i + size] for i in range(0, len(whole), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        assert [text for _, text in _events(body, 0)] == [b'{"a":1}', b'{"b":2}', b"[DONE]"]
        places = [at for at, _ in _events(body, 0)]
        assert places == sorted(places)
        assert places[-1] <= len(body)
