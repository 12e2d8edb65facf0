"""Streams: what a client hears before the first text."""

import asyncio
import json
import os
import signal
import time

import httpx
import pytest

from slm.serve.api.access_log import Record
from slm.serve.api.core import streaming
from slm.serve.api.openai.completions import CompletionBuilder
from slm.serve.engine.protocol import Delta, PrefillDone, PrefillProgress
from slm.serve.pool.request_stream import RequestStream

LONG = {"prompt": "once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def test_a_client_that_waits_hears_comments(monkeypatch):
    monkeypatch.setattr(streaming, "PING_S", 0.01)

    async def scenario():
        given = RequestStream(["a"], lambda _: None)
        builder = CompletionBuilder(model="m", n_choices=1, n=1, with_logprobs=False)
        out = streaming.stream(given, builder, Record(id="r", began=0.0), include_usage=False)
        first = [await anext(out) for _ in range(3)]
        given.put(PrefillDone(id="a", prompt_tokens=2))
        given.put(Delta(id="a", text="x", completion_tokens=1, finish="stop"))
        return first, [each async for each in out]

    pings, rest = asyncio.run(scenario())
    assert pings == [b": ping\n\n"] * 3
    assert [each for each in rest if each != pings[0]][-1] == b"data: [DONE]\n\n"


def test_timings_with_every_event():
    async def scenario():
        given = RequestStream(["a"], lambda _: None)
        builder = CompletionBuilder(model="m", n_choices=1, n=1, with_logprobs=False)
        builder.timings_per_token = True
        for cached in (1, 3):
            given.put(PrefillProgress(id="a", prompt_tokens=5, cached_tokens=1, processed=cached, seconds=0.1))
        given.put(PrefillDone(id="a", prompt_tokens=5, cached_tokens=1, prefill_s=0.2))
        given.put(Delta(id="a", text="x", completion_tokens=1, decode_s=0.0))
        given.put(Delta(id="a", text="y", completion_tokens=3, decode_s=0.1, finish="stop"))
        out = streaming.stream(given, builder, Record(id="r", began=0.0), include_usage=False)
        return b"".join([each async for each in out]).decode()

    lines = [line.removeprefix("data: ") for line in asyncio.run(scenario()).split("\n\n") if line]
    timings = [json.loads(line)["timings"] for line in lines[:-1]]
    assert [(each["prompt_n"], each["prompt_ms"]) for each in timings] == [(0, 0), (2, 100), (4, 200), (4, 200)]
    assert [each["predicted_n"] for each in timings] == [0, 0, 1, 3]
    assert [each["predicted_per_second"] for each in timings] == [0, 0, 0, 20]


def test_headers_come_at_once_also_in_the_queue(slow_server):
    """One slot, which another has: the status and the headers of a stream do not wait for it."""
    with httpx.stream("POST", slow_server.url + "/v1/completions", json=LONG, timeout=60) as running:
        lines = running.iter_lines()
        next(lines)
        began = time.perf_counter()
        with httpx.stream("POST", slow_server.url + "/v1/completions", json=LONG, timeout=60) as waiting:
            assert waiting.status_code == 200
            assert waiting.headers["content-type"].startswith("text/event-stream")
            assert time.perf_counter() - began < 5  # the one before needs longer
            slow_server.wait(lambda: slow_server.metrics()["slm_sequences_waiting"] == 1)
            # What cannot be carried out is no stream.
            for path, body in (
                ("completions", {"prompt": "x " * 9000}),
                ("chat/completions", {"messages": [{"role": "user", "content": "x " * 9000}]}),
            ):
                refused = httpx.post(f"{slow_server.url}/v1/{path}", json={**body, "stream": True}, timeout=60)
                assert refused.status_code == 400
                assert refused.json()["error"]["code"] == "context_length_exceeded"
        next(lines)


def test_progress_of_a_prompt(server):
    """llama-server's form: from what was cached to all tokens, before the first text."""
    prompt = "the old fox and the little bird went to the river to find the red boat " * 6
    for path, body in (
        ("completions", {"prompt": prompt}),
        ("chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
    ):
        asked = {**body, "max_tokens": 2, "stream": True, "return_progress": True, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/{path}", json=asked, timeout=60).text
        chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
        progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert all(chunk["choices"][0]["index"] == 0 for chunk in chunks)
        assert "prompt_progress" in chunks[0]
        assert progress[0]["processed"] == progress[0]["cache"]
        assert progress[-1]["processed"] == progress[-1]["total"] > 100
        assert [each["processed"] for each in progress] == sorted(each["processed"] for each in progress)
        assert progress[-1]["time_ms"] >= progress[0]["time_ms"] >= 0
        plain = httpx.post(f"{server.url}/v1/{path}", json={**asked, "return_progress": False}, timeout=60).text
        assert "prompt_progress" not in plain
        whole = httpx.post(f"{server.url}/v1/{path}", json={**asked, "stream": False}, timeout=60)
        assert whole.json()["usage"]["completion_tokens"] == 2


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_an_engine_that_hangs_is_not_ready(server):
    """Its reports are missed: the health check says so, requests are refused, and all is well when it goes on."""
    pid = server.engine_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        server.wait(lambda: httpx.get(server.url + "/health").status_code == 503)
        assert httpx.get(server.url + "/health").json()["status"] == "hung"
        assert server.metrics()["slm_engine_up"] == 0
        refused = httpx.post(server.url + "/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert "does not answer" in refused.json()["error"]["message"]
        server.wait(lambda: "the engine does not answer" in server.log.read_text())
    finally:
        os.kill(pid, signal.SIGCONT)
    server.wait(lambda: httpx.get(server.url + "/health").status_code == 200)
    assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
