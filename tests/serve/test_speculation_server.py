"""What clients and Prometheus see of draft tokens."""

import httpx
import pytest

LOOP = "the red boat and the blue hat and the old fox and " * 3


@pytest.fixture(scope="module")
def speculating(tmp_path_factory, tiny_path, start_server):
    words = ("serve.speculate=lookup", "serve.draft_tokens=8", "serve.kv_type=f32", "serve.flash_attn=false")
    with start_server(tmp_path_factory.mktemp("log") / "server.log", tiny_path, *words) as server:
        yield server


def test_usage_and_metrics_count_draft_tokens_where_there_are_any(speculating, server):
    body = {"prompt": LOOP, "max_tokens": 60, "temperature": 0}
    plain = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
    assert "completion_tokens_details" not in plain["usage"]
    answers = [httpx.post(speculating.url + "/v1/completions", json=body, timeout=60).json() for _ in range(2)]
    details = [each["usage"]["completion_tokens_details"] for each in answers]
    accepted = sum(each["accepted_prediction_tokens"] for each in details)
    rejected = sum(each["rejected_prediction_tokens"] for each in details)
    assert accepted > 0
    metrics = speculating.metrics()
    assert metrics["slm_drafted_tokens_accepted_total"] == accepted
    assert metrics["slm_drafted_tokens_total"] == accepted + rejected
    assert {each["usage"]["completion_tokens"] for each in answers} == {60}
    for without in ({"seed": 1}, {"speculate": False}):
        usage = httpx.post(speculating.url + "/v1/completions", json={**body, **without}, timeout=60).json()["usage"]
        assert "completion_tokens_details" not in usage
    usage = httpx.post(
        speculating.url + "/v1/completions", json={**body, "seed": 1, "speculate": True}, timeout=60
    ).json()
    assert usage["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert server.metrics()["slm_drafted_tokens_total"] == 0


def test_a_draft_of_another_vocabulary_is_one_line(tmp_path, tiny_path, chat_path, start_server):
    words = ("serve.speculate=draft", f"serve.draft_model={chat_path}")
    server = start_server(tmp_path / "log", tiny_path, *words)
    with pytest.raises(AssertionError, match="a draft must be a run with the same tokenizer"), server:
        pass
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
