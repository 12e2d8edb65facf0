"""Streams of server-sent events. Numbers refer to the reliability list (docs/results/serving-reliability.md)."""

import json

from slm.serve.api.core.replies import encode_event
from tests.helpers.sockets import connection, is_well


def test_an_event_on_the_wire():
    assert encode_event({"text": "ä\n", "n": 1}) == 'data: {"text":"ä\\n","n":1}\n\n'.encode()
    assert encode_event([1.5], "error") == b"event: error\ndata: [1.5]\n\n"


def test_a_reader_of_a_stream_who_stops_is_given_up(tmp_path, slow_path, start_server):
    """List, 20: a stream that nobody reads ends, and its slot is free, long before its last token."""
    words = ("serve.write_timeout_s=0.5", "serve.slots=4")
    with start_server(tmp_path / "log", slow_path, *words) as server, connection(server, SO_RCVBUF=4096) as raw:
        # 6 KB a step, so that it is soon more than the kernel holds for the reader.
        ask = {"messages": [{"role": "user", "content": "x"}], "n": 4, "stream": True, "ignore_eos": True}
        body = json.dumps(ask | {"logprobs": True, "top_logprobs": 20}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        raw.sendall(head + body)
        assert b" 200 " in raw.recv(100)
        server.wait(lambda: server.metrics()["slm_sequences_running"] == 4)
        server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0, 120)
        assert server.metrics()['slm_sequences_ended_total{reason="canceled"}'] == 4
        is_well(server)
