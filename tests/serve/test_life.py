"""Deaths, queues, disconnects and ends of the server process."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest

from slm.serve.engine.process import PROCESS_NAME
from tests.helpers import REPOSITORY, programs

LONG = {"prompt": "once upon a time", "max_tokens": 4000, "stream": True, "ignore_eos": True}
SHORT = {"prompt": "hello", "max_tokens": 2}
LONG_FORM = {"type": "json_schema", "name": "x", "schema": {"type": "string", "minLength": 1000}}
IN_FLIGHT = "slm_sequences_in_flight"


@contextlib.contextmanager
def stream(server, body=LONG):
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=20) as answer:
        assert answer.status_code == 200, answer.read()
        yield answer.iter_lines()


def post(server, body=SHORT, **more):
    return httpx.post(server.url + "/v1/completions", json=body, **{"timeout": 20, **more})


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory, slow_path, start_server):
    """One slot, two places to wait."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with start_server(log, slow_path, "serve.slots=1", "serve.queue=2") as server:
        yield server


@pytest.fixture
def lasting_server(one_for_all):
    """The file's server, as the test before has left it: with an engine, and nothing to do."""
    one_for_all.wait(lambda: httpx.get(one_for_all.url + "/health").status_code == 200)
    one_for_all.wait(lambda: one_for_all.metrics()[IN_FLIGHT] == 0)
    return one_for_all


def test_engine_killed_and_back(lasting_server):
    server = lasting_server
    restarts = server.metrics()["slm_engine_restarts_total"]
    pid = server.engine_pid()
    with stream(server) as lines:
        assert next(lines).startswith("data: ")
        os.kill(pid, signal.SIGKILL)
        rest = [line for line in lines if line]
    assert "engine_died" in rest[-1]
    assert "data: [DONE]" not in rest
    seen = set()

    def back():
        seen.add(httpx.get(server.url + "/health").status_code)
        return seen and httpx.get(server.url + "/health").status_code == 200

    assert server.wait(back) < 10
    assert post(server).json()["usage"]["completion_tokens"] == 2
    assert server.engine_pid() != pid
    assert server.metrics()["slm_engine_restarts_total"] == restarts + 1
    assert server.metrics()[IN_FLIGHT] == 0


def test_a_chat_and_a_response_that_break_off(lasting_server):
    """An error is a separate kind of event, and nothing says that all went well."""
    server = lasting_server
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True, "stream": True}),
        # No field keeps a response from ending early: the schema does.
        ("/v1/responses", {"input": "x", "stream": True, "text": {"format": LONG_FORM}}),
    ):
        server.wait(lambda: httpx.get(server.url + "/health").status_code == 200)
        with httpx.stream("POST", server.url + path, json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines)
            os.kill(server.engine_pid(), signal.SIGKILL)
            rest = [line for line in lines if line]
        last = json.loads(rest[-1].removeprefix("data: "))
        assert (last.get("error") or last)["code"] == "engine_died"
        assert "data: [DONE]" not in rest
        assert not any(line.startswith(("event: response.completed", "event: response.incomplete")) for line in rest)
        if path == "/v1/responses":
            assert rest[-2] == "event: error"
            assert last["type"] == "error"


def test_health_and_requests_while_the_engine_is_down(slow_server, slow_path):
    server = slow_server
    pid = server.engine_pid()
    os.kill(pid, signal.SIGSTOP)  # frozen: the server must go on answering
    began = time.perf_counter()
    assert httpx.get(server.url + "/health").status_code == 200
    assert time.perf_counter() - began < 1
    # Another one of a model this small is there in no time: without its file it is not.
    away = slow_path.rename(slow_path.with_suffix(".away"))
    try:
        os.kill(pid, signal.SIGKILL)
        server.wait(lambda: httpx.get(server.url + "/health").status_code == 503)
        answer = post(server)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "engine_unavailable"
    finally:
        away.rename(slow_path)
    server.wait(lambda: post(server).status_code == 200)


def test_a_reader_that_leaves_frees_the_slot(lasting_server):
    server = lasting_server
    with stream(server) as lines:
        next(lines)
        assert server.metrics()[IN_FLIGHT] == 1
    assert server.wait(lambda: server.metrics()[IN_FLIGHT] == 0) < 1
    # Not streaming, and still in work: the client gives up.
    with pytest.raises(httpx.ReadTimeout):
        post(server, {**LONG, "stream": False}, timeout=0.3)
    assert server.wait(lambda: server.metrics()[IN_FLIGHT] == 0) < 1
    # Waiting in the queue: the same.
    with stream(server) as lines:
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            post(server, timeout=0.3)
        assert server.wait(lambda: server.metrics()[IN_FLIGHT] == 1) < 1
        next(lines)
    server.wait(lambda: server.metrics()[IN_FLIGHT] == 0)
    assert post(server).status_code == 200


def test_a_named_stream_goes_on_without_its_reader(slow_server):
    server = slow_server
    address, named = server.url + "/v1/stream?conv_id=fox", {"X-Conversation-Id": "fox"}
    short = {**LONG, "max_tokens": 60}
    with httpx.stream("POST", server.url + "/v1/completions", json=short, headers=named, timeout=20) as answer:
        begun = next(answer.iter_raw())
    whole = httpx.get(address, timeout=20).content
    assert whole.startswith(begun)
    assert whole.endswith(b"data: [DONE]\n\n")
    assert httpx.get(f"{address}&from={len(whole) - 6}").content == whole[-6:]
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG, headers=named, timeout=20) as answer:
        next(answer.iter_raw())
    assert server.metrics()[IN_FLIGHT] == 1
    assert httpx.delete(address).status_code == 204
    server.wait(lambda: server.metrics()[IN_FLIGHT] == 0)
    assert httpx.get(address).json()["error"]["code"] == "stream_not_found"
    # One that runs does not disturb the server's end.
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG, headers=named, timeout=20) as answer:
        next(answer.iter_raw())
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert "Traceback" not in server.log.read_text()


def test_a_full_queue_answers_429_and_the_waiting_are_served(lasting_server):
    server = lasting_server
    answers = []
    with stream(server) as lines:
        next(lines)
        waiting = [threading.Thread(target=lambda: answers.append(post(server))) for _ in range(2)]
        for thread in waiting:
            thread.start()
        server.wait(lambda: server.metrics()[IN_FLIGHT] == 3)
        refused = post(server)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        began = time.perf_counter()
        assert httpx.get(server.url + "/health").status_code == 200
        assert time.perf_counter() - began < 0.5
    for thread in waiting:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize(
    ("number", "pause_s"),
    [(signal.SIGTERM, pause_s) for pause_s in (0.0, 0.1, 0.3)]
    + [(signal.SIGINT, pause_s) for pause_s in (0.02, 0.2, 0.4)],
)
def test_two_signals_to_an_idle_server(tmp_path, tiny_path, start_server, number, pause_s):
    """Whenever the second comes: status 0 and no traceback. A terminal's Ctrl-C goes to the engine, too."""
    send = os.killpg if number == signal.SIGINT else os.kill
    with start_server(tmp_path / "log", tiny_path) as server:
        send(server.process.pid, number)
        time.sleep(pause_s)
        with contextlib.suppress(ProcessLookupError):
            send(server.process.pid, number)
        assert server.process.wait(10) == 0
        log = server.log.read_text()
    assert "Traceback" not in log
    assert "Error" not in log
    assert "interrupted" not in log
    assert log.splitlines().count("stopping") == 1


@pytest.mark.parametrize("pause_s", [0.02, 0.1, 0.3])
def test_two_signals_while_a_model_loads(tmp_path, slow_path, pause_s):
    """One line and the status of an interrupted command, whenever the second comes."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "slm.serve", f"model={slow_path}", "port=0", "serve.threads=1"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        # Its engine is there, but has not loaded the model.
        deadline = time.monotonic() + 30
        while not any(each.name() == PROCESS_NAME for each in psutil.Process(process.pid).children(recursive=True)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(pause_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()
    text = log.read_text()
    assert "Traceback" not in text
    assert text.splitlines()[-1] == "interrupted"
    assert text.splitlines().count("stopping") == 1, text
    assert text.count("interrupted") == 1


def test_the_engine_does_not_outlive_a_killed_server(slow_server):
    server = slow_server
    engine = server.engine_pid()
    server.process.kill()
    server.process.wait()
    import psutil

    _, alive = psutil.wait_procs([psutil.Process(engine)] if psutil.pid_exists(engine) else [], timeout=5)
    assert not alive


def test_mistakes_at_the_start_are_one_line(tmp_path, tiny_path):
    def serve(*words):
        errors = programs.run("slm.serve", list(words), tmp_path, status=2)
        assert "Traceback" not in errors
        (line,) = errors.strip().splitlines()
        return line

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = serve(f"model={tiny_path}", f"port={port}")
        assert f"port {port} on 127.0.0.1 is in use" in line
    line = serve(f"model={tiny_path.parent / 'tiny.ggux'}")
    assert "does not exist" in line
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_path.read_bytes()[:100_000])
    line = serve(f"model={damaged}", "port=0")
    assert "damaged" in line
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(tiny_path.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"))
    line = serve(f"model={renamed}", "port=0")
    assert "blk.1.ffn_up" in line
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    line = serve(f"model={tmp_path / 'run'}")
    assert "make export MODEL=" in line
    line = serve(f"model={tiny_path}", "serve.slot=1")
    assert "serve.slots" in line
    line = serve()
    assert "model must be given" in line


def test_starting_imports_nothing_heavy():
    code = (
        "import sys, importlib, pkgutil, serve\n"
        "for m in pkgutil.walk_packages(serve.__path__, 'serve.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
        "print([n for n in ('torch', 'transformers', 'datasets', 'tokenizers') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
