import json
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.serve.bench import __main__ as bench_main
from tests.helpers import REPOSITORY, programs


def bench(*words, timeout=120):
    command = [sys.executable, "-m", "slm.serve.bench", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout)


def test_our_server_alone(tiny_path):
    words = ["bench.clients=[1,2]", "bench.rounds=2", "bench.prompt_words=20", "bench.prefix_tokens=80"]
    words += [
        "bench.new_tokens=6",
        "bench.open=[0.1]",
        "bench.open_s=1",
        "bench.extra_clients=[2]",
        "bench.extra=[prefix,json,repeat]",
        "bench.busy=[2]",
        "bench.busy_s=0.05",
    ]
    words += ["bench.llama_server=off", "bench.llama_cpp_server=off", "serve.threads=1", "serve.slots=2"]
    done = bench(f"model={tiny_path}", *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    ours = record["servers"]["ours"]
    assert record["servers"].keys() == {"ours"}
    assert set(ours) == {"plain", "open", "prefix", "json", "repeat", "busy"}
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
    memory = record["memory_bound"]
    assert memory["weight_bytes"] < tiny_path.stat().st_size
    assert memory["decode"]["1"] < memory["decode"]["2"] < 2 * memory["decode"]["1"]
    busy, quiet = ours["busy"]["2"]["tokens_per_s"], ours["plain"]["2"]["tokens_per_s"]
    assert record["busy_to_quiet"] == {"ours": {"2": pytest.approx(busy / quiet)}}
    assert "clients" in done.stdout, "a table for people"
    assert "One other busy process" in done.stdout


def test_mistakes_are_told_in_a_line(tiny_path, tmp_path):
    for word, part in (
        ("bench.extra=[sufix]", "prefix"),
        ("bench.rounds=0", "bench.rounds"),
        ("bench.busy=[0]", "bench.busy"),
        ("bench.extra_clients=[]", "bench.extra_clients"),
        ("bench.llama_server=/nowhere/llama-server", "does not exist"),
    ):
        said = programs.run("slm.serve.bench", [f"model={tiny_path}", word], tmp_path, status=2)
        assert part in said
        assert len(said.splitlines()) == 1, said


def test_options_of_our_server_may_be_given_in_both_ways(tiny_path, monkeypatch):
    seen = []

    def contenders(options):
        seen.append(options.options)
        raise UserError("that was all")

    monkeypatch.setattr(bench_main, "contenders", contenders)
    monkeypatch.setattr(bench_main.signal, "signal", lambda *_: None)
    with pytest.raises(UserError, match="that was all"):
        bench_main.main([f"model={tiny_path}", "bench.options=['serve.slots=3']", "serve.threads=1"])
    assert seen == [["serve.slots=3", "serve.threads=1"]]
