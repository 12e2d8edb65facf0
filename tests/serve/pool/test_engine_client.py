"""The client with fake processes, which end when the test wants it."""

import asyncio
import threading
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.protocol import (
    Accepted,
    Cancel,
    Canceled,
    Delta,
    Failure,
    Generate,
    ModelInfo,
    PrefillDone,
    Ready,
    StartFailed,
    Stats,
)
from slm.serve.pool import engine_client
from slm.serve.pool.engine_client import EngineClient
from slm.serve.pool.request_stream import (
    EngineDownError,
    QueueFullError,
    RequestFailedError,
    RequestStream,
    TooManySequencesError,
)

INFO = ModelInfo(
    path="m.gguf",
    architecture="llama",
    n_params=1,
    size_bytes=1,
    n_vocab=1,
    n_embd=1,
    n_ctx_train=64,
    context=64,
    slots=1,
    kv_tokens=64,
    threads=1,
    bos="",
    eos="",
    add_bos=False,
    chat_template=None,
    control_tokens=(),
    load_s=0.1,
)


class FakeProcess:
    """An engine process whose events and end the test decides."""

    def __init__(self, config, *, on_events, on_end):
        self._on_events, self._on_end = on_events, on_end
        self.sent = []
        self.stopping = threading.Event()
        self.may_exit = threading.Event()
        self.exited = False
        self.killed = False

    def emit(self, *events):
        self._on_events(self, list(events))

    def close_pipe(self):
        self._on_end(self)

    def send(self, command):
        self.sent.append(command)

    def stop(self, timeout_s):
        self.stopping.set()
        self.killed = not self.may_exit.wait(timeout_s)
        self.exited = True
        return -9


@pytest.fixture
def processes(monkeypatch):
    """Those that were started, in order."""
    started = []

    def start(*args, **kwargs):
        assert all(each.exited for each in started), "one engine at a time"
        started.append(FakeProcess(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(engine_client, "EngineProcess", start)
    return started


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def running(processes, **more):
    client = EngineClient(EngineConfig(model_path=Path("m.gguf"), slots=1), max_waiting=1, **more)
    start = asyncio.create_task(client.start())
    await until(lambda: processes)
    processes[0].emit(Ready(info=INFO))
    assert await start is INFO
    return client


def request(client):
    return Generate(id=client.next_id(), prompt="x")


def test_a_process_that_takes_long_to_exit_does_not_stop_the_loop(processes):
    async def scenario():
        client = await running(processes)
        processes[0].close_pipe()
        await until(processes[0].stopping.is_set)
        for _ in range(10):  # the loop runs while the process is waited for
            await asyncio.sleep(0.005)
        processes[0].may_exit.set()
        await until(lambda: len(processes) == 2)
        processes[1].may_exit.set()
        await client.close()
        return processes[0].killed

    assert not asyncio.run(scenario()), "the loop stood still until the process was killed"


def test_requests_in_flight_fail_at_once_and_a_new_engine_takes_over(processes, capsys):
    async def scenario():
        client = await running(processes, name="tiny")
        stream = client.submit([request(client)])
        processes[0].close_pipe()
        with pytest.raises(RequestFailedError, match="try again") as caught:
            await asyncio.wait_for(stream.next_events(), 0.5)
        assert caught.value.code == "engine_died"
        assert not processes[0].exited
        with pytest.raises(EngineDownError):
            client.submit([request(client)])
        processes[0].may_exit.set()
        await until(lambda: len(processes) == 2)
        processes[1].emit(Ready(info=INFO))
        await until(lambda: client.ready)
        stream = client.submit([request(client)])
        key = processes[1].sent[-1].id
        delta = Delta(id=key, text="a", completion_tokens=1, finish="stop")
        processes[1].emit(PrefillDone(id=key, prompt_tokens=3, cached_tokens=1), delta)
        events = [event for _, event in await stream.next_events()]
        assert isinstance(events[0], PrefillDone)
        assert events[1] == delta
        assert stream.done
        processes[1].may_exit.set()
        await client.close()
        return client.counters

    counters = asyncio.run(scenario())
    assert (counters.loads, counters.restarts, counters.prompt_tokens, counters.completion_tokens) == (1, 1, 3, 1)
    assert counters.finished == {"engine_died": 1, "stop": 1}
    printed = capsys.readouterr().err
    assert "the engine process of tiny ended (-9); starting another" in printed
    assert "the engine of tiny is back after" in printed


def test_a_process_that_ends_while_loading_is_an_error_of_the_start(processes):
    async def scenario(event):
        client = EngineClient(EngineConfig(model_path=Path("m.gguf")), max_waiting=1)
        start = asyncio.create_task(client.start())
        await until(lambda: processes)
        processes[-1].may_exit.set()
        if event is not None:
            processes[-1].emit(event)
        processes[-1].close_pipe()
        try:
            await start
        finally:
            await client.close()

    with pytest.raises(UserError, match=r"ended while loading \(-9\)"):
        asyncio.run(scenario(None))
    processes.clear()
    with pytest.raises(UserError, match="no such file"):
        asyncio.run(scenario(StartFailed(message="no such file")))


def test_an_engine_that_dies_again_and_again_is_started_once_for_each_death(processes):
    async def scenario():
        client = await running(processes)
        for n in range(1, 4):
            processes[-1].may_exit.set()
            # Ready and dead before the client's tasks can look.
            processes[-1].close_pipe()
            await until(lambda n=n: len(processes) == n + 1)
            processes[-1].emit(Ready(info=INFO))
        await until(lambda: client.ready)
        processes[-1].may_exit.set()
        await client.close()
        await asyncio.sleep(0.05)
        return client.counters.restarts

    assert asyncio.run(scenario()) == 3
    assert len(processes) == 4


def test_closing_waits_for_a_process_that_is_still_ending(processes):
    async def scenario():
        client = await running(processes)
        processes[0].close_pipe()
        await until(processes[0].stopping.is_set)
        asyncio.get_running_loop().call_later(0.05, processes[0].may_exit.set)
        await client.close()
        assert processes[0].exited
        await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert len(processes) == 1, "a closed client starts nothing"


def test_more_requests_than_may_wait_are_refused_and_cancelling_makes_room(processes):
    async def scenario():
        client = await running(processes)
        streams = [client.submit([request(client)]) for _ in range(2)]
        with pytest.raises(QueueFullError, match="2 requests are running or waiting"):
            client.submit([request(client)])
        with pytest.raises(TooManySequencesError, match="is 3; this server takes at most 2 at a time"):
            client.submit([request(client) for _ in range(3)])
        streams[0].cancel()
        streams[0].cancel()
        # The engine works on it until it has read that it need not.
        with pytest.raises(QueueFullError, match="2 requests"):
            client.submit([request(client)])
        (cancel,) = (each for each in processes[0].sent if isinstance(each, Cancel))
        processes[0].emit(Canceled(id=cancel.id))
        await until(lambda: client.n_in_flight == 1)
        client.submit([request(client)])
        processes[0].may_exit.set()
        await client.close()
        return client.counters.finished

    assert asyncio.run(scenario()) == {"canceled": 1, "engine_died": 2}


def test_an_engine_that_is_silent_gets_no_requests_until_it_is_heard_again(processes):
    """Its reports of the state are missed, or say that a step does not end."""

    async def scenario():
        client = await running(processes)
        client._heard -= 4.0
        assert (client.ready, client.hangs) == (False, True)
        with pytest.raises(EngineDownError, match="does not answer"):
            client.submit([request(client)])
        processes[0].emit(Stats())
        await until(lambda: client.ready)
        client.submit([request(client)])
        processes[0].emit(Stats(step_s=61.0))
        await until(lambda: client.hangs)
        processes[0].emit(Stats())
        await until(lambda: client.ready)
        processes[0].may_exit.set()
        await client.close()
        assert not client.ready

    asyncio.run(scenario())


def test_a_request_is_accepted_before_its_prompt_is_computed_or_refused():
    async def scenario():
        stream = RequestStream(["a", "b"], lambda _: None)
        asyncio.get_running_loop().call_later(0.01, stream.put, Accepted(id="a", prompt_tokens=3))
        asyncio.get_running_loop().call_later(0.02, stream.put, Accepted(id="b", prompt_tokens=3))
        await stream.accepted(10)
        refused = RequestStream(["a"], lambda _: None)
        refused.put(Failure(id="a", code="context_length_exceeded", message="too long"))
        with pytest.raises(RequestFailedError, match="too long"):
            await refused.accepted(10)
        await RequestStream(["a"], lambda _: None).accepted(0.01)  # nothing is heard: no more waiting

    asyncio.run(scenario())


def test_text_that_came_before_a_failure_is_read_before_it():
    async def scenario():
        stream = RequestStream(["a"], lambda _: None)
        stream.put(Delta(id="a", text="once", completion_tokens=1))
        stream.put(Failure(id="a", code="engine_error", message="broken"))
        ((index, event),) = await stream.next_events()
        assert (index, event.text, stream.done) == (0, "once", False)
        with pytest.raises(RequestFailedError, match="broken"):
            await stream.next_events()

    asyncio.run(scenario())
