"""``python -m slm.train.objective.gguf_child PIPE MEMORY``: llama.cpp, computing what a GGUF teacher predicts.

A wrong build of llama.cpp, or a damaged file, can end a process in native code. So llama.cpp is not in the process
that trains: ``slm.train.objective.gguf_teacher`` starts this one, sends calls, and reads the logits in memory that both
share. It loads no torch.

Tested in tests/train/objective/test_gguf_teacher.py.
"""

import mmap
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from slm.data.errors import UserError
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.machine.crashes import end_with_parent

Text = tuple[np.ndarray, np.ndarray]
"""A text's tokens, int32, and which of its positions are scored, int64."""


class _Teacher:
    """A file in llama.cpp. Its public methods are what the other process may call."""

    def __init__(self, memory: int) -> None:
        self._memory, self._shared = memory, np.empty(0, np.float32)

    def vocabulary(self, path: str) -> list[bytes]:
        """What every id stands for."""
        with Model(path, vocab_only=True) as model:
            return model.spellings

    def load(self, path: str, seq_len: int, n_ids: int, n_threads: int) -> None:
        """Read the weights; texts have at most ``seq_len`` tokens, and the first ``n_ids`` logits are wanted."""
        self._n_ids, self._model = n_ids, Model(Path(path))
        self._context = Context(self._model, n_ctx=seq_len, n_batch=seq_len, n_threads=n_threads)
        self._batch = Batch(seq_len)

    def predict(self, texts: list[Text]) -> None:
        """Write the logits of the scored positions of all texts, one after the other, into the shared memory."""
        size = os.fstat(self._memory).st_size // 4
        if size != len(self._shared):  # the other process has made it longer
            self._shared = np.frombuffer(mmap.mmap(self._memory, 4 * size), np.float32)
        rows = self._shared[: size // self._n_ids * self._n_ids].reshape(-1, self._n_ids)
        row = 0
        for ids, scored in texts:
            self._context.clear()
            self._batch.clear()
            wanted = np.zeros(len(ids), dtype=bool)
            wanted[scored] = True
            for position, token in enumerate(ids.tolist()):
                self._batch.add(token, position, 0, bool(wanted[position]))
            self._context.decode(self._batch)
            for position in scored.tolist():
                rows[row] = self._context.row(position)[: self._n_ids]
                row += 1


def main(pipe: Connection, memory: int) -> None:
    """Answer calls ``(method, arguments)`` with ``(True, result)`` or ``(False, what is wrong)``, until none come."""
    end_with_parent(signal.SIGKILL)
    teacher = _Teacher(memory)
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        answer: tuple[bool, Any]
        try:
            answer = True, getattr(teacher, method)(**arguments)
        except (UserError, LlamaError) as error:
            answer = False, str(error)
        except Exception:  # a defect
            traceback.print_exc()
            raise SystemExit(1) from None
        pipe.send(answer)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
