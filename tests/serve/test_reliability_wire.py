"""Bad bytes, bad bodies, bad values, slow ends and crowds of connections, against a real server over real sockets.

The numbers are those of the project's list of what a server must survive (docs/results/serving-reliability.md).
"""

import contextlib
import json
import random
import socket
import time

import httpx
import psutil
import pytest

from serve.__main__ import _listen

GENERATION = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
}
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


def test_no_piece_of_an_answer_waits_for_an_acknowledgment():
    """List, 20: the listener's connections send at once (TCP_NODELAY), not 40 ms later."""
    import asyncio

    async def accepted_option() -> int:
        option = asyncio.get_running_loop().create_future()

        def accept(_, writer):
            raw = writer.get_extra_info("socket")
            option.set_result(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = _listen("127.0.0.1", 0)
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await option

    assert asyncio.run(accepted_option()) != 0


# -- 14: what is no request, or no body ---------------------------------------------------------------------

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
BAD_BYTES = {
    "no http": b"hello\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "http 9": b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    "head of 100 KB": b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "10,000 headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    "negative length": HEAD + b"Content-Length: -5\r\n\r\n{}",
    "length of 30 digits": HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}a",
    "length and chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
    "nul in path": b"GET /v1/models/\0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "bytes in path": b"GET /v1/models/%ff%fe%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "dots in path": b"GET /web/..%2f..%2fapp.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "websocket": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bytes_that_are_no_request(server, name):
    """List, 14: malformed HTTP gets an answer below 500, or a closed connection, and harms nobody."""
    with connection(server) as raw:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            raw.sendall(BAD_BYTES[name])
            raw.shutdown(socket.SHUT_WR)
        answer = everything(raw)
    if answer:
        assert answer.startswith(b"HTTP/1.1 "), answer
        assert int(answer.split()[1]) < 500, answer
    is_well(server)


def test_random_bytes(server):
    """List, 14: the same for two hundred random beginnings and cuts of a request."""
    rng = random.Random(0)
    good = HEAD + b"Content-Length: 32\r\n\r\n" + json.dumps({"prompt": "x", "max_tokens": 1}).encode().ljust(32)
    for _ in range(200):
        sent = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            sent[rng.randrange(len(sent))] = rng.randrange(256)
        with connection(server) as raw:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                raw.sendall(sent[: rng.randint(1, len(sent))])
                raw.shutdown(socket.SHUT_WR)
            answer = everything(raw)
        assert not answer or int(answer.split()[1]) < 500, (bytes(sent), answer)
    is_well(server)


def of(item: str, n_bytes: int = (4 << 20) - 200) -> str:
    return "[" + ",".join([item] * (n_bytes // (len(item) + 1))) + "]"


FIELDS = "{" + ",".join(f'"k{i}":1' for i in range(250_000)) + "}"
BIG_AND_WRONG = {
    "floats for tokens": ("/v1/completions", '{"prompt":' + of("1.5") + "}"),
    "empty lists": ("/v1/completions", '{"prompt":' + of("[]") + "}"),
    "lists in lists": ("/v1/completions", '{"prompt":' + of("[[1]]") + "}"),
    "a million tokens": ("/v1/completions", '{"prompt":' + of("1", 2_000_000) + "}"),
    "a long text": ("/v1/completions", '{"prompt":"' + "the fox " * 500_000 + '"}'),
    "parts of a message": ("/v1/chat/completions", '{"messages":[{"role":"user","content":' + of("1") + "}]}"),
    "parts of an input": ("/v1/responses", '{"input":[{"role":"user","content":' + of("{}") + "}]}"),
    "messages": ("/v1/chat/completions", '{"messages":' + of("{}") + "}"),
    "inputs": ("/v1/embeddings", '{"input":' + of("1.5") + "}"),
    "texts for tokens": ("/detokenize", '{"tokens":' + of('""') + "}"),
    "unknown fields": ("/v1/completions", '{"prompt":"x",' + FIELDS[1:]),
    "biases": ("/v1/completions", '{"prompt":"x","logit_bias":' + FIELDS + "}"),
    "fields of an object": ("/v1/completions", '{"prompt":"x","stream_options":' + FIELDS + "}"),
    "nesting": ("/v1/completions", '{"prompt":' + '{"a":' * 600_000),
    "digits": ("/v1/completions", '{"prompt":"x","seed":' + "9" * 4_000_000 + "}"),
}


@pytest.mark.parametrize("name", BIG_AND_WRONG)
def test_a_big_wrong_body_is_refused_quickly(server, name):
    """List, 14: the worst that fits into a body is a 400 in a moment: it is not explained item by item (17 s)."""
    path, body = BIG_AND_WRONG[name]
    began = time.perf_counter()
    answer = httpx.post(server.url + path, content=body.encode(), timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert time.perf_counter() - began < 6
    assert len(answer.content) < 2000
    assert answer.json()["error"]["message"]
    is_well(server)


def test_a_body_over_the_limit_is_told_and_not_torn_off(server):
    """List, 14: 413, also for a client that sends all before it reads; one that asks first sends nothing."""
    url = server.url + "/v1/completions"
    for body in (b" " * (12 << 20), (b" " * (1 << 20) for _ in range(12))):
        answer = httpx.post(url, content=body, timeout=PATIENCE_S)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
    with connection(server) as raw:
        raw.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert everything(raw).startswith(b"HTTP/1.1 413 ")
    is_well(server)


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"null", b"1", b"\xff\xfe", b'{"a":NaN}', b"[" * 100_000])
def test_what_is_no_json_object(server, path, raw):
    """List, 14: malformed, non-object and deeply nested JSON is a 400 on every route that generates."""
    answer = httpx.post(server.url + path, content=raw, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


# -- 15: values -----------------------------------------------------------------------------------------------

BAD_VALUES = [
    ("temperature", "-0.1"), ("temperature", "1e400"), ("temperature", "9" * 400), ("temperature", '"1"'),
    ("top_p", "-1"), ("top_p", "1e400"), ("top_k", "-2"), ("top_k", "1.5"), ("min_p", "-0.5"), ("min_p", "2"),
    ("typical_p", "-1"), ("repeat_penalty", "0"), ("repeat_penalty", "-1e400"), ("repeat_last_n", "-1"),
    ("frequency_penalty", "-3"), ("presence_penalty", "1e300"), ("seed", "1e3"), ("seed", "9" * 30),
    ("n", "0"), ("n", "-1"), ("n", "17"), ("n", "1" + "0" * 20), ("n", "1.0"), ("max_tokens", "-1"),
    ("max_tokens", "9" * 30), ("logit_bias", '{"999999":1}'), ("logit_bias", '{"-1":1}'), ("logit_bias", '{"1":1e400}'),
    ("logit_bias", '{"x":1}'), ("stop", '[""]'), ("stop", "5"), ("prompt", "[-1]"), ("prompt", "[2147483648]"),
    ("prompt", "[316000]"), ("prompt", "[[1],[999999]]"), ("prompt", "[1.5]"), ("prompt", "[null]"),
    ("logprobs", "-1"), ("logprobs", "1000000"), ("stream", '"yes"'),
    ("grammar", '"root ::= ("'), ("grammar", '""'), ("grammar", '"root ::= root"'), ("grammar", '"x ::= \\"a\\""'),
    ("grammar", json.dumps("root ::= " + "(" * 60_000)), ("grammar", json.dumps("root ::= " + "(" * 3000 + ")" * 3000)),
    ("grammar", '"root ::= [\\\\uD800-\\\\uDFFF]"'), ("grammar", '"root ::= \\"a\\"{1,100000}"'),
    ("response_format", '{"type":"json_schema","json_schema":{"name":"a","schema":{"pattern":"x"}}}'),
    ("response_format", '{"type":"json_schema","json_schema":{"name":"a","schema":{"const":1e400}}}'),
    ("response_format", '{"type":"json_schema","json_schema":{"name":"a","schema":' + '{"not":' * 60 + "1" + "}" * 62),
    ("response_format", '{"type":"json_schema","json_schema":{"name":"a","schema":{"oneOf":[{"type":[{}]},{}]}}}'),
    ("response_format", '{"type":"json_schema","json_schema":{"name":"a","schema":{"$ref":"#/x/' + "9" * 5000 + '"}}}'),
]  # fmt: skip


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(("field", "value"), BAD_VALUES, ids=[f"{i}-{each[0]}" for i, each in enumerate(BAD_VALUES)])
def test_a_bad_value_is_refused_before_anything_is_generated(server, field, value, stream):
    """List, 15: bad token ids, n, sampling values and grammars are a 400, streaming or not; no text is made."""
    fields = {"prompt": '"x"', "max_tokens": "2", "stream": stream} | {field: value}
    body = "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"
    answer = httpx.post(server.url + "/v1/completions", content=body.encode(), timeout=PATIENCE_S)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or field).startswith(field)
    assert "choices" not in answer.json()


def test_the_engine_has_not_noticed(server):
    """List, 15: after all of those the engine is the same process."""
    is_well(server)


# -- 16: too long ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", GENERATION)
def test_a_prompt_over_the_context_is_a_400_also_when_streaming(server, path, stream):
    """List, 16: 400 ``context_length_exceeded`` before any event of a stream."""
    long = "the old fox " * 2000
    changes = {
        "/v1/completions": {"prompt": long},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": long}]},
        "/v1/responses": {"input": long},
    }[path]
    answer = httpx.post(server.url + path, json={**GENERATION[path], **changes, "stream": stream}, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    is_well(server)


# -- 20: slow ends and crowds ---------------------------------------------------------------------------------


def test_a_head_that_comes_slowly_is_cut_off(tmp_path, tiny_path, start_server):
    """List, 20: a byte of a head now and then does not hold a connection, on the first request or a later one."""
    with start_server(tmp_path / "log", tiny_path, "serve.body_timeout_s=1") as server:
        for before in (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
            with connection(server) as raw:
                raw.sendall(before)
                if before:
                    assert b" 200 " in raw.recv(4096)
                began = time.perf_counter()
                with contextlib.suppress(ConnectionError):
                    for byte in b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1000:
                        raw.sendall(bytes([byte]))
                        time.sleep(0.05)
                assert time.perf_counter() - began < 20  # of 50 s
        is_well(server)


def test_a_silent_connection_is_closed(tmp_path, tiny_path, start_server):
    """List, 20: also one that never says a word."""
    with start_server(tmp_path / "log", tiny_path, "serve.body_timeout_s=0.5") as server, connection(server) as raw:
        assert everything(raw) == b""
        is_well(server)


def n_connections(server) -> int:
    port = address(server)[1]
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(1 for each in found if each.laddr.port == port and each.raddr)


def test_a_reader_of_a_long_answer_who_stops_is_given_up(tmp_path, tiny_path, start_server):
    """List, 20: an answer of megabytes does not wait in memory for a reader that takes nothing."""
    with start_server(tmp_path / "log", tiny_path, "serve.write_timeout_s=0.5") as server:
        body = json.dumps({"content": "a" * (4_000_000)}).encode()
        with connection(server, SO_RCVBUF=4096) as raw:
            raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert raw.recv(10)
            assert server.wait(lambda: n_connections(server) == 0, PATIENCE_S) < 10
            assert len(everything(raw)) < 8_000_000
        # One that reads slowly but reads gets all of it.
        with connection(server, SO_RCVBUF=65536) as raw:
            raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
            raw.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            n = 0
            while part := raw.recv(1 << 19):
                n += len(part)
                time.sleep(0.01)
            assert n > 12_000_000
        is_well(server)


def test_a_reader_of_a_stream_who_stops_is_given_up(tmp_path, slow_path, start_server):
    """List, 20: a stream whose reader takes nothing ends, and its slot is free, long before its last token."""
    words = ("serve.write_timeout_s=0.5", "serve.slots=4")
    with start_server(tmp_path / "log", slow_path, *words) as server, connection(server, SO_RCVBUF=4096) as raw:
        # 6 KB a step, so that it is soon more than the kernel holds for the reader.
        ask = {"messages": [{"role": "user", "content": "x"}], "n": 4, "stream": True, "ignore_eos": True}
        body = json.dumps(ask | {"logprobs": True, "top_logprobs": 20}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        raw.sendall(head + body)
        assert b" 200 " in raw.recv(100)
        server.wait(lambda: server.metrics()["slm_sequences_running"] == 4)
        server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0, 120)
        assert server.metrics()['slm_sequences_ended_total{reason="canceled"}'] == 4
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
        for _ in range(500):
            stack.enter_context(connection(server))
        for _ in range(5):
            assert health_s(server) < 3
        is_well(server)
        assert n_connections(server) <= 200
        assert "Too many open files" not in server.log.read_text()
