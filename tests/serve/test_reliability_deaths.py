"""The engine dies under load; the server gets a signal to end. Numbers refer to the reliability list
(docs/results/serving-reliability.md).

SLM_KILLS sets how often the engine is killed (20 for the whole proof).
"""

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import threading
import time

import httpx
import psutil
import pytest

N_KILLS = int(os.environ.get("SLM_KILLS", "2"))
EXACT = ("serve.kv_type=f32", "serve.flash_attn=false")


def ask(server, path="/v1/completions", timeout=60, **body):
    body = body or {"prompt": "once upon a time", "max_tokens": 20, "temperature": 0}
    return httpx.post(server.url + path, json=body, timeout=timeout)


def checked_stream(answer: httpx.Response, done: str) -> str:
    """ "done" for a stream that ended well, "failed" for one that ended in an error; anything else is a fault."""
    events = [event for event in answer.text.split("\n\n") if event]
    last = events[-1].rpartition("data: ")[2]
    if done in last:
        return "done"
    error = json.loads(last)
    error = error.get("error", error)  # /v1/responses: the event is the error
    assert error["code"] == "engine_died", last
    assert "again" in error["message"]
    assert not any("[DONE]" in event for event in events)
    return "failed"


def one_request(server, i: int) -> str:
    """Sends one of several kinds; returns how it ended, or raises for what is not well-formed."""
    kind, stream = i % 4, i % 3 != 0
    if kind == 3:
        answer = ask(server, "/v1/embeddings", input=["the old fox " * 20] * 10)
    elif kind == 2:
        answer = ask(server, "/v1/responses", input="hello", max_output_tokens=300, stream=stream)
    elif kind == 1:
        messages = [{"role": "user", "content": "hello"}]
        answer = ask(server, "/v1/chat/completions", messages=messages, max_tokens=300, stream=stream)
    else:
        answer = ask(server, prompt="the old fox", max_tokens=300, ignore_eos=True, stream=stream)
    if answer.status_code == 200:
        if kind == 3 or not stream:
            assert "error" not in answer.json() or answer.json()["error"] is None
            return "done"
        return checked_stream(answer, "response." if kind == 2 else "[DONE]")
    assert answer.status_code in (429, 503), answer.text
    error = answer.json()["error"]
    assert error["code"] in ("engine_died", "engine_unavailable", "queue_full"), error
    assert answer.headers["retry-after"]
    return "failed" if error["code"] == "engine_died" else "refused"


def test_the_engine_killed_under_load(tmp_path, chat_path, start_server):
    """List, 22: kill -9 to the engine while twelve clients are at work: each request in flight gets an error in good
    form, /health says 503, the engine is back within 10 s, and later answers are right."""
    words = ("serve.slots=4", "serve.queue=64", "serve.access_log=false", *EXACT)
    with start_server(tmp_path / "log", chat_path, *words) as server:
        right = ask(server).json()["choices"][0]["text"]
        stop, ends, health, rng = threading.Event(), [], [], random.Random(0)

        def client(seed: int) -> None:
            i = seed
            while not stop.is_set():
                ends.append(one_request(server, i))
                i += 1
                if ends[-1] == "refused":
                    time.sleep(0.02)

        def watch() -> None:
            with httpx.Client(timeout=20) as connection:
                while not stop.is_set():
                    health.append(connection.get(server.url + "/health").status_code)
                    time.sleep(0.005)

        back_s = []
        with concurrent.futures.ThreadPoolExecutor(13) as pool:
            clients = [pool.submit(client, seed) for seed in range(12)]
            watcher = pool.submit(watch)
            try:
                for n in range(N_KILLS):
                    server.wait(lambda: server.metrics()["slm_sequences_running"] > 0, 30)
                    time.sleep(rng.random() * 0.3)
                    server.wait(lambda: server.metrics()["slm_sequences_in_flight"] > 0, 30)
                    os.kill(server.engine_pid(), signal.SIGKILL)
                    began = time.perf_counter()

                    def restarted(n: int = n) -> bool:
                        health.append(httpx.get(server.url + "/health", timeout=20).status_code)
                        return server.metrics()["slm_engine_restarts_total"] == n + 1

                    server.wait(restarted, 30)
                    server.wait(lambda: httpx.get(server.url + "/health").status_code == 200, 30)
                    back_s.append(time.perf_counter() - began)
                    # Somebody must be served, or the next death counts as a failing start, which is tried more slowly.
                    assert ask(server).status_code in (200, 429)
            finally:
                stop.set()
            for each in [*clients, watcher]:
                each.result(timeout=60)
        print(
            f"{N_KILLS} kills: back after {statistics.median(back_s):.2f} s (slowest {max(back_s):.2f} s); "
            f"{ends.count('done')} done, {ends.count('failed')} failed in flight, {ends.count('refused')} refused"
        )
        assert max(back_s) < 10
        assert ends.count("failed") >= N_KILLS
        assert server.metrics()['slm_sequences_ended_total{reason="engine_died"}'] >= N_KILLS
        assert set(health) == {200, 503}
        server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0)
        server.wait(lambda: server.metrics()["slm_sequences_running"] == 0)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            texts = {each.json()["choices"][0]["text"] for each in pool.map(lambda _: ask(server), range(8))}
        assert texts == {right}
        assert "Traceback" not in server.log.read_text()


def test_an_engine_that_dies_again_while_it_starts(tmp_path, slow_path, start_server):
    """List, 22: killed three times, also before it is ready, it comes back; nobody waits without an answer."""
    with start_server(tmp_path / "log", slow_path) as server:
        for _ in range(3):
            # There may be none at the moment.
            with contextlib.suppress(AssertionError, psutil.NoSuchProcess, ProcessLookupError):
                os.kill(server.engine_pid(), signal.SIGKILL)
            assert ask(server).status_code in (200, 503)
            time.sleep(0.1)
        server.wait(lambda: httpx.get(server.url + "/health").status_code == 200, 20)
        assert ask(server).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_drains_and_refuses_new(tmp_path, slow_path, start_server, number):
    """List, 23: what runs and what waits is finished, new connections are refused meanwhile, status 0.

    The text that runs is long, so that a fast processor has not ended it before it is told to end. A busy one takes
    longer than the default drain for it, which is another test's matter.
    """
    words = ("serve.slots=1", "serve.queue=2", "serve.drain_s=300")
    body = {"prompt": "once upon a time", "ignore_eos": True, "stream": True}
    with (
        start_server(tmp_path / "log", slow_path, *words) as server,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        answers = [pool.submit(ask, server, max_tokens=400, **body)]
        server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 1)
        answers += [pool.submit(ask, server, max_tokens=40, **body) for _ in range(2)]  # one slot: they wait
        server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 3)
        engine = server.engine_pid()
        server.process.send_signal(number)

        def refused() -> bool:
            host, port = server.url.removeprefix("http://").split(":")
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except ConnectionError:
                return True
            return False

        assert server.wait(refused, 5) < 2
        assert server.process.poll() is None
        assert all(answer.result().text.endswith("data: [DONE]\n\n") for answer in answers)
        assert server.process.wait(10) == 0
        assert not psutil.pid_exists(engine)
        assert "Traceback" not in server.log.read_text()


def test_the_drain_has_a_limit(tmp_path, slow_path, start_server):
    """List, 23: a request that would take longer does not keep the server; it is not told that all went well."""
    with start_server(tmp_path / "log", slow_path, "serve.drain_s=1") as server:
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            with concurrent.futures.ThreadPoolExecutor() as threads:
                url = server.url + "/v1/completions"
                whole = threads.submit(httpx.post, url, json=body | {"stream": False}, timeout=30)
                server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 2)
                engine, began = server.engine_pid(), time.perf_counter()
                server.process.send_signal(signal.SIGTERM)
                got = []
                try:
                    got.extend(lines)
                except httpx.RemoteProtocolError:
                    got.append("cut off")
                refused = whole.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log.read_text()
        assert time.perf_counter() - began < 10
        assert "data: [DONE]" not in got
        assert not psutil.pid_exists(engine)


def test_a_second_signal_ends_at_once(slow_server):
    """List, 23: who cannot wait for the drain says so again."""
    server = slow_server
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as answer:
        lines = answer.iter_lines()  # held: the stream ends with it
        assert next(lines).startswith("data: ")
        engine = server.engine_pid()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 130
    assert not psutil.pid_exists(engine)
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log
    assert log.count("interrupted") == 1
