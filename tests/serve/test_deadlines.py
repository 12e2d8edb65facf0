"""Requests whose time runs out, in the queue and in the middle."""

import json
import os
import signal
import time

import httpx
import openai
import pytest

LONG = {"prompt": "once upon a time", "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow(tmp_path_factory, slow_path, start_server):
    """One slot, and a limit for all."""
    folder = tmp_path_factory.mktemp("slow")
    words = ["serve.slots=1", "serve.queue=4", "serve.request_timeout_s=20"]
    with start_server(folder / "server.log", slow_path, *words) as server:
        yield server


def post(server, path="/v1/completions", **body):
    began = time.perf_counter()
    answer = httpx.post(server.url + path, json=body, timeout=60)
    return answer, time.perf_counter() - began


def test_what_there_is_in_the_time(slow):
    answer, seconds = post(slow, **LONG, timeout_s=0.7)
    body = answer.json()
    assert answer.status_code == 200
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["stopped_by"] == "timeout_s"
    assert 0 < body["usage"]["completion_tokens"] < 4000
    assert 0.6 < seconds < 10
    assert slow.wait(lambda: slow.metrics()["slm_sequences_in_flight"] == 0) < 1
    answer, _ = post(slow, "/v1/responses", input="x", timeout_s=0.7)
    assert answer.json()["status"] in ("incomplete", "completed")


def test_a_stream_ends_like_one_that_is_full(slow):
    with httpx.stream("POST", slow.url + "/v1/completions", json={**LONG, "stream": True, "timeout_s": 0.7}) as answer:
        events = [line for line in answer.iter_lines() if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_no_token_in_the_time(slow):
    """Behind another request, in the queue."""
    api = openai.OpenAI(base_url=slow.url + "/v1", api_key="none", max_retries=2)
    with httpx.stream("POST", slow.url + "/v1/completions", json={**LONG, "stream": True}, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        began = time.perf_counter()
        with pytest.raises(openai.APIStatusError) as caught:
            api.completions.create(model="default", prompt="x", extra_body={"timeout_s": 0.3})
        # The client is told not to try again.
        assert time.perf_counter() - began < 5
        assert caught.value.status_code == 408
        assert caught.value.code == "deadline_exceeded"
        # A stream has had its status when it began to wait: the error is its only event.
        with pytest.raises(openai.APIError, match="No token") as caught:
            list(api.completions.create(model="default", prompt="x", stream=True, extra_body={"timeout_s": 0.3}))
        assert caught.value.code == "deadline_exceeded"
        next(lines)  # the one before goes on


def test_an_engine_that_hangs(tmp_path, tiny_path, start_server):
    """The engine cannot end it by itself; the server does, a little later."""
    with start_server(tmp_path / "log", tiny_path) as server:
        pid = server.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            for path, body in (("/v1/embeddings", {"input": "x"}), ("/tokenize", {"content": "x"})):
                answer, _ = post(server, path, **body, timeout_s=0.3)
                assert answer.status_code == 408
                assert answer.json()["error"]["code"] == "deadline_exceeded"
            answer, seconds = post(server, prompt="x", timeout_s=0.3)
            assert answer.status_code == 408
            assert seconds < 20
        finally:
            os.kill(pid, signal.SIGCONT)
        server.wait(lambda: post(server, prompt="x", max_tokens=1)[0].status_code == 200)


def test_limits_of_the_field(slow):
    for bad in (0, -1, "1", True, 1e9, 21):
        answer, _ = post(slow, prompt="x", timeout_s=bad)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "timeout_s"
    assert "at most 20 seconds" in post(slow, prompt="x", timeout_s=21)[0].json()["error"]["message"]
    assert post(slow, prompt="x", max_tokens=1, timeout_s=None)[0].status_code == 200
