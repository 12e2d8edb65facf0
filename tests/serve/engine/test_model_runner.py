import numpy as np
import pytest

from slm.data.errors import UserError
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


@pytest.mark.parametrize(
    ("keys", "values", "error"),
    [
        ("q8_0", None, 0.02),
        ("q8_0", "q4_0", 0.1),
        ("q5_1", "q5_0", 0.1),
        ("f16", "iq4_nl", 0.1),
        ("q4_1", "f16", 0.2),
        ("q4_0", "q4_0", 0.2),
    ],
)
def test_keys_and_values_in_blocks(runner, tiny_path, keys, values, error):
    """``error``: most of the logits' range that they may be off by, on the average."""
    (index,) = runner.run(plan(2))
    exact = runner.logits(index)
    narrow = ModelRunner(EngineConfig(model_path=tiny_path, threads=1, slots=3, kv_type=keys, kv_type_v=values))
    (index,) = narrow.run(plan(2))
    rounded = narrow.logits(index)
    narrow.close()
    off = np.abs(rounded - exact).mean() / np.ptp(exact)
    assert 0 < off < error


def test_values_in_blocks_need_flash_attention(tiny_path):
    for more in ({"kv_type": "q4_0"}, {"kv_type_v": "q8_0"}):
        with pytest.raises(UserError, match=r"needs flash attention for the values"):
            EngineConfig(model_path=tiny_path, flash_attn=False, **more)
    EngineConfig(model_path=tiny_path, flash_attn=False, kv_type="q8_0", kv_type_v="f16")
