"""Nobody waits for a measurement: it is made while the server is quiet, and a request ends it."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from slm.serve.engine.config import EngineConfig
from slm.serve.pool import idle_tuning
from slm.serve.pool.idle_tuning import IdleTuning
from slm.serve.pool.model_pool import Lease, Pool, Served


@pytest.fixture
def pool(tiny_path, monkeypatch):
    """A pool whose model counts as loaded."""
    monkeypatch.setattr(idle_tuning, "QUIET_S", 0.02)

    def make():
        served = Served("tiny", EngineConfig(model_path=tiny_path, threads=2))
        served.loaded = SimpleNamespace(engine=None, info=None, chat=None)
        return Pool([served], budget=None, max_waiting=1), served

    return make


def test_a_choice_is_made_when_the_server_is_quiet(pool, capsys):
    async def scenario():
        made, served = pool()
        lease, measured = Lease(made, served), []

        def measure(config):
            measured.append(config)
            return replace(config, threads=1, ubatch=64)

        tuning = IdleTuning(made, lambda config: config.threads == 2, measure)
        tuning.start()
        await asyncio.sleep(0.1)
        assert not measured, "a request runs"
        lease.release()
        async with asyncio.timeout(10):
            await tuning._task
        assert (served.config.threads, served.config.ubatch, len(measured)) == (1, 64, 1)
        await tuning.close()

    asyncio.run(scenario())
    assert "1 threads instead of 2, from the next start on" in capsys.readouterr().out


def test_a_request_ends_a_measurement_and_it_begins_anew(pool, monkeypatch):
    stopped, begun = threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr(idle_tuning, "stop_measuring", stopped.set)

    async def scenario():
        made, served = pool()
        n = 0

        def measure(config):
            nonlocal n
            n += 1
            begun.release()
            if n == 1:
                assert stopped.wait(20)
                return None
            return config

        tuning = IdleTuning(made, lambda config: True, measure)
        tuning.start()
        assert await asyncio.to_thread(begun.acquire, timeout=20)
        Lease(made, served).release()
        async with asyncio.timeout(10):
            await tuning._task
        assert n == 2
        assert stopped.is_set()

    asyncio.run(scenario())


def test_the_servers_end_ends_a_measurement(pool, monkeypatch):
    stopped, begun = threading.Event(), threading.Event()
    monkeypatch.setattr(idle_tuning, "stop_measuring", stopped.set)

    async def scenario():
        made, _ = pool()

        def measure(config):
            begun.set()
            assert stopped.wait(20)

        tuning = IdleTuning(made, lambda config: True, measure)
        tuning.start()
        assert await asyncio.to_thread(begun.wait, 20)
        await tuning.close()
        assert stopped.is_set()

    asyncio.run(scenario())
