"""Displaced prompts that memory has no room for, as files: they outlast the engine's process.

Files are written in a thread. Each is for one model, adapter and type of cache (``cache_mark``), and lies in a folder
of those. Two servers may share it: a file that is gone is no longer there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from slm.llama.errors import LlamaError
from slm.serve.engine.states.displaced import Displaced
from slm.serve.engine.states.slot_files import read_head, read_slot, write_slot

_MOST_WAITING = 2
"""Prompts that wait to be written; each takes memory. More are dropped."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A prompt in a file."""

    tokens: tuple[int, ...]
    kept: tuple[int, ...]
    """After how many tokens there is a state, where the slot cannot be cut back without one."""
    path: Path
    n_bytes: int


class PromptFiles:
    """At most ``most_bytes`` of them in a folder of ``folder``; then the longest unused are deleted."""

    def __init__(self, folder: Path, mark: str, most_bytes: int) -> None:
        self._folder = folder / hashlib.sha256(mark.encode()).hexdigest()[:16]
        self._mark, self._most_bytes = mark, most_bytes
        self._thread = ThreadPoolExecutor(1, "prompt-files")
        self._written: list[Future[PromptFile]] = []
        self._files = self._found()
        """The longest unused first."""
        self._has_failed = False

    def _found(self) -> list[PromptFile]:
        """What an earlier process has left there."""
        found = []
        for path in self._folder.glob("*.prompt"):
            with contextlib.suppress(LlamaError, OSError):
                stat, (tokens, kept) = path.stat(), read_head(path, self._mark)
                found.append((stat.st_mtime, PromptFile(tokens, kept, path, stat.st_size)))
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    @property
    def files(self) -> list[PromptFile]:
        """Those that are written, the longest unused first."""
        for each in [each for each in self._written if each.done()]:
            self._written.remove(each)
            try:
                new = each.result()
            except LlamaError as error:
                if not self._has_failed:
                    print(f"prompts are not kept on disk: {error}", file=sys.stderr)
                self._has_failed = True
                continue
            shorter = [old for old in self._files if new.tokens[: len(old.tokens)] == old.tokens]
            for old in shorter:
                self._delete(old)
            self._files = [*(old for old in self._files if old not in shorter), new]
            while sum(file.n_bytes for file in self._files) > self._most_bytes:
                self._delete(self._files.pop(0))
        return self._files

    def keep(self, prompt: Displaced) -> None:
        """Writes a prompt, unless a file has it or the thread is far behind."""
        if any(each.tokens[: len(prompt.tokens)] == prompt.tokens for each in self.files):
            return
        if len(prompt.state) <= self._most_bytes and len(self._written) < _MOST_WAITING:
            self._written.append(self._thread.submit(self._write, prompt))

    def _write(self, prompt: Displaced) -> PromptFile:
        path = self._folder / f"{secrets.token_hex(8)}.prompt"
        n_bytes = write_slot(path, self._mark, prompt)
        return PromptFile(prompt.tokens, tuple(prompt.kept), path, n_bytes)

    def read(self, file: PromptFile) -> Displaced | None:
        """What a file holds; None where it is gone or damaged. It counts as used."""
        self._files.remove(file)
        try:
            found = read_slot(file.path, self._mark)
        except LlamaError:
            self._delete(file)
            return None
        with contextlib.suppress(OSError):
            os.utime(file.path)
        self._files.append(file)
        return found

    @staticmethod
    def _delete(file: PromptFile) -> None:
        with contextlib.suppress(OSError):
            file.path.unlink()

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown()
        self.files  # noqa: B018 (deletes what is too much)
