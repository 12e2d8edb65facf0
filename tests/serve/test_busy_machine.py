"""Another program uses a core: the server goes on at a good part of its speed."""

import os
import subprocess
import sys
import time

import httpx
import pytest

from slm.machine.hardware import compute_threads
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Generate, SamplingParams

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compute_threads() < 2, reason="needs Linux and two cores to compute on"
)
N_TOKENS, MOST_S = 300, 1.5


def tokens_per_s(url: str) -> float:
    body = {"prompt": "once upon a time", "max_tokens": N_TOKENS, "ignore_eos": True, "timeout_s": MOST_S}
    began = time.perf_counter()
    answer = httpx.post(url + "/v1/completions", json=body, timeout=60)
    n = answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else 0
    return n / (time.perf_counter() - began)


@pytest.mark.slow
def test_a_busy_process_costs_less_than_two_thirds_of_the_speed(tmp_path, tiny_path, start_server):
    """Two threads that wait for each other and for a core made a fortieth of the tokens. Quiet and busy rounds in turn,
    and the best of each, because other programs may run here, too."""
    quiet, busy = [], []
    pinned = f"import os; os.sched_setaffinity(0, [{max(os.sched_getaffinity(0))}])\nwhile True: pass"
    with start_server(tmp_path / "log", tiny_path, f"serve.threads={compute_threads()}") as server:
        tokens_per_s(server.url)
        for _ in range(4):
            time.sleep(0.6)
            quiet.append(max(tokens_per_s(server.url) for _ in range(2)))
            other = subprocess.Popen([sys.executable, "-c", pinned], start_new_session=True)
            try:
                time.sleep(0.6)
                busy.append(max(tokens_per_s(server.url) for _ in range(2)))
            finally:
                other.kill()
                other.wait()
            if len(busy) >= 2 and max(busy) > max(quiet) / 3:
                break
        assert server.metrics()["slm_threads"] >= 1
    assert max(busy) > max(quiet) / 3, (quiet, busy)


def one_reply(path, free: float, **more) -> tuple[int, int]:
    """Threads that an engine of two threads reports before and after a reply, with this many free cores."""
    engine = Engine(EngineConfig(model_path=path, threads=2, slots=1, **more))
    count = engine._runner._thread_count
    if count is not None:
        count._cores.read = lambda: free
        count._read_at = 0
    before = engine.stats.threads
    engine.handle(Generate(id="a", prompt="once", sampling=SamplingParams(temperature=0), max_tokens=3))
    while engine.busy:
        engine.step()
    after = engine.stats.threads
    engine.close()
    return before, after


def test_the_engine_computes_with_as_many_threads_as_cores_are_free(tiny_path):
    assert one_reply(tiny_path, 1.1) == (2, 1)
    assert one_reply(tiny_path, 1.9) == (2, 2)


def test_exact_results_need_the_same_threads(tiny_path):
    assert one_reply(tiny_path, 1.1, exact=True) == (2, 2)
    assert one_reply(tiny_path, 1.1, adapt_threads=False) == (2, 2)
