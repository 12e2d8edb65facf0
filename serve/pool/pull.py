"""Models of the Hugging Face Hub that requests name (``serve.pull``), downloaded into the Hub's own cache.

A download runs in another process: it ends with the server at any moment, and the Hub's client takes no memory
here. It writes a line of JSON for each thing that it has to say.

Tested in tests/serve/pool/test_pull.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from slm.data.errors import UserError, one_line
from slm.hub.name import HubName, hub_name
from slm.report import size
from slm.serve.engine.config import EngineConfig
from slm.serve.pool.model_pool import ModelNotLoadedError, Pool, Served
from slm.serve.pool.request_stream import QueueFullError

_MOST_WAITING = 8
"""Models that may wait for their download."""
_RETRY_S = 10.0
"""For so long after a failure, requests get its error; then it is tried again."""
_LEFT_FREE = 1 << 30
"""Bytes that stay free on the disk."""
_REPORT_S = 0.5


@dataclass
class Progress:
    """How far a download is, in bytes."""

    completed: int = 0
    total: int = 0
    """0: not known yet."""


class Puller:
    """Downloads models for a pool, one at a time, and adds them to it. ``patterns``: which ones it may. ``most_bytes``:
    of all files together. ``configure`` makes an engine's configuration for a file."""

    def __init__(
        self, pool: Pool, patterns: list[str], most_bytes: int, configure: Callable[[Path], EngineConfig]
    ) -> None:
        self._pool, self._patterns, self._left, self._configure = pool, patterns, most_bytes, configure
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        self._turn = asyncio.Lock()
        self.progress: dict[str, Progress] = {}
        """By the name that a request gave."""

    def may(self, word: str) -> bool:
        """Whether this names a model of the Hub that is not served yet and may be downloaded."""
        if self._pool.find(word) is not None or (name := hub_name(word)) is None:
            return False
        return any(fnmatchcase(name.repo.lower(), pattern.lower()) for pattern in self._patterns)

    async def pull(self, word: str) -> None:
        """Downloads the model and adds it to the pool under this name. Whoever stops waiting does not end it.

        Raises ``ModelNotLoadedError``, or ``QueueFullError`` when too many models wait.
        """
        ended_at, message = self._failed.get(word, (0.0, ""))
        if message and time.monotonic() - ended_at < _RETRY_S:
            raise ModelNotLoadedError(message)
        if word not in self._tasks:
            if len(self._tasks) >= _MOST_WAITING:
                raise QueueFullError(f"{len(self._tasks)} models wait for their download; try later.")
            self.progress[word] = Progress()
            self._tasks[word] = asyncio.create_task(self._pull(word))
            self._tasks[word].add_done_callback(lambda _: self._tasks.pop(word, None))
        await asyncio.shield(self._tasks[word])
        if word in self._failed:
            raise ModelNotLoadedError(self._failed[word][1])

    def how_far(self, word: str) -> str:
        """How far a download is, for a message: `` (1 MB of 5 MB)``, or nothing."""
        done = self.progress.get(word)
        return f" ({size(done.completed)} of {size(done.total)})" if done is not None and done.total else ""

    async def progress_of(self, word: str) -> AsyncIterator[tuple[int, int]]:
        """``pull`` with the bytes that are there and those in all, twice a second. Raises as it does."""
        pulling = asyncio.ensure_future(self.pull(word))
        while not pulling.done():
            progress = self.progress.get(word, Progress())
            yield progress.completed, progress.total
            await asyncio.wait([pulling], timeout=_REPORT_S)
        await pulling

    async def _pull(self, word: str) -> None:
        self._failed.pop(word, None)
        try:
            async with self._turn:
                path = await self._download(word)
                config = await asyncio.to_thread(self._configure, path)
                self._pool.add(Served(word, config))
        except (UserError, OSError) as error:
            while len(self._failed) >= 100:  # names are any text that a pattern allows
                self._failed.pop(next(iter(self._failed)))
            self._failed[word] = (time.monotonic(), one_line(error))
            print(f"{word} could not be downloaded: {one_line(error)}", file=sys.stderr, flush=True)
        finally:
            self.progress.pop(word, None)

    async def _download(self, word: str) -> Path:
        command = (sys.executable, "-m", "slm.serve.pool.pull", word, str(self._left))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        progress, path = self.progress[word], None
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                match json.loads(line):
                    case {"total": total}:
                        progress.total = total
                        self._left -= total
                    case {"completed": completed}:
                        progress.completed = min(completed, progress.total)
                    case {"note": note}:
                        print(note, flush=True)
                    case {"error": message}:
                        raise UserError(message)
                    case {"path": found}:
                        path = Path(found)
            await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if path is None:
            raise UserError(f"the download of {word} ended with status {process.returncode}; the server's log says why")
        return path

    async def close(self) -> None:
        """Ends every download; another start of the server goes on with what is there."""
        for each in list(self._tasks.values()):
            each.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _say(**what: str | int) -> None:
    print(json.dumps(what), file=sys.__stdout__, flush=True)


class _Notes:
    """Where the lines go that the Hub's modules print."""

    def write(self, text: str) -> int:
        if line := text.strip():
            _say(note=line)
        return len(text)

    def flush(self) -> None:
        """Every line is written at once."""


def _admit(n_bytes: int, folder: Path, most_bytes: int) -> None:
    """Says how much will be downloaded, and then how much is there. Raises ``UserError`` where it is too much."""
    if n_bytes > most_bytes:
        raise UserError(
            f"it takes {size(n_bytes)}, and {size(most_bytes)} are left of what requests may have downloaded "
            "(serve.pull_gb)"
        )
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if n_bytes > shutil.disk_usage(there).free - _LEFT_FREE:
        raise UserError(f"it takes {size(n_bytes)}, and the disk of {there} has no room for that")
    _say(total=n_bytes)
    before = _held(folder)

    def report() -> None:
        while True:
            time.sleep(_REPORT_S)
            _say(completed=max(_held(folder) - before, 0))

    threading.Thread(target=report, daemon=True).start()


def _held(folder: Path) -> int:
    total = 0
    for each in folder.glob("blobs/*"):
        with contextlib.suppress(OSError):  # it was renamed meanwhile
            total += each.stat().st_size
    return total


def main(word: str, most_bytes: int) -> None:
    """The process: downloads the file of a model."""
    from slm.hub import models

    name: HubName | None = hub_name(word)
    try:
        if name is None:
            raise UserError(f"{word} is no name of a model on the Hub")
        with contextlib.redirect_stdout(_Notes()):
            path = models.gguf(name, admit=lambda n_bytes, folder: _admit(n_bytes, folder, most_bytes))
        if path is None:
            raise UserError(f"{name.words} holds no GGUF file")
        _say(path=str(path))
    except (UserError, OSError) as error:
        _say(error=one_line(error))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
