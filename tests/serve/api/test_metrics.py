import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from slm.serve.api.metrics import CONTENT_TYPE, exposition
from slm.serve.pool.counters import Counters


def served(name: str, *, loaded: bool) -> SimpleNamespace:
    """A model with figures that are all different."""
    counters = Counters(
        loads=2,
        restarts=1,
        prompt_tokens=1_000_000,
        cached_tokens=300,
        prefill_s=500.0,
        decode_s=2.0,
        completion_tokens=70,
        drafted_tokens=9,
        accepted_tokens=4,
        embedding_tokens=5,
        dropped_messages=6,
        preempted=3,
        finished=Counter(stop=3, length=2),
    )
    counters.ttft.observe(0.02)
    counters.ttft.observe(500.0)
    counters.itl.observe(0.004, 3)
    counters.e2e.observe(1.5)
    stats = SimpleNamespace(running=2, waiting=1, kv_used=77, preempted=4, threads=2, steps=8, in_steps=20)
    engine = SimpleNamespace(ready=True, n_in_flight=3, stats=stats)
    info = SimpleNamespace(kv_tokens=2048)
    model = SimpleNamespace(engine=engine, info=info, n_bytes=123_456_789) if loaded else None
    return SimpleNamespace(name=name, counters=counters, loaded=model, n_waiting=1)


def parsed(text: str) -> list[tuple]:
    families = text_string_to_metric_families(text)
    return [
        (
            each.name,
            each.type,
            each.documentation,
            sorted((at.name, sorted(at.labels.items()), at.value) for at in each.samples),
        )
        for each in families
    ]


@pytest.mark.parametrize("name", ["one_model", "two_models"])
def test_the_exposition_by_hand_and_by_prometheus_client_are_equal(name):
    """The files were written by the code that made the text itself, from the same figures."""
    if name == "one_model":
        pool = SimpleNamespace(models={"x": served("x", loaded=True)}, several=False, budget=None)
    else:
        odd = 'odd "name"\\'
        models = {"x": served("x", loaded=True), odd: served(odd, loaded=False)}
        pool = SimpleNamespace(models=models, several=True, budget=1 << 33)
    expected = (Path(__file__).parent / f"metrics_{name}.txt").read_text()
    found = exposition(pool).decode()
    assert parsed(found) == parsed(expected)
    assert [line for line in found.splitlines() if line[0] == "#"] == [
        line for line in expected.splitlines() if line[0] == "#"
    ]


def test_what_is_counted_over_http(server):
    before = server.metrics()
    body = {"prompt": "once upon a time", "max_tokens": 10, "ignore_eos": True, "n": 2}
    httpx.post(server.url + "/v1/completions", json=body)

    def grown(name):
        return server.metrics()["slm_" + name] - before["slm_" + name]

    assert grown("completion_tokens_total") == 20
    assert grown("time_to_first_token_seconds_count") == 2
    assert grown("request_seconds_count") == 2
    # Every token after a sequence's first text; text may be held back for a character's last byte.
    assert 0 < grown("inter_token_latency_seconds_count") <= 18
    assert 0 < grown("time_to_first_token_seconds_sum") <= grown("request_seconds_sum")
    server.wait(lambda: server.metrics()["slm_sequences_running"] == 0)
    assert server.metrics()["slm_kv_tokens_used"] == 0
    assert server.metrics()["slm_kv_tokens"] >= 2048


def test_llama_servers_names(server):
    """They equal the answers' timings, also where the prompt is cached."""
    body = {"prompt": "the quick brown fox jumps over the lazy dog " * 3, "n_predict": 4, "ignore_eos": True}
    before, timings = server.metrics(), []
    for _ in range(2):
        timings.append(httpx.post(server.url + "/completion", json=body).json()["timings"])
    server.wait(lambda: server.metrics()["llamacpp:requests_processing"] == 0)
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after if name.startswith("llamacpp:")}
    assert timings[1]["cache_n"] > 0
    assert grown["llamacpp:prompt_tokens_total"] == sum(each["prompt_n"] for each in timings)
    assert grown["llamacpp:prompt_tokens_cached_total"] == sum(each["cache_n"] for each in timings)
    assert grown["llamacpp:tokens_predicted_total"] == 8
    assert grown["llamacpp:n_decode_total"] >= 8
    assert grown["llamacpp:prompt_seconds_total"] > 0
    assert grown["llamacpp:tokens_predicted_seconds_total"] > 0
    assert after["llamacpp:predicted_tokens_seconds"] > 0
    assert after["llamacpp:n_busy_slots_per_decode"] >= 1


def test_the_engine_tells_its_state_while_it_works(slow_server):
    server = slow_server
    body = {"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=20) as answer:
        lines = answer.iter_lines()  # held: the stream ends with it
        next(lines)
        server.wait(lambda: server.metrics()["slm_sequences_running"] == 1)
        server.wait(lambda: server.metrics()["slm_kv_tokens_used"] > 5)
    server.wait(lambda: server.metrics()["slm_sequences_running"] == 0)
    assert server.metrics()["slm_request_seconds_count"] == 0  # it did not finish


def test_the_format(server):
    answer = httpx.get(server.url + "/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name = re.fullmatch(r'([\w:]+)(\{\w+="[^"]*"\})? [\d.e+-]+', line).group(1)
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in kinds or kinds[base] == "histogram", line
