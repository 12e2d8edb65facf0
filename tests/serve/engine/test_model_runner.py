import numpy as np
import pytest

from slm.serve.engine.batch_plan import Chunk, Plan
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.model_runner import ModelRunner

PROMPTS = {0: tuple(b"the old fox"), 1: tuple(b"hello"), 2: tuple(b"a red boat in the river")}


@pytest.fixture(scope="module")
def runner(tiny_path):
    runner = ModelRunner(EngineConfig(model_path=tiny_path, threads=1, slots=3, kv_type="f32", flash_attn=False))
    yield runner
    runner.close()


def plan(*slots):
    chunks = tuple(Chunk(f"s{slot}", slot, 0, PROMPTS[slot], "last") for slot in slots)
    n = len(slots)
    return Plan(tuple((f"s{slot}", slot) for slot in slots), chunks, (0,) * n, (None,) * n)


def test_sequences_are_put_in_the_order_of_their_slots(runner):
    """llama.cpp computes together only those whose slots follow each other in the batch."""
    alone = {}
    for slot in PROMPTS:
        (index,) = runner.run(plan(slot))
        alone[slot] = runner.logits(index)
    order = (2, 0, 1)
    indices = runner.run(plan(*order))
    n = sum(map(len, PROMPTS.values()))
    assert list(runner.batch._seq[:n]) == sorted(runner.batch._seq[:n])
    for slot, index in zip(order, indices, strict=True):
        np.testing.assert_allclose(runner.logits(index), alone[slot], atol=1e-4)


def test_what_a_plan_keeps_is_kept_and_the_rest_is_cut(runner):
    runner.run(plan(2))
    assert runner.model.keeps_cells
    assert runner.truncate(2, len(PROMPTS[2]))
    (index,) = runner.run(plan(2))
    whole = runner.logits(index)
    n = 7
    rest = Plan((("a", 2),), (Chunk("a", 2, n, PROMPTS[2][n:], "last"),), (n,), (None,))
    (index,) = runner.run(rest)
    np.testing.assert_allclose(runner.logits(index), whole, atol=1e-4)
    assert runner.truncate(2, len(PROMPTS[2]))
    runner.free_slot(2)
    assert not runner.truncate(2, len(PROMPTS[2]))
