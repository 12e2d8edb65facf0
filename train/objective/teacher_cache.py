"""A teacher's predictions in a folder: computed the first time that a text is seen, then read.

What is kept of a prediction is ``soft_targets.Sampled``. A text is what sees nothing of others (a conversation, or a
whole sequence of packed text), so that conversations are found again in later epochs, however they are packed. Each
process that computes something writes a separate part, so several runs may share a folder.

A run that is resumed has the same targets to the bit: they are drawn with the text's own seed, from what the teacher
says in the batch in which the text comes first. So it does not matter whether they had been written.

Shape suffixes: N positions of a micro-batch, R of one text, K and M kept tokens.

Tested in tests/train/objective/test_teacher_cache.py.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.train.objective.batch import Batch, Segment, segments
from slm.train.objective.sampled_softmax import Words
from slm.train.objective.soft_targets import Sampled, SparseTargets, sample
from slm.train.objective.teacher import Live

FACTS = "teacher.json"
KEY = 16
ENTRY = struct.Struct(f"<{KEY}sQQ")
"""A text's key, its first row and its number of rows."""


class _Part:
    """One process's rows and where each text's are. ``new``: it is this process's, and grows."""

    def __init__(self, folder: Path, name: str, row: np.dtype, *, new: bool = False) -> None:
        self._row, self.rows = row, 0
        self._index_path = folder / f"{name}.index"
        self._file = (folder / f"{name}.rows").open("a+b" if new else "rb")

    def entries(self) -> dict[bytes, tuple[int, int]]:
        """What is there as a whole: key -> first row and number of rows."""
        n_rows = os.fstat(self._file.fileno()).st_size // self._row.itemsize
        content = self._index_path.read_bytes()
        whole = content[: len(content) // ENTRY.size * ENTRY.size]
        return {key: (first, n) for key, first, n in ENTRY.iter_unpack(whole) if first + n <= n_rows}

    def read(self, first: int, n: int) -> np.ndarray:
        size = self._row.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), n * size, first * size), self._row)

    def write(self, key: bytes, rows: np.ndarray) -> tuple[int, int]:
        """Returns the first row and the number of rows."""
        place = self.rows, len(rows)
        self._file.write(rows.tobytes())
        self._file.flush()
        with self._index_path.open("ab") as index:  # what it names is there
            index.write(ENTRY.pack(key, *place))
        self.rows += len(rows)
        return place


class CachedTeacher:
    """Soft targets from a folder, and from the teacher what is not in it.

    ``load`` makes the teacher; it is called when something is missing. ``facts`` identify teacher and form of the
    predictions: UserError where the folder has those of another.
    """

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        load: Callable[[], Live],
        *,
        n_ids: int,
        top: int,
        samples: int,
        eot_id: int | None,
    ) -> None:
        self._folder, self._load, self._eot_id = folder, load, eot_id
        self._top, self._samples = min(top, n_ids), samples
        ids = "<u2" if n_ids <= 1 << 16 else "<u4"
        fields = [("entropy", "<f4"), ("top", ids, (self._top,)), ("p", "<f4", (self._top,)), ("tail", ids, (samples,))]
        self._row = np.dtype(fields)
        self._teacher: Live | None = None
        self._own: _Part | None = None
        self._known: dict[bytes, tuple[_Part, int, int]] = {}
        self._open(facts)

    def _open(self, facts: dict[str, Any]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / FACTS
            if not path.exists():
                atomic_write_text(path, json.dumps(facts, indent=1) + "\n")
            saved = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"distill.cache={self._folder} cannot be used ({error}): name another folder") from error
        if saved != facts:
            changed = [f"{key} was {saved.get(key)}, is {now}" for key, now in facts.items() if saved.get(key) != now]
            raise UserError(
                f"distill.cache={self._folder} holds other predictions ({'; '.join(changed)}): name another folder, or "
                "give the same teacher and options"
            )
        for index in sorted(self._folder.glob("*.index")):
            if not index.with_suffix(".rows").is_file():
                continue
            part = _Part(self._folder, index.stem, self._row)
            self._known |= {key: (part, *place) for key, place in part.entries().items()}

    def targets(self, batch: Batch, words: Words | None = None) -> SparseTargets:
        assert words is None, "what is kept of a prediction is not about drawn words (RunConfig refuses both)"
        parts = segments(batch, self._eot_id)
        keys = [_key(each) for each in parts]
        missing = [(key, each) for key, each in zip(keys, parts, strict=True) if key not in self._known]
        if missing:
            self._compute(batch, missing)
        N, width = batch.ids.numel(), self._top + self._samples
        ids_NK, weights_NK = torch.zeros(N, width, dtype=torch.int64), torch.zeros(N, width)
        entropy_N = torch.zeros(N)
        for key, each in zip(keys, parts, strict=True):
            part, first, n = self._known[key]
            sampled = self._sampled(part.read(first, n))
            at = torch.from_numpy(each.begin + each.scored)
            ids_NK[at], weights_NK[at] = sampled.targets()
            entropy_N[at] = sampled.entropy
        return SparseTargets(ids_NK, weights_NK, entropy_N)

    def _compute(self, batch: Batch, missing: list[tuple[bytes, Segment]]) -> None:
        if self._teacher is None:
            self._teacher = self._load()
        if self._own is None:
            self._own = _Part(self._folder, f"{os.getpid()}-{os.urandom(4).hex()}", self._row, new=True)
        dense = self._teacher.targets(batch)
        for key, each in missing:
            log_q_RV = dense.probabilities(slice(each.begin, each.begin + len(each.ids)))[torch.from_numpy(each.scored)]
            generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
            rows = self._rows(sample(log_q_RV, self._top, self._samples, generator))
            self._known[key] = (self._own, *self._own.write(key, rows))

    def _rows(self, sampled: Sampled) -> np.ndarray:
        rows = np.zeros(len(sampled.entropy), self._row)
        rows["entropy"], rows["top"] = sampled.entropy.numpy(), sampled.top.numpy()
        rows["p"], rows["tail"] = sampled.p.numpy(), sampled.tail.numpy()
        return rows

    @staticmethod
    def _sampled(rows: np.ndarray) -> Sampled:
        return Sampled(
            torch.from_numpy(rows["entropy"].copy()),
            torch.from_numpy(rows["top"].astype(np.int64)),
            torch.from_numpy(rows["p"].copy()),
            torch.from_numpy(rows["tail"].astype(np.int64)),
        )


def _key(segment: Segment) -> bytes:
    """Identifies a text and which of its positions are kept."""
    found = hashlib.blake2b(segment.ids.tobytes(), digest_size=KEY)
    found.update(segment.scored.astype(np.int64).tobytes())
    return found.digest()
