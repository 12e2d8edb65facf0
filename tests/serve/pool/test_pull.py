"""Models of the Hub that a request names: a real server and a Hub on this machine."""

import json

import httpx
import pytest

from slm.data.errors import UserError
from slm.serve.config import ServerOptions
from tests.helpers.model_hub import ModelHub, Repository

CARD = {"license": "apache-2.0"}


@pytest.fixture(scope="module")
def hub():
    hub = ModelHub({})
    yield hub
    hub.stop()


@pytest.fixture(scope="module")
def server(hub, tmp_path_factory, tiny_path, chat_path, start_server):
    """It may download what is of ``good``, 0.02 GB of it."""
    folder = tmp_path_factory.mktemp("pull")
    body = chat_path.read_bytes()
    hub.repositories["good/chat"] = Repository({"chat-Q8_0.gguf": body, "README.md": b"# Chat"}, CARD)
    hub.repositories["good/large"] = Repository({"large-Q8_0.gguf": body + bytes(20_000_000)}, CARD)
    hub.repositories["good/none"] = Repository({"README.md": b"# None"}, CARD)
    hub.repositories["bad/chat"] = hub.repositories["good/chat"]
    env = {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1"}
    words = ["serve.pull=[good/*]", "serve.pull_gb=0.02", "serve.tune=off"]
    with start_server(folder / "log", tiny_path, *words, env={**env, "HF_HUB_OFFLINE": "0"}) as server:
        yield server


def chat(server, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    return httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)


def test_a_request_has_its_model_downloaded(server, hub):
    answer = chat(server, "good/chat:Q8_0")
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "good/chat:Q8_0"
    assert answer.json()["usage"]["completion_tokens"] >= 1
    listed = [each["id"] for each in httpx.get(server.url + "/v1/models").json()["data"]]
    assert listed == ["tiny", "good/chat:Q8_0"]
    n_asked = len(hub.asked)
    assert chat(server, "good/chat:Q8_0").status_code == 200
    assert len(hub.asked) == n_asked
    assert 'model="good/chat:Q8_0"' in httpx.get(server.url + "/metrics").text


def test_what_is_not_allowed_is_not_asked_for(server, hub):
    n_asked = len(hub.asked)
    for model in ("bad/chat", "bad/chat:Q8_0", "good", "../good/chat", "x" * 500):
        answer = chat(server, model)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert len(hub.asked) == n_asked


def test_what_cannot_be_had_is_one_line(server, hub):
    for model, said in (
        ("good/large", "serve.pull_gb"),
        ("good/none", "good/none holds no GGUF file"),
        ("good/unknown", "no model good/unknown on 127"),
        ("good/chat:Q3_K", "has no GGUF file Q3_K"),
    ):
        answer = chat(server, model)
        assert answer.status_code == 503
        assert said in answer.json()["error"]["message"]
        n_asked = len(hub.asked)
        assert chat(server, model).status_code == 503  # again at once: nobody is asked
        assert len(hub.asked) == n_asked
    assert "Traceback" not in server.log.read_text()
    assert chat(server, "default").status_code == 200


def test_loading_tells_how_far_it_is(server, hub):
    hub.repositories["good/second"] = hub.repositories["good/chat"]
    body = {"model": "good/second", "stream": True}
    with httpx.stream("POST", server.url + "/models/load", json=body, timeout=60) as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert [each.get("status") for each in events[:1]] == ["downloading"]
    assert events[-2:] == [{"status": "loading"}, {"success": True}]
    states = {each["id"]: each["status"] for each in httpx.get(server.url + "/v1/models").json()["data"]}
    assert states["good/second"] == "ready"
    with httpx.stream("POST", server.url + "/models/load", json=body | {"model": "bad/chat"}) as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert events[0]["error"]["code"] == "model_not_found"


def test_without_a_network_it_is_one_line(tmp_path, tiny_path, start_server):
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    with start_server(tmp_path / "log", tiny_path, "serve.pull=[*]", "serve.tune=off", env=env) as server:
        answer = chat(server, "any/model")
        assert answer.status_code == 503
        assert "could not be reached for any/model" in answer.json()["error"]["message"]
        assert "Traceback" not in server.log.read_text()


def test_patterns_that_can_be_no_names():
    for wrong in ("good", "a/b/c", "/x", "a b/c"):
        with pytest.raises(UserError, match="is no name of the Hub"):
            ServerOptions(pull=[wrong])
    ServerOptions(pull=["*", "org/*", "org/name-*GGUF"])
    with pytest.raises(UserError, match="pull_gb is 0"):
        ServerOptions(pull_gb=0)
