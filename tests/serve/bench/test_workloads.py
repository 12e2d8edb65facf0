from dataclasses import replace
from math import ceil

import pytest

from slm.data.errors import UserError
from slm.serve.bench.config import BenchOptions
from slm.serve.bench.limit import Rates
from slm.serve.bench.workloads import Prompts, cases, mean_tokens

OPTIONS = BenchOptions(
    clients=[1, 4],
    open=[0.5],
    extra=["prefix", "json", "repeat"],
    extra_clients=[3],
    busy=[1],
    busy_s=0.001,
    prompt_words=20,
    prefix_tokens=80,
    new_tokens=10,
)
LIMIT = [Rates(batch=1, prefill=1000, decode=100), Rates(batch=4, prefill=1000, decode=300)]


def test_the_same_seed_gives_the_same_requests_that_begin_differently():
    first, again = (cases(OPTIONS, Prompts(OPTIONS), LIMIT, 25.0, context=1024) for _ in range(2))
    assert first == again
    plain, plain4, busy, opened, prefix, json, repeat = first
    assert [each.key for each in first] == ["plain", "plain", "busy", "open", "prefix", "json", "repeat"]
    assert [each.n_busy for each in first] == [0, 0, 1, 0, 0, 0, 0]
    assert [len(bodies) for bodies in busy.bodies] == [8]
    assert [len(bodies) for bodies in plain.bodies] == [8], "few clients send more"
    assert [len(bodies) for bodies in plain4.bodies] == [2] * 4
    prompts = [body["prompt"] for bodies in plain4.bodies for body in bodies]
    assert len({" ".join(prompt.split()[:5]) for prompt in prompts}) == len(prompts)
    assert {len(prompt.split()) for prompt in prompts} == {20}
    # Half of what the limit gives at best: 10 new tokens in (25 / 1000 + 10 / 300) s, of 10 tokens each.
    assert opened.arrivals == sorted(opened.arrivals)
    assert len(opened.arrivals) == len(opened.bodies[0]) == round(0.5 * LIMIT[1].workload(25, 10) / 10 * 10.0)
    starts = {body["prompt"].partition("\n\n")[0] for bodies in prefix.bodies for body in bodies}
    assert len(starts) == 1
    assert len(prefix.bodies) == len(json.bodies) == 3
    assert all("json_schema" in body for bodies in json.bodies for body in bodies)
    assert all(body["temperature"] == 0.0 for bodies in repeat.bodies for body in bodies)


def test_a_busy_load_lasts_so_long_that_the_server_can_adapt():
    """A request of 128 tokens of a tiny model is over before the cores were counted once."""
    options = replace(OPTIONS, busy=[1, 5], busy_s=2)
    one, five = (each for each in cases(options, Prompts(OPTIONS), LIMIT, 25.0, context=1024) if each.key == "busy")
    # 25 / 1000 + 10 / 100 s for each request of one client, 25 / 1000 + 10 / 300 s for one of each of four.
    assert [len(bodies) for bodies in one.bodies] == [16]
    assert [len(bodies) for bodies in five.bodies] == [ceil(2 / (25 / 1000 + 10 / 300) / 5)] * 5


def test_a_shared_prefix_fits_the_context():
    options = replace(OPTIONS, prefix_tokens=80, new_tokens=10)
    (prefix,) = (each for each in cases(options, Prompts(options), LIMIT, 25.0, context=100) if each.key == "prefix")
    words = {len(body["prompt"].split()) for bodies in prefix.bodies for body in bodies}
    assert max(words) * 25 / 20 + 10 < 100


def test_prompts_from_a_file(tmp_path, tiny_path):
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"w{i}" for i in range(200)))
    options = BenchOptions(text=str(path), prompt_words=5, prefix_tokens=50)
    assert all(word.startswith("w") for word in Prompts(options).take().split())
    assert mean_tokens(tiny_path, ["once upon", "a"]) > 1
    path.write_text("too few")
    with pytest.raises(UserError, match="too few to cut prompts from"):
        Prompts(options)
