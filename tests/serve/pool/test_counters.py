import pytest

from slm.serve.engine.protocol import Delta
from slm.serve.pool import counters as module
from slm.serve.pool.counters import Counters, SequenceTimes


@pytest.fixture
def clock(monkeypatch):
    """Sets what ``time.perf_counter`` returns."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def delta(n_tokens, finish=None):
    return Delta(id="s0", text="a", completion_tokens=n_tokens, finish=finish)


def test_latencies_of_a_sequence(clock):
    counters, times = Counters(), SequenceTimes(1.0)
    for at, n_tokens, finish in ((1.5, 1, None), (2.5, 5, None), (2.75, 6, "stop")):
        clock[0] = at
        counters.observe(times, delta(n_tokens, finish))
    # The first text ends the time to the first token; later text counts once for each of its tokens.
    assert (counters.ttft.sum, counters.ttft.buckets()[-1]) == (0.5, ("+Inf", 1))
    assert (counters.itl.sum, counters.itl.buckets()[-1]) == (1.25, ("+Inf", 5))
    assert dict(counters.itl.buckets())["0.25"] == 5
    assert (counters.e2e.sum, counters.e2e.buckets()[-1]) == (1.75, ("+Inf", 1))


def test_a_sequence_without_tokens_has_no_first_token(clock):
    counters, times = Counters(), SequenceTimes(0.0)
    clock[0] = 2.0
    counters.observe(times, delta(0, "length"))
    assert counters.ttft.buckets()[-1] == ("+Inf", 0)
    assert counters.itl.buckets()[-1] == ("+Inf", 0)
    assert counters.e2e.sum == 2.0
