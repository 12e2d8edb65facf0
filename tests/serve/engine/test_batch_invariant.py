"""``serve.exact`` (batch-invariant): the same request gives the same bits, whatever else is computed or cached."""

import random

import pytest

from slm.data.errors import UserError
from slm.llama.quantize import quantize
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, PrefillDone, SamplingParams

SYSTEM = "the old fox and the little bird went to the river to find the red boat that the wind had taken away "
BEGINNINGS = [SYSTEM, SYSTEM * 3, "once upon a time there was a girl who had a blue hat ", ""]


@pytest.fixture(scope="module", params=["f32", "q8_0", "q4_k_m"])
def path(request, tmp_path_factory, tiny_path):
    if request.param == "f32":
        return tiny_path
    path = tmp_path_factory.mktemp("exact") / f"{request.param}.gguf"
    quantize(tiny_path, path, request.param, n_threads=1)
    return path


def engine(path, **more):
    # Half precision in the cache, llama.cpp's own choice of attention, small chunks: nothing made easy.
    options = {"threads": 1, "exact": True, "prefill_chunk": 32, "batch": 128, "ubatch": 128, **more}
    return Engine(EngineConfig(model_path=path, **options))


def collect(events, into):
    for event in events:
        assert not isinstance(event, Failure), event
        if isinstance(event, Delta) and event.id in into:
            # The numbers, not only the text: equal to the bit.
            into[event.id] += [(each.token, each.logprob, each.top) for each in event.logprobs]


def test_the_bits_do_not_depend_on_the_batch(path):
    rng = random.Random(6)
    asked = {}
    for i in range(40):
        asked[str(i)] = Generate(
            id=str(i),
            prompt=rng.choice(BEGINNINGS) + rng.choice(["hello", "x", "the boat is", "why"]) + "!" * rng.randint(0, 3),
            sampling=SamplingParams(temperature=rng.choice([0, 0.8]), seed=i),
            max_tokens=rng.randint(1, 24),
            top_logprobs=3,
            use_prefix_cache=rng.random() < 0.5,
        )
    many, together, cached = engine(path, slots=6), {key: [] for key in asked}, 0
    for request in asked.values():
        events = many.handle(request)
        for _ in range(rng.choice([0, 0, 1, 4])):
            events += many.step()
        if rng.random() < 0.15 and len(together) > 20:
            gone = rng.choice(list(together))
            many.handle(Cancel(id=gone))
            del together[gone]
        collect(events, together)
        cached += sum(event.cached_tokens for event in events if isinstance(event, PrefillDone))
    while many.busy:
        events = many.step()
        collect(events, together)
        cached += sum(event.cached_tokens for event in events if isinstance(event, PrefillDone))
    assert cached > 200
    many.close()
    for options in ({"slots": 1, "prefix_cache": False}, {"slots": 3}):
        one = engine(path, **options)
        for key, numbers in together.items():
            alone = {key: []}
            events = one.handle(asked[key])
            while one.busy:
                events += one.step()
            collect(events, alone)
            assert alone[key] == numbers
        one.close()


def test_a_conversation_shares_whole_chunks_of_its_prompts(path):
    one, plain = engine(path, slots=2), engine(path, slots=1, prefix_cache=False)
    talk, before = SYSTEM, 0
    for turn in range(4):
        texts = []
        for each in (one, plain):
            events = each.handle(Generate(id="a", prompt=talk, sampling=SamplingParams(temperature=0), max_tokens=20))
            while each.busy:
                events += each.step()
            texts.append("".join(event.text for event in events if isinstance(event, Delta)))
            if each is one:
                cached = events[0].cached_tokens
        assert texts[0] == texts[1]
        assert cached % 32 == 0
        assert cached > before or turn == 0
        before = cached
        talk += texts[0] + " And then what did the fox say to the bird in the garden?"
    for each in (one, plain):
        each.close()


def test_what_it_excludes(tiny_path):
    for options, message in (
        ({"speculate": "lookup"}, "choose one of them"),
        ({"kv_tokens": 512}, r"leave serve\.kv_tokens at 0"),
        ({"prefill_chunk": 512, "batch": 512}, r"serve\.prefill_chunk=508 or less"),
    ):
        with pytest.raises(UserError, match=message):
            EngineConfig(model_path=tiny_path, exact=True, **options)
