"""A GGUF file as teacher: llama.cpp computes in its own process (``slm.train.objective.gguf_child``). Its death
is one line and leaves the run's checkpoints whole.

Shape suffixes: N positions of a micro-batch, R some of them, S scored ones, V vocabulary.
"""

import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import slm
from slm.data.errors import UserError
from slm.data.stream.loader import without_interrupts
from slm.llama.verdict import crash_advice
from slm.machine.crashes import CRASHES, ended_by
from slm.train.objective.batch import Batch, segments
from slm.train.objective.sampled_softmax import Words
from slm.train.objective.soft_targets import DenseTargets

_PROGRAM = "slm.train.objective.gguf_child"
_END_S = 30
"""How long the end of a process that has closed its pipe may take."""


class GGUFTeacher:
    """A GGUF file in llama.cpp. The logits of a micro-batch's scored positions are held at once, 4 bytes each."""

    def __init__(self, path: Path, *, seq_len: int, n_ids: int, n_threads: int, eot_id: int | None) -> None:
        self._n_ids, self._eot_id = n_ids, eot_id
        self._child = _Child(path)
        self._child.call("load", path=str(path.resolve()), seq_len=seq_len, n_ids=n_ids, n_threads=n_threads)

    def targets(self, batch: Batch, words: Words | None = None) -> DenseTargets:
        """Those of the batch's positions, among ``words`` where they are given. The next call overwrites them."""
        N = batch.ids.numel()
        texts = segments(batch, self._eot_id)
        place_N, n_scored = torch.zeros(N, dtype=torch.int64), 0
        for text in texts:
            place_N[text.begin + text.scored] = torch.arange(n_scored, n_scored + len(text.scored))
            n_scored += len(text.scored)
        shared = self._child.shared(N * self._n_ids)
        self._child.call("predict", texts=[(text.ids, text.scored) for text in texts])
        logits_SV = torch.from_numpy(shared[: n_scored * self._n_ids].reshape(n_scored, self._n_ids))
        if words is None:
            return DenseTargets(lambda rows: logits_SV[place_N[rows]], self._n_ids)
        return DenseTargets(lambda rows: logits_SV[place_N[rows]][:, words.ids], len(words.ids), words.offsets)


def vocabulary(path: Path) -> list[bytes]:
    """What every id of the file stands for: bytes of text, or a special token's name."""
    child = _Child(path)
    found: list[bytes] = child.call("vocabulary", path=str(path.resolve()))
    child.end()
    return found


class _Child:
    """The process, a pipe to it, and the memory into which it writes. It ends with this object."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory = _memory()
        self._shared = np.empty(0, np.float32)
        self._pipe, theirs = Pipe()
        with without_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs.fileno()), str(self._memory)],
                pass_fds=(theirs.fileno(), self._memory),
                stdin=subprocess.DEVNULL,
                cwd=slm.PARENT,
                # When llama.cpp aborts, it starts a debugger where there is one.
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            )
        theirs.close()  # or its death would not be an end of file
        self.end = weakref.finalize(self, _end, self._process, self._pipe, self._memory)

    def shared(self, size: int) -> np.ndarray:
        """The shared memory with room for ``size`` floats. What is not written to takes no memory."""
        if size > len(self._shared):
            os.ftruncate(self._memory, 4 * size)
            self._shared = np.frombuffer(mmap.mmap(self._memory, 4 * size), np.float32)
        return self._shared

    def call(self, method: str, **arguments: Any) -> Any:
        """What ``gguf_child`` answers. UserError where it cannot, or has died."""
        try:
            self._pipe.send((method, arguments))
            right, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise UserError(self._death()) from None
        if not right:
            raise UserError(answer if str(self._path) in answer else f"the teacher {self._path}: {answer}")
        return answer

    def _death(self) -> str:
        status = self._process.wait(_END_S)
        name, stage = ended_by(status), f"while it computed what the teacher {self._path} predicts"
        kept = "the checkpoints that the run has are whole"
        if name in CRASHES:
            return f"llama.cpp died with {name} {stage}; {crash_advice(kept)}, and the same command goes on from there"
        if name:
            return (
                f"llama.cpp was ended by {name} {stage}; {kept}: if memory has run out, take a smaller teacher or "
                "train.micro_batch; the same command goes on from there"
            )
        return f"llama.cpp ended with exit status {status} {stage} (see above); {kept}"


def _memory() -> int:
    """A file that is nowhere, in memory where the system has such files."""
    if sys.platform == "linux":
        return os.memfd_create("slm-teacher")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _end(process: subprocess.Popen[bytes], pipe: Connection, memory: int) -> None:
    process.kill()
    process.wait()
    pipe.close()
    os.close(memory)
