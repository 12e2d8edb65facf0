"""What the engine's process does with commands while a step computes, and between two steps."""

import multiprocessing
import queue
import threading

import pytest

from slm.serve.engine import process
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.process import DeltaBuffer, Intake
from slm.serve.engine.protocol import (
    Accepted,
    Cancel,
    Canceled,
    Delta,
    Detokenize,
    Embed,
    Failure,
    Generate,
    Reply,
    SamplingParams,
    Shutdown,
    Tokenize,
)

LONG = "the old fox and the little bird " * 40_000
PLAIN = {"add_special": False, "parse_special": False}
FOREVER = SamplingParams(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, context=256, slots=2, threads=1))
    yield engine
    engine.close()


class Running:
    """An intake, and the events that it sends."""

    def __init__(self, engine):
        there, self.pipe = multiprocessing.Pipe(duplex=False)
        self.events = queue.SimpleQueue()
        self.intake = Intake(engine, there, lambda events: [self.events.put(each) for each in events])

    def ask(self, *commands):
        for each in commands:
            self.pipe.send(each)

    def event(self):
        return self.events.get(timeout=20)


@pytest.fixture
def running(engine):
    running = Running(engine)
    yield running
    running.ask(Shutdown())
    assert running.intake.commands.get(timeout=20) == Shutdown()
    running.intake.close()


def test_texts_become_tokens_without_a_step(engine, running):
    """No step is made here: as in the middle of one that takes long."""
    running.ask(Generate(id="a", prompt="the old fox", stop=("x",)))
    assert running.event() == Accepted(id="a", prompt_tokens=len(engine._model.tokenize("the old fox", **PLAIN)))
    prepared = running.intake.commands.get(timeout=20)
    assert prepared.prompt == tuple(engine._model.tokenize("the old fox", **PLAIN))
    assert (prepared.id, prepared.stop) == ("a", ("x",))
    running.ask(Generate(id="b", prompt=LONG), Generate(id="c", prompt=(1,) * 300), Generate(id="d", prompt=(-1,)))
    refused = {event.id: event for event in (running.event() for _ in range(3))}
    assert [refused[key].code for key in "bcd"] == [*["context_length_exceeded"] * 2, "invalid_request"]
    running.ask(Tokenize(id="t", text=LONG, **PLAIN))
    reply = running.event()
    assert reply == Reply(id="t", value=engine._model.tokenize(LONG, **PLAIN))
    running.ask(Detokenize(id="u", tokens=tuple(reply.value[:4])), Detokenize(id="v", tokens=(10_000,)))
    assert running.event() == Reply(id="u", value="the old")
    assert isinstance(running.event(), Failure)
    running.ask(Embed(id="e", inputs=("x",)))
    assert running.intake.commands.get(timeout=20).id == "e"


def test_a_prompt_of_usual_length_does_not_wait_for_texts_of_megabytes(running):
    running.ask(*(Tokenize(id=str(i), text=LONG, **PLAIN) for i in range(3)), Generate(id="a", prompt="x"))
    assert running.event() == Accepted(id="a", prompt_tokens=1)
    running.ask(Cancel(id="1"), Cancel(id="2"), Cancel(id="never"))
    seen = [running.event() for _ in range(3)]
    assert {event.id: type(event) for event in seen} == {"0": Reply, "1": Canceled, "2": Canceled}
    assert running.intake.commands.get(timeout=20).id == "a"
    assert running.intake.commands.get(timeout=20) == Cancel(id="never")


def test_what_a_reply_waits_for_comes_before_queries_of_clients(engine, running):
    """Each query was followed by a rest, so that fifty clients kept a long conversation for a quarter of a second."""
    text = "the old fox " * 30
    running.ask(Tokenize(id="first", text=LONG, **PLAIN), *(Tokenize(id=str(i), text=text, **PLAIN) for i in range(50)))
    running.ask(Tokenize(id="count", text=text, limit=40, **PLAIN), Tokenize(id="long", text=LONG, limit=40, **PLAIN))
    running.ask(Generate(id="refused", prompt=LONG))
    seen = [running.event().id for _ in range(54)]
    assert seen.index("count") <= 1
    assert seen.index("long") <= 2
    assert seen.index("refused") <= 3
    assert [key for key in seen if key.isdigit()] == [str(i) for i in range(50)]


def test_the_end_of_the_server_ends_the_loop(engine):
    running = Running(engine)
    running.pipe.close()
    assert running.intake.commands.get(timeout=20) == Shutdown()
    running.intake.close()


class Sent:
    """Where the loop sends events."""

    def __init__(self):
        self.events = []

    def send(self, events):
        self.events += events


def test_a_stream_goes_on_while_commands_arrive(engine, monkeypatch):
    """Between two steps the loop takes as many commands as fit into a part of a step, not all that there are."""
    monkeypatch.setattr(process, "_COMMANDS_S", (0.0, 0.0))
    commands = queue.SimpleQueue()
    commands.put(Generate(id="stream", prompt=(5,) * 3, sampling=FOREVER, max_tokens=60))
    for i in range(50):
        commands.put(Cancel(id=f"gone{i}"))
    left, step = [], engine.step

    def counted():
        left.append(commands.qsize())
        if not left[-1]:
            commands.put(Shutdown())
        return step()

    monkeypatch.setattr(engine, "step", counted)
    sent = Sent()
    process._loop(engine, commands, sent, DeltaBuffer(0))
    assert left == [*range(50, -1, -1)]
    texts = [i for i, event in enumerate(sent.events) if isinstance(event, Delta)]
    canceled = [i for i, event in enumerate(sent.events) if isinstance(event, Canceled)]
    assert len(texts) > 40
    assert texts[10] < canceled[15]
    engine.handle(Cancel(id="stream"))


def test_reports_come_while_a_step_takes_long(engine, monkeypatch):
    monkeypatch.setattr(process, "REPORT_S", 0.01)
    ended, sent = threading.Event(), queue.SimpleQueue()

    class Outbox:
        def send(self, events):
            sent.put(events)

    monkeypatch.setattr(engine, "_step_began", 0.0)  # long ago, on the monotonic clock
    thread = threading.Thread(target=process._report, args=(engine, Outbox(), ended))
    thread.start()
    reports = [sent.get(timeout=20)[0] for _ in range(3)]
    ended.set()
    thread.join()
    assert reports[-1].step_s > reports[0].step_s > 0
