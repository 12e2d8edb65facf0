"""Prompts are computed in steps that are bounded by time, on machines of any speed."""

import itertools
from types import SimpleNamespace

import pytest

from slm.llama.context import Context
from slm.serve.engine import engine as engine_module
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.prefill_pace import ALONE_S, STREAMS_WAIT_S, PrefillPace
from slm.serve.engine.protocol import Delta, Generate, PrefillDone, SamplingParams


def settled(pass_s, token_s, *, streams, text_s=0.033, decode_s=0.02):
    """Seconds of the steps of a long prompt on a machine on which a pass and a token take so long."""
    pace = PrefillPace(text_s=text_s)
    pace.decoded(decode_s)
    took = []
    for _ in range(12):
        n = pace.tokens("long" if streams else "alone")
        took.append(pass_s + n * token_s)
        pace.prefilled(n, took[-1])
    return took[4:]


@pytest.mark.parametrize("token_s", [0.0002, 0.001, 0.01, 0.02])
def test_steps_take_the_time_that_streams_may_wait(token_s):
    for seconds in settled(0.02, token_s, streams=True, decode_s=0.15):
        assert 0.4 * STREAMS_WAIT_S < seconds < 1.2 * STREAMS_WAIT_S
    # A stream whose tokens come fast waits for prompts as long as for one and a half of its texts.
    for seconds in settled(0.002, token_s, streams=True):
        assert seconds < 0.06 or token_s > 0.01
    for seconds in settled(0.02, token_s, streams=False):
        assert 0.7 * ALONE_S < seconds < 1.2 * ALONE_S


def test_streams_wait_longer_for_more_prompts():
    pace = PrefillPace(text_s=0.033)
    pace.prefilled(64, 64 * 0.001)
    one, three, many = (pace.tokens("long", prompts=n) for n in (1, 3, 15))
    assert one == pace.tokens("long")
    assert three == pytest.approx(3 * one, abs=3)
    assert many == int(STREAMS_WAIT_S / 0.001)
    assert pace.tokens("short") == many
    assert pace.tokens("alone", prompts=15) == int(ALONE_S / 0.001)


def test_flash_attention_takes_whole_tiles():
    pace = PrefillPace(text_s=0.033, tile=64)
    for token_s, n in ((0.01, 4), (0.0005, 64), (0.0003, 128), (0.0001, 448)):
        for _ in range(20):
            n = pace.tokens("long")
            pace.prefilled(n, n * token_s * (1 if n >= 64 else 2))
        assert pace.tokens("long") == n


@pytest.mark.parametrize("token_s", [0.0003, 0.001, 0.0015, 0.002, 0.004])
def test_a_tile_that_streams_cannot_wait_for_is_cut(token_s):
    """It took 0.26 s where a stream waited for 0.03 s without prompts."""
    pace, took = PrefillPace(text_s=0.033, tile=64), []
    for _ in range(30):
        n = pace.tokens("long")
        assert pace.tokens("alone") % 64 == 0
        took.append(n * token_s * (1 if n % 64 == 0 else 2))
        pace.prefilled(n, took[-1])
    assert max(took[3:]) < 1.5 * 0.05 + 0.001
    # And not by more than is needed.
    assert max(took[3:]) > 0.03 or token_s < 0.001


@pytest.mark.parametrize("token_s", [0.01, 0.02, 0.05])
def test_streams_never_wait_for_a_tile_because_even_few_rows_take_long(token_s):
    """A tile of 64 took 1.4 s where a decode step took 0.05 s."""
    pace = PrefillPace(text_s=0.033, tile=64)
    pace.decoded(0.05)
    for i in range(12):
        n = pace.tokens("long")
        pace.prefilled(n, 2 * n * token_s)
        assert n <= (16 if i == 0 else 4)


def test_whole_tiles_come_back_when_they_are_fast_again():
    """At the beginning of the next prompt, say."""
    pace = PrefillPace(text_s=0.033, tile=64)
    for token_s in (0.004, 0.0005):
        for _ in range(12):
            n = pace.tokens("long")
            pace.prefilled(n, 0.003 + n * token_s * (1 if n % 64 == 0 else 2))
    assert pace.tokens("long") == 64


def test_one_step_that_was_held_up_does_not_spoil_the_next():
    pace = PrefillPace(text_s=0.033)
    pace.prefilled(512, 0.512)
    before = pace.tokens("alone")
    pace.prefilled(64, 42.0)
    for _ in range(4):
        n = pace.tokens("alone")
        pace.prefilled(n, n * 0.001)
    assert pace.tokens("alone") > 0.7 * before


class Clock:
    """A slow machine's time: 0.1 s for a pass, and 0.02 s more for each token after the first."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    monotonic = perf_counter


@pytest.mark.parametrize(
    ("more", "most_s"), [({"flash_attn": False}, 33), ({"flash_attn": False, "kv_tokens": 8192}, 25), ({}, 33)]
)
def test_a_stream_next_to_a_long_prompt_waits_for_three_times_its_own_step_at_most(
    tiny_path, monkeypatch, more, most_s
):
    """With 256 tokens at a time it waited for 5 s, and with a tile of flash attention for 1.4 s."""
    clock, decode = Clock(), Context.decode

    def timed(self, batch):
        clock.now += 0.1 + 0.02 * (len(batch) - 1)
        decode(self, batch)

    monkeypatch.setattr(Context, "decode", timed)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=clock.perf_counter, monotonic=lambda: 0.0))
    one = Engine(EngineConfig(model_path=tiny_path, slots=2, threads=1, **more))
    forever = SamplingParams(temperature=0, ignore_eos=True)
    one.handle(Generate(id="stream", prompt=(5,) * 100, sampling=forever, max_tokens=400))
    at, prompted = [], None
    for step in range(400):
        if step == 20:
            one.handle(Generate(id="long", prompt=(7,) * 500, sampling=forever, max_tokens=1))
        for event in one.step():
            if isinstance(event, Delta) and event.id == "stream":
                at.append(clock.now)
            elif isinstance(event, PrefillDone) and event.id == "long":
                prompted = clock.now
        if prompted:
            break
    gaps = [b - a for a, b in itertools.pairwise(at)]
    one.close()
    assert prompted
    # The first steps are planned by what a token of a longer step took.
    assert sum(gap > 0.271 for gap in gaps) <= 2
    assert max(gaps) <= 0.4
    # The prompt gets three fifths of the time, in small steps: it takes 10 s alone.
    assert prompted - at[20] < most_s
