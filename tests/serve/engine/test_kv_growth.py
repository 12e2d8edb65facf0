"""Slots grow with what is written into them: texts and cached prefixes stay what they are."""

import threading

import pytest

from slm.llama.errors import LlamaError
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.kv_growth import SHORTEST, first_length
from slm.serve.engine.protocol import Delta, Failure, Generate, PrefillDone, SamplingParams
from tests.helpers import tiny_gguf

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
EXACT = {"kv_type": "f32", "flash_attn": False, "threads": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", n_ctx=2048)


def make(path, slot_bytes=1 << 30, **more):
    return Engine(EngineConfig(model_path=path, slots=3, slot_bytes=slot_bytes, **EXACT, **more))


def run(engine, *requests):
    events = []
    for request in requests:
        events += engine.handle(request)
    while engine.busy:
        events += engine.step()
    return events


def text(events, key):
    return "".join(event.text for event in events if isinstance(event, Delta) and event.id == key)


def asked(key, n_prompt, max_tokens=24):
    return Generate(
        id=key, prompt=tuple(7 + (i * i) % 90 for i in range(n_prompt)), sampling=GREEDY, max_tokens=max_tokens
    )


@pytest.fixture(scope="module")
def expected(path):
    whole = make(path, slot_bytes=0)
    assert whole._runner.context.n_ctx == 3 * 2048
    out = {}
    for key, request in (
        ("short", asked("short", 30, 500)),
        ("long", asked("long", 1200)),
        ("whole", asked("whole", 2040)),
    ):
        out[key] = text(run(whole, request), key)
    whole.close()
    return out


def test_how_long_slots_are_at_first():
    assert first_length(4096, 16 * (94 << 20)) == 1024
    assert first_length(4096, 16 << 20) == 4096
    assert first_length(300, 1 << 40) == 300
    assert first_length(4000, 1 << 40) == SHORTEST
    assert first_length(1 << 20, 1 << 60) == SHORTEST


@pytest.mark.parametrize("more", [{}, {"exact": True, "prefill_chunk": 128}, {"speculate": "lookup"}])
def test_slots_grow_while_sequences_run_and_nobody_notices(path, expected, more):
    engine = make(path, **more)
    assert (engine._runner.context.n_ctx, engine.info.kv_tokens, engine.info.context) == (3 * 512, 3 * 2048, 2048)
    # One grows out of its slot token by token, and next to it comes a prompt that never fitted.
    events = engine.handle(asked("short", 30, 500))
    for _ in range(40):
        events += engine.step()
    assert engine._runner.context.n_ctx == 3 * 512
    events += run(engine, asked("long", 1200))
    assert engine._runner.context.n_ctx > 3 * 1200
    if "exact" not in more:
        assert (text(events, "short"), text(events, "long")) == (expected["short"], expected["long"])
    events = run(engine, asked("whole", 2040))
    assert len(text(events, "whole")) > 0
    # What was cached before is cached still.
    before = engine._runner.context.n_ctx
    events = run(engine, asked("short", 30, 2), asked("long", 1200, 2))
    cached = {event.id: event.cached_tokens for event in events if isinstance(event, PrefillDone)}
    assert cached["long"] > 500
    assert engine._runner.context.n_ctx == before == 3 * 2048
    engine.close()


def test_without_memory_only_what_is_too_long_fails(path, monkeypatch, expected):
    engine = make(path)
    events = engine.handle(asked("short", 30, 60))
    for _ in range(5):
        events += engine.step()

    def none(length):
        raise LlamaError("no memory")

    monkeypatch.setattr(engine._runner._growth, "_make", none)
    engine.handle(asked("long", 1200))
    for _ in range(3):
        events += engine.step()
        if engine._runner._growth._longer is not None:
            engine._runner._growth._longer.exception(timeout=20)
    events += run(engine)
    (failure,) = (event for event in events if isinstance(event, Failure))
    assert (failure.id, "512 tokens of a sequence (no memory)" in failure.message) == ("long", True)
    assert expected["short"].startswith(text(events, "short"))
    assert len(text(events, "short")) > 50
    engine.close()


def test_an_engine_that_ends_while_longer_slots_are_made(path, monkeypatch):
    engine = make(path)
    at_work, go_on = threading.Event(), threading.Event()
    made = engine._runner._growth._make

    def slowly(length):
        at_work.set()
        assert go_on.wait(60)
        return made(length)

    monkeypatch.setattr(engine._runner._growth, "_make", slowly)
    engine.handle(asked("long", 1200))
    engine.step()
    assert at_work.wait(60)
    assert not engine._runner._growth._longer.done()
    threading.Timer(0.2, go_on.set).start()
    engine.close()
    assert engine._runner._growth._longer is None
