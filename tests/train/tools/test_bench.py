"""The benchmark of training steps, on a model so small that only its form is measured."""

import json

import pytest
import torch

from slm.configuration import load
from slm.data.errors import UserError
from slm.machine.probes import torch_threads
from slm.train.objective import sampled_softmax
from slm.train.tools import bench
from slm.train.tools.contenders import CONTENDERS, Task
from tests.helpers.small_run import OPTIONS


@pytest.mark.slow
def test_the_last_line_holds_our_speed_the_ratios_and_where_the_time_goes(capfd):
    assert (
        bench.main([*OPTIONS, "train.threads=2", "bench.steps=2", "bench.warmup=1", "bench.baselines=[eager,lora4]"])
        == 0
    )
    out = capfd.readouterr().out
    record = json.loads(out.splitlines()[-1])
    assert list(record["contenders"]) == ["ours", "eager", "lora4"]
    for each in record["contenders"].values():
        assert each["tokens_per_s"] > 0
        assert each["first_step_s"] > 0
        assert each["peak_rss_gb"] > 0
    eager = record["contenders"]["eager"]["tokens_per_s"]
    assert record["ratio_eager"] == pytest.approx(record["tokens_per_s"] / eager)
    assert record["ratio_hf_trainer"] is None
    assert record["gemm_peak_fraction"] == pytest.approx(record["gflops"] / record["gemm_peak_gflops"])
    assert record["register_peak_fraction"] < 1
    assert record["roofline"]["memory_read_gb_per_s"] > 0.1
    assert "operations for each byte read" in out
    assert sum(record["breakdown"].values()) == pytest.approx(1)
    assert set(record["breakdown"]) == {"forward and backward", "optimizer", "data wait"}
    assert (record["precision"], record["threads"]) == ("f32", 2)
    assert record["shape"] == {"seq_len": 32, "micro_batch": 4, "grad_accum": 1}
    assert "of GEMM peak" in out
    assert "where a step's time goes: " in out


@pytest.mark.slow
def test_our_step_is_timed_with_the_runs_sampled_words_and_a_plain_loop_with_all(monkeypatch):
    """PyTorch's compiler, which takes a minute here, is tested elsewhere."""
    counts = []
    counted = sampled_softmax.draw
    monkeypatch.setattr(sampled_softmax, "draw", lambda *args: counts.append(args[2]) or counted(*args))
    config = load(bench.BenchConfig, "bench_train", [*OPTIONS, "train.threads=1", "train.sampled_softmax=128"])
    task = Task(config=config, grad_accum=1, steps=1, warmup=1)
    with torch_threads(1), torch.compiler.set_stance("force_eager"):
        assert CONTENDERS["compiled"](task)["tokens_per_s"] > 0
        assert set(counts) == {128}
        counts.clear()
        assert CONTENDERS["eager"](task)["tokens_per_s"] > 0
    assert not counts


def test_the_options_are_checked_before_anything_is_measured():
    assert set(load(bench.BenchConfig, "bench_train", []).bench.baselines) <= set(CONTENDERS)
    for option, message in (
        ("bench.steps=0", "at least 1"),
        ("bench.warmup=0", "at least 1"),
        ("bench.baselines=[eagr]", "there is no 'eagr'"),
    ):
        with pytest.raises(UserError, match=message):
            bench.main([option])
