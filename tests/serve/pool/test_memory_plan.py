"""What a model takes, and what the models together may take."""

import subprocess
import sys

import pytest

from slm.machine import memory
from slm.machine.memory import available_bytes
from slm.serve.engine.config import EngineConfig
from slm.serve.pool import memory_plan
from slm.serve.pool.memory_plan import budget_bytes, fit_slots, needed_bytes, read_facts
from tests.helpers import tiny_checkpoint

GIB = 2**30
MIB = 2**20


def config(path, **more):
    return EngineConfig(model_path=path, threads=1, **more)


def test_the_estimate_covers_what_an_engine_takes(slow_path):
    """Resident memory of an engine with full slots and an embedding; mapped libraries count, too."""
    code = (
        "import sys, psutil\n"
        "from pathlib import Path\n"
        "from slm.serve.engine.config import EngineConfig\n"
        "from slm.serve.engine.engine import Engine\n"
        "from slm.serve.engine.protocol import Embed, Generate\n"
        "e = Engine(EngineConfig(model_path=Path(sys.argv[1]), threads=1, slots=4, context=2048))\n"
        "for i in range(4): e.handle(Generate(id=str(i), prompt=tuple([7] * 1900), max_tokens=2))\n"
        "while e.busy: e.step()\n"
        "e.handle(Embed(id='e', inputs=(tuple([7] * 600),)))\n"
        "while e.busy: e.step()\n"
        "print(psutil.Process().memory_info().rss)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(slow_path)], capture_output=True, text=True, check=True)
    used = int(done.stdout)
    estimate = needed_bytes(read_facts(slow_path), config(slow_path, slots=4, context=2048))
    assert 0.9 * used < estimate < 1.5 * used
    kv_of_a_slot = 2048 * 12 * 2 * 128 * 2
    one = needed_bytes(read_facts(slow_path), config(slow_path, slots=1, context=2048))
    assert estimate - one == 3 * kv_of_a_slot
    wide = needed_bytes(read_facts(slow_path), config(slow_path, slots=4, context=2048, kv_type="f32"))
    assert wide - estimate == 4 * kv_of_a_slot
    apart = config(slow_path, slots=4, context=2048, kv_type="q8_0", kv_type_v="q4_0")
    narrow = needed_bytes(read_facts(slow_path), apart)
    assert estimate - narrow == 4 * kv_of_a_slot * (1 - (34 + 18) / 128)


@pytest.mark.parametrize(("arch", "with_attention"), [("qwen3", 4), ("gemma3", 4), ("lfm2", 2)])
def test_short_convolutions_keep_no_keys_and_values(tmp_path, arch, with_attention):
    path = tiny_checkpoint.gguf_file(tmp_path / "m.gguf", arch=arch, n_layers=4, n_kv_heads=1, head_dim=32)
    assert read_facts(path).kv_values == with_attention * 2 * 32


def test_the_budget():
    assert budget_bytes(1.5) == 3 * GIB // 2
    assert 0 < budget_bytes(0) <= available_bytes()


def test_slots_that_nobody_chose_follow_the_budget(slow_path):
    facts = read_facts(slow_path)

    def slots(budget, n=16, names="ab", **more):
        configs = {name: config(slow_path, slots=n, **more) for name in names}
        return [each.slots for each in fit_slots(configs, budget=budget).values()]

    def need(n):
        return needed_bytes(facts, config(slow_path, slots=n))

    assert slots(2 * need(16)) == [16, 16]
    assert sorted(slots(2 * need(16) - 1)) == [8, 16]
    assert slots(2 * need(4)) == [4, 4]
    # Rather one after the other than with fewer than four.
    assert slots(2 * need(4) - 1) == [4, 4]
    assert slots(need(16) - 1, names="a") == [8]
    assert slots(need(4) - 1, names="a") == [2]
    assert slots(1, names="a") == [1]
    for n in (5, 6, 7, 10):
        assert slots(2 * need(4), n=n) == [4, 4]
    assert slots(2 * need(4), kv_tokens=512) == [16, 16], "slots that share a cache need no memory"


def test_only_the_large_model_gets_fewer_slots(slow_path, tiny_path):
    large, small = (config(path, slots=16) for path in (slow_path, tiny_path))
    needs = [needed_bytes(read_facts(each.model_path), each) for each in (large, small)]
    found = fit_slots({"large": large, "small": small}, budget=sum(needs) - 1)
    assert (found["large"].slots, found["small"].slots) == (8, 16)


def test_the_budget_does_not_count_the_page_cache_as_used(tmp_path, monkeypatch):
    # A model's file that was read stays in the page cache, and fills the control group's figure with it.
    (tmp_path / "memory.max").write_text(f"{10 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{9 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 100\ninactive_file {8 * MIB}\n")
    own = tmp_path / "own"
    own.write_text("0::/\n")
    monkeypatch.setattr(memory.available_bytes, "__defaults__", (tmp_path, own))
    assert memory_plan.budget_bytes(0) == 9 * MIB * 4 // 5
