"""Prompts that left their slots for others come back from memory; the text is as if they had stayed."""

import pytest

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Failure, Generate, PrefillDone, SamplingParams
from slm.serve.engine.states.displaced import LEAST, Displaced, DisplacedPrompts
from tests.helpers import tiny_checkpoint, tiny_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", n_ctx=2048)


def engine(path, **more):
    options = {"threads": 1, "kv_type": "f32", "flash_attn": False} | more
    return Engine(EngineConfig(model_path=path, **options))


def prompt(seed, n=400):
    return tuple(7 + (seed * i * i + i) % 90 for i in range(n))


def ask(one, key, tokens):
    """The text, and how many tokens of the prompt were not computed."""
    sampling = SamplingParams(temperature=0, ignore_eos=True)
    events = one.handle(Generate(id=key, prompt=tokens, sampling=sampling, max_tokens=12))
    while one.busy:
        events += one.step()
    assert not any(isinstance(event, Failure) for event in events), events
    cached = next(event.cached_tokens for event in events if isinstance(event, PrefillDone))
    return "".join(event.text for event in events if isinstance(event, Delta)), cached


@pytest.mark.parametrize("more", [{}, {"exact": True, "prefill_chunk": 64}, {"kv_type": "f16", "flash_attn": None}])
def test_conversations_that_take_turns_are_computed_once(path, more):
    one, plain = engine(path, **{"slots": 2, **more}), engine(path, **{"slots": 2, "cache_ram": 0, **more})
    first = {seed: ask(one, f"{seed}", prompt(seed)) for seed in (1, 2, 3, 4)}
    assert all(cached < LEAST for _, cached in first.values())
    for turn in (1, 2):
        for seed in (1, 2, 3, 4):
            text, cached = ask(one, f"{seed} {turn}", prompt(seed) + prompt(9, 20 * turn))
            assert cached >= 384
            assert text == ask(plain, f"{seed} {turn}", prompt(seed) + prompt(9, 20 * turn))[0]
    again = {seed: ask(one, f"{seed} again", prompt(seed)) for seed in (1, 2)}
    assert [again[seed][0] for seed in again] == [first[seed][0] for seed in again]
    one.close()
    plain.close()


@pytest.mark.parametrize("arch", ["lfm2", "gemma3"])
def test_models_that_cannot_be_cut_back_go_on_from_the_states_that_were_kept(tmp_path, arch):
    shape = {"n_layers": 4} if arch == "lfm2" else {
        "tie_embeddings": True, "n_layers": 3, "sliding_window": 12, "rope_theta": 1e6,
        "local_layers": (True, False, True),
    }  # fmt: skip
    path = tiny_checkpoint.gguf_file(tmp_path / "m.gguf", arch=arch, seq_len=1024, **shape)
    one, plain = engine(path, slots=1, ubatch=16, batch=64), engine(path, slots=1, prefix_cache=False)
    for key, seed in enumerate((1, 2, 1, 2)):
        tokens = prompt(seed) + prompt(9, key)
        text, cached = ask(one, f"{key}", tokens)
        assert text == ask(plain, f"{key}", tokens)[0]
        assert cached >= 390 * (key >= 2)
    one.close()
    plain.close()


def test_without_memory_for_them_they_are_computed_again(path, monkeypatch):
    monkeypatch.setattr("slm.serve.engine.engine.available_bytes", lambda: 0)
    for more in ({}, {"cache_ram": 0}, {"prefix_cache": False}, {"kv_tokens": 1024}):
        one = engine(path, slots=1, **more)
        for key, seed in (("a", 1), ("b", 2), ("c", 1)):
            assert ask(one, key, prompt(seed))[1] < LEAST
        one.close()


def test_a_state_that_cannot_be_put_back_is_computed_again(path, monkeypatch):
    one = engine(path, slots=1)
    text, _ = ask(one, "a", prompt(1))
    ask(one, "b", prompt(2))
    kept = one._displaced._kept
    kept[:] = [type(each)(each.tokens, each.state[:100]) for each in kept]
    assert kept
    assert ask(one, "c", prompt(1)) == (text, 0)
    one.close()


def test_the_longest_unused_leave_and_beginnings_are_not_kept_twice():
    free = [1 << 40]
    kept = DisplacedPrompts(40_000, lambda n: n < free[0])
    a, b, c = (tuple(range(k, k + 300)) for k in (0, 1000, 2000))
    assert kept.wants(a, 0)
    assert not kept.wants(a, 300 - LEAST + 1)
    assert not kept.wants(a[: LEAST - 1], 0)
    kept.keep(Displaced(a, bytes(1000)))
    assert not kept.wants(a[:200], 0)
    kept.keep(Displaced((*a, 1), bytes(1000)))
    kept.keep(Displaced(b, bytes(1000)))
    assert kept.n_bytes == 2 * 1000 + 36 * 601
    kept.keep(Displaced(c, bytes(8000)))  # the first has to leave
    assert kept.best(a, more_than=0, whole=False) is None
    found = kept.best((*b, 5), more_than=0, whole=True)
    assert found is not None
    assert found.tokens == b
    assert kept.best(b[:200], more_than=0, whole=True) is None
    assert kept.best(b[:200], more_than=100, whole=False) is None
    assert kept.best(b[:60], more_than=0, whole=False) is None
    kept.take(found)
    assert kept.best(b, more_than=0, whole=False) is None
    free[0] = 0
    kept.keep(Displaced(a, bytes(1000)))
    assert kept.best(a, more_than=0, whole=False) is None
    assert not DisplacedPrompts(0, lambda _: True).wants(a, 0)
