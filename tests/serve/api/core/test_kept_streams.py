"""Streams that go on without their connection: kept for a while, bounded, and each key's own."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from slm.serve.api.core import kept_streams
from slm.serve.api.core.kept_streams import ALONE_S, KEPT_S, KeptStreams
from slm.serve.api.errors import ApiError

KEY = "0123456789abcdef"


class Source:
    """Parts that come when ``say`` has them."""

    def __init__(self):
        self._parts, self.ends = asyncio.Queue(), 0

    async def __aiter__(self):
        while (part := await self._parts.get()) is not None:
            if isinstance(part, Exception):
                raise part
            yield part

    async def say(self, *parts):
        for part in parts:
            self._parts.put_nowait(part)
        for _ in range(4):
            await asyncio.sleep(0)

    def end(self):
        self.ends += 1


def begin(streams, key=KEY, owner=None):
    source = Source()
    return source, streams.begin(key, owner, aiter(source), source.end)


async def rest(kept):
    return b"".join([part async for part in kept.read()])


def knows(streams, key=KEY, owner=None):
    with contextlib.suppress(ApiError):
        return bool(streams.get(key, owner))
    return False


def test_it_goes_on_and_is_read_again_from_the_beginning():
    async def work():
        streams = KeptStreams()
        source, kept = begin(streams)
        reader = kept.read()
        await source.say(b"one ")
        assert await anext(reader) == b"one "
        await reader.aclose()
        kept.left()
        await source.say(b"two ", b"three ")
        again = asyncio.create_task(rest(streams.get(KEY, None)))
        await source.say(b"four")
        assert source.ends == 0
        await source.say(None)
        assert await again == b"one two three four"
        kept.left()
        assert source.ends == 1
        assert await rest(kept) == b"one two three four"
        for skip, left in ((2, b"e two three four"), (17, b"r"), (18, b""), (30, b"")):
            assert b"".join([part async for part in kept.read(skip)]) == left

    asyncio.run(work())


def test_nobody_else_finds_it_and_whoever_has_it_can_end_it():
    async def work():
        streams = KeptStreams()
        source, _ = begin(streams, owner=1)
        assert knows(streams, owner=1)
        assert not knows(streams)
        other, _ = begin(streams)
        streams.delete(KEY, 2)
        await source.say()
        assert (source.ends, other.ends, knows(streams, owner=1)) == (0, 0, True)
        streams.delete(KEY, 1)
        await source.say()
        assert (source.ends, other.ends, knows(streams, owner=1)) == (1, 0, False)
        begin(streams)  # of the same name
        await other.say()
        assert (other.ends, knows(streams)) == (1, True)
        streams.delete(KEY, None)
        for name in ("", "x" * 257):
            with pytest.raises(ApiError, match="1 to 256"):
                begin(streams, name)

    asyncio.run(work())


class Timers:
    """In place of the loop's: those that run, each with its seconds."""

    def __init__(self):
        self.running = []

    def call_later(self, seconds, action):
        timer = SimpleNamespace(seconds=seconds, action=action)
        timer.cancel = lambda: self.running.remove(timer) if timer in self.running else None
        self.running.append(timer)
        return timer

    @property
    def seconds(self):
        return [each.seconds for each in self.running]

    def ring(self):
        self.running.pop().action()


def test_it_ends_when_nobody_reads_it_and_is_forgotten_later(monkeypatch):
    async def work():
        timers = Timers()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later, raising=False)
        streams = KeptStreams()
        source, kept = begin(streams)
        reader = kept.read()
        await source.say(b"x")
        assert timers.seconds == []  # it has a reader
        await reader.aclose()
        kept.left()
        assert timers.seconds == [ALONE_S]
        kept.read()
        assert timers.seconds == []
        kept.left()
        timers.ring()
        await source.say()
        assert (source.ends, knows(streams), timers.seconds) == (1, False, [])
        source, kept = begin(streams)
        kept.read()
        await source.say(b"x", None)
        assert (source.ends, knows(streams), timers.seconds) == (1, True, [KEPT_S])
        timers.ring()
        assert not knows(streams)

    asyncio.run(work())


def test_there_is_a_bound(monkeypatch):
    monkeypatch.setattr(kept_streams, "MOST_STREAMS", 3)
    monkeypatch.setattr(kept_streams, "MOST_BYTES", 10)

    async def work():
        streams, keys = KeptStreams(), [f"{KEY}-{i}" for i in range(6)]
        for key in keys[:3]:
            source, _ = begin(streams, key)
            await source.say(b"1234", None)
        assert [knows(streams, key) for key in keys[:3]] == [False, True, True]  # twelve bytes are too many
        for key in keys[3:]:
            _, kept = begin(streams, key)
            assert kept is not None
        assert [knows(streams, key) for key in keys] == [False, False, False, True, True, True]
        assert begin(streams)[1] is None  # three run
        for key in keys[3:]:
            streams.delete(key, None)

    asyncio.run(work())


def test_a_fault_of_the_server_stays_one():
    async def work():
        source, kept = begin(KeptStreams())
        await source.say(b"x", ValueError("ours"))
        with pytest.raises(ValueError, match="ours"):
            await rest(kept)
        assert source.ends == 1

    asyncio.run(work())
