"""Bad bytes, bad bodies and bad values, against a real server over real sockets.

The numbers refer to the project's list of what a server must survive (docs/results/serving-reliability.md).
"""

import contextlib
import json
import random
import socket
import time

import httpx
import pytest

from slm.serve.listening import listen
from tests.helpers.sockets import PATIENCE_S, connection, everything, is_well

GENERATION = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
}


def test_no_piece_of_an_answer_waits_for_an_acknowledgment():
    """List, 20: the listener's connections send at once (TCP_NODELAY), not 40 ms later."""
    import asyncio

    async def accepted_option() -> int:
        option = asyncio.get_running_loop().create_future()

        def accept(_, writer):
            raw = writer.get_extra_info("socket")
            option.set_result(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await option

    assert asyncio.run(accepted_option()) != 0


# -- 14: what is no request, or no body ---------------------------------------------------------------------

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
BAD_BYTES = {
    "no http": b"hello\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "http 9": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "head of 100 KB": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "10,000 headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    "negative length": HEAD + b"Content-Length: -5\r\n\r\n{}",
    "length of 30 digits": HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}a",
    "length and chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
    "nul in path": b"GET /v1/models/\0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "bytes in path": b"GET /v1/models/%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "dots in path": b"GET /web/..%2f..%2fapp.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "websocket": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n"
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
    ("typical_p", "-1"), ("repeat_penalty", "0"), ("repeat_penalty", "-1e400"), ("repeat_last_n", "-2"),
    ("frequency_penalty", "-3"), ("presence_penalty", "1e300"), ("seed", "1e3"), ("seed", "9" * 30),
    ("n", "0"), ("n", "-1"), ("n", "17"), ("n", "1" + "0" * 20), ("n", "1.0"), ("max_tokens", "-1.5"),
    ("max_tokens", "9" * 30), ("logit_bias", '{"999999":1}'), ("logit_bias", '{"":1}'), ("logit_bias", '{"1":1e400}'),
    ("logit_bias", '{"x":"1"}'), ("stop", '[5]'), ("stop", "5"), ("prompt", "[-1]"), ("prompt", "[2147483648]"),
    ("prompt", "[316000]"), ("prompt", "[[1],[999999]]"), ("prompt", "[1.5]"), ("prompt", "[null]"),
    ("logprobs", "-1"), ("logprobs", "1000000"), ("stream", '"yes"'),
    ("grammar", '"root ::= ("'), ("grammar", '""'), ("grammar", '"root ::= root"'), ("grammar", '"x ::= \\"a\\""'),
    ("grammar", json.dumps("root ::= " + "(" * 60_000)), ("grammar", json.dumps("root ::= " + "(" * 3000 + ")" * 3000)),
    ("grammar", '"root ::= [\\\\uD800-\\\\uDFFF]"'), ("grammar", '"root ::= \\"a\\"{1,100000}"'),
    ("response_format", '{"type":"json_schema","json_schema":{"strict":true,"schema":{"pattern":"(?=x)"}}}'),
    ("response_format", '{"type":"json_schema","json_schema":{"strict":true,"schema":{"const":1e400}}}'),
    ("response_format",
     '{"type":"json_schema","json_schema":{"strict":true,"schema":' + '{"not":' * 9 + "1" + 11 * "}"),
    ("response_format", '{"type":"json_schema","json_schema":{"strict":true,"schema":{"oneOf":[{"type":[{}]},{}]}}}'),
    ("response_format", '{"type":"json_schema","json_schema":{"strict":true,"schema":{"$ref":"#/' + "9" * 500 + '"}}}'),
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
