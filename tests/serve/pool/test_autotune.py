import concurrent.futures
import json
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import slm
from slm.machine.hardware import n_threads
from slm.serve.config import ServerOptions
from slm.serve.pool import autotune
from slm.serve.pool.engine_settings import engine_config
from slm.serve.pool.memory_plan import read_facts


def free_cores(monkeypatch, free: float | None) -> None:
    """Free cores that ``autotune`` reads; None: unknown."""
    monkeypatch.setattr(autotune.FreeCores, "read", lambda self: free)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    free_cores(monkeypatch, None)  # other tests may run
    return tmp_path / "cache" / "slm" / "tune"


@pytest.fixture
def found() -> bytes:
    """What a measuring process writes: for tests of what becomes of it."""
    return json.dumps(asdict(autotune.untuned())).encode()


def test_measuring_gives_a_choice_that_runs(tiny_path, cache, monkeypatch):
    """Of a path that is relative, too: the process that measures has another folder."""
    monkeypatch.chdir(tiny_path.parent)
    facts = read_facts(tiny_path)
    chosen = autotune.tuned_for(Path(tiny_path.name), facts, "force")
    assert 1 <= chosen.threads <= n_threads()
    assert chosen.ubatch <= chosen.batch
    (record,) = cache.glob("*.json")
    assert json.loads(record.read_text()) == asdict(chosen)


def test_a_choice_made_while_other_programs_use_the_cores_is_not_kept(tiny_path, cache, monkeypatch, found):
    """Two threads that wait for a core lose against one, and the record would say so for ever."""
    monkeypatch.setattr(autotune, "_in_a_process", lambda job: found)
    monkeypatch.setattr(autotune, "compute_threads", lambda: 2)
    facts = read_facts(tiny_path)
    free_cores(monkeypatch, 1.2)
    assert autotune.tuned_for(tiny_path, facts, "force") == autotune.untuned()
    assert autotune.measured(tiny_path) is None
    assert list(cache.glob("*.json")) == []
    free_cores(monkeypatch, 1.8)
    autotune.tuned_for(tiny_path, facts, "force")
    assert len(list(cache.glob("*.json"))) == 1


def test_this_code_measures(tiny_path, cache, monkeypatch):
    """Not that of another copy of the package which happens to be installed."""
    seen = {}

    def run(command, *, cwd, **_):
        seen["package"] = Path(cwd, command[-1].partition(".")[0])
        raise OSError

    monkeypatch.setattr(autotune.subprocess, "Popen", run)
    autotune.tuned_for(tiny_path, read_facts(tiny_path), "force")
    assert seen["package"].samefile(Path(slm.__file__).parent)


def test_a_choice_is_kept_and_a_broken_record_is_not_believed(tiny_path, cache, monkeypatch, found):
    monkeypatch.setattr(autotune, "_in_a_process", lambda job: found)
    monkeypatch.setattr(autotune, "FEWEST_PARAMS", 0)
    facts = read_facts(tiny_path)
    assert autotune.tuned_for(tiny_path, facts, "auto") == autotune.untuned(), "the first start does not wait"
    assert autotune.unknown(tiny_path, facts, "auto")
    first = autotune.measured(tiny_path)
    assert not autotune.unknown(tiny_path, facts, "auto")
    (record,) = cache.glob("*.json")
    other = replace(first, ubatch=64)
    record.write_text(json.dumps(asdict(other)))
    assert autotune.tuned_for(tiny_path, facts, "auto") == other
    config = engine_config(ServerOptions(), tiny_path)
    assert config.ubatch == 64
    record.write_text(json.dumps(asdict(replace(first, flash_attn=False))))
    assert engine_config(ServerOptions(), tiny_path).flash_attn is False
    assert engine_config(ServerOptions(flash_attn=True), tiny_path).flash_attn is True
    for kept_open in ({"exact": True}, {"kv_type": "q8_0"}, {"kv_type_v": "q4_0"}):
        assert engine_config(ServerOptions(**kept_open), tiny_path).flash_attn is None
    assert autotune.tuned_for(tiny_path, facts, "off") == autotune.untuned()
    for text in ("{", "{}", '{"threads": 0}', '{"threads": 1, "ubatch": 4096}', '{"threads": "2"}', '{"cores": 2}'):
        record.write_text(text)
        assert autotune._read(record) is None
    record.write_text('{"threads": 1, "flash_attn": "no"}')
    assert autotune._read(record) is None
    assert autotune.unknown(tiny_path, facts, "auto")
    assert not autotune.unknown(tiny_path, facts, "off")


def test_a_machine_that_cannot_be_measured_is_served_all_the_same(tiny_path, cache, monkeypatch):
    def fails(*_, **__):
        raise subprocess.CalledProcessError(1, "measure")

    monkeypatch.setattr(autotune, "_in_a_process", fails)
    assert autotune.tuned_for(tiny_path, read_facts(tiny_path), "force") == autotune.untuned()
    assert list(cache.glob("*.json")) == []


def test_a_model_that_takes_too_long_is_not_measured_at_every_start(tiny_path, cache, monkeypatch, capsys):
    def too_slow(*_, **__):
        raise subprocess.TimeoutExpired("measure", 60)

    monkeypatch.setattr(autotune, "_in_a_process", too_slow)
    assert autotune.tuned_for(tiny_path, read_facts(tiny_path), "force") == autotune.untuned()
    assert "not done in 60 s" in capsys.readouterr().out
    (record,) = cache.glob("*.json")
    assert json.loads(record.read_text()) == asdict(autotune.untuned())


def test_a_measurement_can_be_stopped(tiny_path, cache, monkeypatch, tmp_path):
    """The server's end would wait for its thread."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(autotune.sys, "executable", str(slow))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        chosen = pool.submit(autotune.tuned_for, tiny_path, read_facts(tiny_path), "force")
        while not autotune._measuring:
            time.sleep(0.01)
        autotune.stop_measuring()
        assert chosen.result(timeout=30) == autotune.untuned()
    assert time.monotonic() - began < 30
    assert list(cache.glob("*.json")) == []


def test_slots_follow_from_memory(tiny_path, monkeypatch):
    facts = read_facts(tiny_path)
    per_slot = facts.kv_bytes("f16") * 256
    for slots, free in ((16, 1 << 40), (3, facts.file_bytes + 2 * 3.5 * per_slot), (1, 0)):
        monkeypatch.setattr(autotune, "available_bytes", lambda free=free: int(free))
        assert autotune.slots_for(facts, slot_bytes=per_slot) == slots
    # A model of 30 layers and 8k context, on a machine with 22 GB free: 94 MB a slot.
    small = replace(facts, kv_values=30 * 2 * 3 * 64, v_values=30 * 3 * 64, n_ctx_train=8192, file_bytes=100 << 20)
    monkeypatch.setattr(autotune, "available_bytes", lambda: 22 * 10**9)
    assert autotune.slots_for(small, slot_bytes=small.kv_bytes("f16") * small.context(0)) == 16


def test_flash_attention_is_left_out_where_it_is_slower(tiny_path, monkeypatch):
    """The times are made up; that llama.cpp computes with each choice is another test's matter."""
    seen = []

    def timed(model, choice, *, n_prompt, n_steps=0, width=1, n_before=0):
        seen.append((choice.flash_attn, n_prompt, n_before))
        return (slow if n_before and choice.flash_attn is None else 1.0), 1.0

    monkeypatch.setattr(autotune, "_timed", timed)
    for slow, chosen in ((9.0, False), (1.0, None)):  # noqa: B007 (``timed`` reads it)
        assert autotune.measure(tiny_path).flash_attn is chosen
    assert (False, 16, 32) in seen


def test_the_fastest_must_be_clearly_faster(monkeypatch):
    default, other = autotune.Tuned(threads=2), autotune.Tuned(threads=1)
    assert autotune._fastest([default, other], lambda choice: 1.0 if choice is default else 0.99) == default
    assert autotune._fastest([default, other], lambda choice: 1.0 if choice is default else 0.8) == other
    monkeypatch.setattr(autotune, "n_threads", lambda: 16)
    assert autotune._thread_counts(1) == [16]
    assert autotune._thread_counts(16) == [15, 8]
    assert autotune._thread_counts(8) == [16, 7, 4]
