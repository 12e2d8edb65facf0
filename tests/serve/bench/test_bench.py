import json
import subprocess
import sys

import pytest

from serve.bench.bench import quantile, summary
from serve.bench.limit import Rates, measure_here
from serve.bench.load import Load, Outcome, Report, _events, run_load
from tests.helpers import REPOSITORY


def bench(*words, timeout=120):
    command = [sys.executable, "-m", "serve.bench", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout)


def test_our_server_alone(tiny_path):
    words = ["bench.clients=[1,2]", "bench.rounds=2", "bench.prompt_words=20", "bench.prefix_tokens=80"]
    words += ["bench.new_tokens=6", "bench.open=[0.01]", "bench.open_s=1", "bench.extra_clients=2"]
    words += ["bench.llama_server=off", "bench.llama_cpp_server=off", "serve.threads=1", "serve.slots=2"]
    done = bench(f"model={tiny_path}", *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    ours = record["servers"]["ours"]
    assert record["servers"].keys() == {"ours"}
    assert set(ours) == {"plain", "open", "prefix", "repeat"}
    assert set(ours["plain"]) == {"1", "2"}
    for by_n in ours.values():
        for each in by_n.values():
            assert each["failed"] == 0, each["error"]
            assert each["tokens_per_s"] > 0
            assert 0 < each["ttft_p50_s"] <= each["ttft_p95_s"]
    assert ours["prefix"]["2"]["cached_tokens"] > 0
    for n, limit in record["limit"].items():
        assert 0 < limit["tokens_per_s"] < limit["decode"]
        assert record["ratios"]["limit"][n] == pytest.approx(ours["plain"][n]["tokens_per_s"] / limit["tokens_per_s"])
    assert "clients" in done.stdout, "a table for people"


def test_mistakes_are_told_in_a_line(tiny_path):
    for word, part in (
        ("bench.extra=[sufix]", "prefix"),
        ("bench.rounds=0", "bench.rounds"),
        ("bench.llama_server=/nowhere/llama-server", "does not exist"),
    ):
        done = bench(f"model={tiny_path}", word)
        assert done.returncode == 2
        assert part in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_server_that_is_not_there_or_says_no_is_counted_as_failed(tiny_path, tmp_path):
    import http.server
    import threading

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(503)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    bodies = [[{"prompt": "a", "max_tokens": 4}] * 2] * 2
    report = run_load(Load(port=server.server_port, clients=bodies, timeout_s=20))
    server.shutdown()
    figures = summary(report)
    assert (figures["requests"], figures["failed"]) == (4, 4)
    assert "503" in figures["error"]
    assert figures["tokens_per_s"] == 0


def test_events_are_found_wherever_the_chunks_end():
    whole = b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'
    for size in (1, 7, 16, 100):
        parts = [whole[i : i + size] for i in range(0, len(whole), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        assert [text for _, text in _events(body, 0)] == [b'{"a":1}', b'{"b":2}', b"[DONE]"]
        places = [at for at, _ in _events(body, 0)]
        assert places == sorted(places)
        assert places[-1] <= len(body)


def test_figures():
    outcomes = [Outcome(first_wave=i == 0, sent_at=0.0, ttft_s=0.1 * (i + 1), tokens=10, total_s=1.0) for i in range(3)]
    outcomes.append(Outcome(first_wave=False, sent_at=0.0, error="gone"))
    figures = summary(Report(outcomes=outcomes, wall_s=2.0, cpu_s=0.5))
    assert figures["tokens_per_s"] == 15
    assert figures["ttft_p50_s"] == pytest.approx(0.2)
    assert figures["wave_ttft_p50_s"] == pytest.approx(0.1)
    assert (figures["failed"], figures["error"], figures["cpu_client"]) == (1, "gone", 0.25)
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0], 0.95) == pytest.approx(2.9)
    assert Rates(batch=4, prefill=1000, decode=100).workload(100, 10) == pytest.approx(10 / (0.1 + 0.1))


def test_the_limit_in_this_process(tiny_path):
    one, three = measure_here(tiny_path, [1, 3], prompt_tokens=20, new_tokens=4)
    assert (one.batch, three.batch) == (1, 3)
    assert min(one.prefill, one.decode, three.prefill, three.decode) > 0
