"""A line for every request, with what it cost and without what was said."""

import fcntl
import json
import os
import re
import sys

import httpx
import pytest

from slm.serve.api import access_log
from tests.helpers import programs

SAID = "once upon a secret"


@pytest.fixture(scope="module")
def logged(tmp_path_factory, tiny_path, start_server):
    folder = tmp_path_factory.mktemp("access")
    words = ["serve.access_log=json", f"serve.access_log_file={folder / 'access.jsonl'}", "serve.api_keys=[first]"]
    words.append("serve.only_known_models=true")
    with start_server(folder / "server.log", tiny_path, *words, env={"SLM_API_KEY": "second"}) as server:
        server.access = folder / "access.jsonl"
        yield server


def lines(server):
    return [json.loads(line) for line in server.access.read_text().splitlines()]


def call(server, path="/v1/completions", key="second", request_id=None, **body):
    """The answer and its line."""
    headers = {"Authorization": f"Bearer {key}"} | ({"x-request-id": request_id} if request_id else {})
    answer = httpx.post(server.url + path, json=body, headers=headers, timeout=30)
    found = []

    def there():
        found[:] = [each for each in lines(server) if each["id"] == answer.headers["x-request-id"]]
        return found

    server.wait(there)
    (line,) = found
    return answer, line


def test_a_completion(logged):
    answer, line = call(logged, prompt=SAID, max_tokens=5, ignore_eos=True, request_id="mine-1")
    usage = answer.json()["usage"]
    assert answer.headers["x-request-id"] == "mine-1"
    assert line["route"] == "/v1/completions"
    assert (line["method"], line["status"], line["model"], line["stream"]) == ("POST", 200, "tiny", False)
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == 5
    assert line["cached_tokens"] == 0
    assert line["finish_reason"] == "length"
    assert line["error"] is None
    assert 0 <= line["queue_s"] <= line["ttft_s"] <= line["total_s"] < 30
    assert line["client"] == "127.0.0.1"
    assert line["key"] == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert "secret" not in logged.access.read_text()


def test_a_stream_with_several_choices_and_a_cached_prompt(logged):
    prompt = "the old fox and the little bird went to the river to find the red boat " * 2
    call(logged, prompt=prompt, max_tokens=1)
    _, line = call(logged, prompt=prompt, max_tokens=3, n=2, stream=True, ignore_eos=True)
    assert line["stream"] is True
    assert line["completion_tokens"] == 6
    assert line["cached_tokens"] > 16
    assert line["ttft_s"] is not None


def test_other_routes(logged):
    _, line = call(logged, "/v1/embeddings", input="a fox")
    assert (line["prompt_tokens"] > 0, line["completion_tokens"], line["finish_reason"]) == (True, 0, None)
    _, line = call(logged, "/tokenize", content=SAID)
    assert (line["model"], line["prompt_tokens"]) == ("tiny", None)
    _, line = call(logged, "/v1/chat/completions", messages=[{"role": "user", "content": SAID}], max_tokens=2)
    assert line["completion_tokens"] == 2


def test_errors_have_their_code(logged):
    for body, status, error in (
        ({"prompt": "x", "temperature": -1}, 400, "invalid_value"),
        ({"prompt": [7] * 600}, 400, "context_length_exceeded"),
        ({"prompt": "x", "model": "other"}, 404, "model_not_found"),
    ):
        _, line = call(logged, **body)
        assert (line["status"], line["error"]) == (status, error)
    answer, line = call(logged, key="wrong", prompt="x")
    assert answer.status_code == 401
    assert (line["status"], line["error"], line["key"]) == (401, "invalid_api_key", 0)
    # A name that could break a line or a header is not taken over.
    for bad in ("a b", "x" * 200, "<script>"):
        answer, _ = call(logged, prompt="x", request_id=bad, max_tokens=1)
        assert answer.headers["x-request-id"].startswith("req_")


def test_a_client_that_leaves(tmp_path, slow_path, start_server):
    words = ["serve.access_log=json", f"serve.access_log_file={tmp_path / 'access.jsonl'}"]
    with start_server(tmp_path / "server.log", slow_path, *words) as server:
        server.access = tmp_path / "access.jsonl"
        body = {"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=20) as answer:
            next(answer.iter_lines())
        server.wait(lambda: lines(server))
        (line,) = lines(server)
        assert line["status"] == 499
        assert line["finish_reason"] is None
        # Renamed, as logrotate does: a new file is begun.
        server.access.rename(tmp_path / "access.1")
        assert httpx.get(server.url + "/health").status_code == 200
        server.wait(lambda: server.access.exists() and lines(server))
        assert lines(server)[0]["route"] == "/health"


def test_a_log_that_cannot_be_opened_again_is_lost_and_no_request_is(tmp_path, tiny_path, start_server):
    folder = tmp_path / "logs"
    folder.mkdir()
    with start_server(tmp_path / "server.log", tiny_path, f"serve.access_log_file={folder / 'access'}") as server:
        with httpx.Client() as client:
            assert client.get(server.url + "/health").status_code == 200
            server.wait((folder / "access").exists)
            folder.rename(tmp_path / "elsewhere")
            for _ in range(3):
                assert client.get(server.url + "/health").status_code == 200
        server.wait(lambda: "the access log cannot be written" in server.log.read_text())
        log = server.log.read_text()
        assert "Traceback" not in log
        assert log.count("the access log cannot be written") == 1


def test_a_terminal_that_is_stopped_stops_nobody(monkeypatch):
    """A pipe that nobody reads, as a terminal after Ctrl-S: lines wait in the thread, and then they are counted."""
    monkeypatch.setattr(access_log, "_MOST_WAITING", 50)
    read, write = os.pipe()
    with open(write, "w") as stream:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        monkeypatch.setattr(sys, "stdout", stream)
        writer = access_log.Writer("json", None)
        scope = {"method": "GET", "path": "/" + "x" * 190}
        for _ in range(200):
            writer.line(scope, access_log.Record(id="r", began=0.0), 200)
        writer.close(timeout_s=0.01)
        with open(read) as reader:
            first = json.loads(reader.readline())
            assert (first["route"], first["status"]) == (scope["path"], 200)
            n_lost = writer._n_lost
            assert 100 < n_lost < 160
            writer.line(scope, access_log.Record(id="r", began=0.0), 200)
            read_lines = [reader.readline() for _ in range(200 - n_lost - 1)]
            assert all(read_lines)
            monkeypatch.undo()


def test_the_line_for_people(server):
    before = len(server.log.read_text().splitlines())
    body = {"prompt": SAID, "max_tokens": 3, "ignore_eos": True}
    httpx.post(server.url + "/v1/completions", json=body, headers={"x-request-id": "abc"})
    httpx.get(server.url + "/nothing/%0A/GET")
    server.wait(lambda: len(server.log.read_text().splitlines()) >= before + 2)
    first, second = server.log.read_text().splitlines()[before : before + 2]
    assert re.fullmatch(
        r"\S+ 127\.0\.0\.1 POST /v1/completions 200 [\d.]+s tiny \d+\+3 tokens first after [\d.]+s length abc", first
    )
    # A line stays a line.
    assert r" GET /nothing/\n/GET 404 " in second
    assert "secret" not in first


def test_off_and_mistakes(tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.access_log=off") as server:
        before = server.log.read_text()
        answer = httpx.get(server.url + "/health")
        assert answer.headers["x-request-id"]
        assert server.log.read_text() == before
    for words, part in (
        (["serve.access_log=xml"], "xml"),
        ([f"serve.access_log_file={tmp_path / 'no' / 'x'}"], "cannot be opened"),
        (["serve.access_log=off", "serve.access_log_file=x"], "set it to text or json"),
    ):
        errors = programs.run("slm.serve", [f"model={tiny_path}", "port=0", *words], tmp_path, status=2)
        assert part in errors
        assert len(errors.strip().splitlines()) == 1, errors
