"""Requests with different adapters in one engine: none is computed with another's, and no prefix crosses over."""

import itertools

import pytest

from slm.serve.engine.batch_plan import Limits, Sequence
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Failure, Generate, PrefillDone, SamplingParams, SlotAction
from slm.serve.engine.scheduler import Scheduler
from tests.serve.test_adapters import SYSTEM, write_adapter

SETS = ((), (1.0, 0.0), (0.0, 1.0), (0.5, -1.0))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return tuple(write_adapter(folder / f"{i}.gguf", i) for i in (1, 2))


def replies(engine: Engine, *requests: Generate) -> dict[str, tuple[str, int]]:
    """By request, its text and its cached tokens."""
    events = [event for request in requests for event in engine.handle(request)]
    while engine.busy:
        events += engine.step()
    out = {request.id: ("", 0) for request in requests}
    for event in events:
        assert not isinstance(event, Failure), event
        text, n_cached = out[event.id]
        if isinstance(event, PrefillDone):
            out[event.id] = (text, event.cached_tokens)
        elif isinstance(event, Delta):
            out[event.id] = (text + event.text, n_cached)
    return out


def asked(number: int, adapters: tuple[float, ...], prompt: str = SYSTEM) -> Generate:
    sampling = SamplingParams(temperature=0)
    return Generate(id=str(number), prompt=prompt, adapters=adapters, sampling=sampling, max_tokens=8)


def test_each_gets_what_it_gets_alone(tiny_path, files):
    options = {"model_path": tiny_path, "adapters": files, "threads": 1, "slots": 4, "exact": True}
    options |= {"batch": 64, "ubatch": 64, "prefill_chunk": 32}
    requests = [
        asked(i, adapters, SYSTEM * (1 + i % 2) + word)
        for i, (word, adapters) in enumerate(itertools.product(("hello", "why", ""), SETS))
    ]
    engine = Engine(EngineConfig(**options))
    found = replies(engine, *requests)
    engine.close()
    alone = Engine(EngineConfig(**options, prefix_cache=False))
    assert {key: text for key, (text, _) in found.items()} == {
        each.id: replies(alone, each)[each.id][0] for each in requests
    }
    alone.close()
    assert len({found[str(i)][0] for i in range(len(SETS))}) == len(SETS)


@pytest.mark.parametrize("kv_tokens", [0, 1024])
def test_a_prefix_belongs_to_its_adapters(tiny_path, files, kv_tokens, tmp_path):
    engine = Engine(
        EngineConfig(model_path=tiny_path, adapters=files, threads=1, slots=3, context=256, kv_tokens=kv_tokens)
    )
    for n in (1, 2):
        for adapters in SETS[:2]:
            ((_, n_cached),) = replies(engine, asked(n, adapters)).values()
            assert (n_cached > 16) is (n == 2)
    # The third set finds only other sets' slots, and takes one of them.
    assert replies(engine, asked(3, SETS[2]))["3"][1] == 0
    # A file of a slot would not say with which adapters it was computed.
    held = [engine._scheduler.cached(slot) for slot in range(3)]
    assert sum(map(bool, held)) == 1
    slot = next(i for i, each in enumerate(held) if not each)
    (refused,) = engine.handle(SlotAction(id="s", slot=slot, action="save", path=str(tmp_path / "slot")))
    assert isinstance(refused, Failure)
    engine.close()


@pytest.mark.parametrize("mixed", [True, False])
def test_sets_take_turns_and_none_starves(mixed):
    limits = Limits(batch=32, prefill_chunk=8, mixed=mixed, kv_tokens=1000)
    scheduler = Scheduler(slots=4, limits=limits)
    sequences = [
        Sequence(id=str(i), tokens=[1] * 20, n_prompt=20, adapters=SETS[i % 2], use_prefix_cache=False)
        for i in range(6)
    ]
    for each in sequences:
        scheduler.add(each)
    by_id = {each.id: each for each in sequences}
    ended, steps = [], []
    while len(ended) < 6:
        plan = scheduler.plan()
        assert plan.chunks, "nothing is computed, and some wait"
        assert {by_id[chunk.sequence_id].adapters for chunk in plan.chunks} == {plan.adapters}
        steps.append(plan.adapters)
        scheduler.commit(plan)
        for chunk in plan.chunks:
            each = by_id[chunk.sequence_id]
            if each.n_to_compute == 0:
                each.tokens.append(2)
                if len(each.tokens) == 30:
                    scheduler.remove(each.id)
                    ended.append(each.id)
        assert len(steps) < 200
    assert all(before != after for before, after in itertools.pairwise(steps[:20]))
