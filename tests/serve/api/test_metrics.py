import re

import httpx

from serve.pool.histogram import Histogram


def test_buckets_are_cumulative():
    histogram = Histogram((0.1, 1.0))
    for seconds, times in ((0.05, 1), (0.1, 2), (0.5, 1), (7.0, 1)):
        histogram.observe(seconds, times)
    assert histogram.lines("x") == [
        'x_bucket{le="0.1"} 3',
        'x_bucket{le="1.0"} 4',
        'x_bucket{le="+Inf"} 5',
        "x_sum 7.750000",
        "x_count 5",
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
    text = httpx.get(server.url + "/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name = re.fullmatch(r'(\w+)(\{\w+="[^"]*"\})? [\d.e+-]+', line).group(1)
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in kinds or kinds[base] == "histogram", line
