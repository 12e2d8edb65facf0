"""The model that a run started from, frozen, and what it makes of pairs: DPO's reference.

Each pair's two numbers are computed when it is first seen, and kept in the run's directory: later passes over the data
need no further forward pass. They are computed in the batch in which the pair comes first, so a run that is resumed
has the same numbers to the bit, whether or not its last ones had been written.

Shape suffixes: P pairs, 2 the chosen and the rejected answer.

Tested in tests/train/objective/test_reference.py, tests/train/objective/test_preference_run.py.
"""

import hashlib
import struct
from pathlib import Path

import torch
from torch import Tensor

from slm.data.errors import UserError
from slm.model.transformer import LanguageModel, empty_model
from slm.train.backend import Backend
from slm.train.objective.batch import Batch
from slm.train.objective.preference import Answers

FILE = "reference.bin"
"""In the run's directory: the digest of the reference's weights, then a record for each pair."""
DIGEST = 16
RECORD = struct.Struct(f"<{DIGEST}sdd")


def frozen_copy(model: LanguageModel) -> LanguageModel:
    """The model as it is now, apart from it and not to be trained."""
    copy = empty_model(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.requires_grad_(False).eval()


def digest_of(model: LanguageModel) -> bytes:
    """Identifies a model's weights."""
    found = hashlib.blake2b(digest_size=DIGEST)
    for tensor in model.state_dict().values():
        found.update(tensor.detach().contiguous().numpy().data)
    return found.digest()


class KeptReference:
    """The log-probabilities that a frozen model gives to pairs.

    ``path``: where they are kept; None: each time they are computed anew. UserError where the file there is another
    model's.
    """

    def __init__(self, backend: Backend, digest: bytes, path: Path | None) -> None:
        self._backend, self._path = backend, path
        self._known: dict[bytes, tuple[float, float]] = {}
        if path is not None:
            self._read(path, digest)

    def __call__(self, batch: Batch, answers: Answers) -> Tensor:
        """f64 [P, 2], nats."""
        keys = [hashlib.blake2b(tokens, digest_size=DIGEST).digest() for tokens in answers.tokens()]
        missing = [index for index, key in enumerate(keys) if key not in self._known]
        if missing or self._path is None:
            with torch.no_grad():
                computed_P2 = answers.log_probabilities(self._backend.losses(batch.ids, batch.targets, batch.starts))
            if self._path is None:
                return computed_P2
            self._keep(self._path, {keys[index]: tuple(computed_P2[index].tolist()) for index in missing})
        return torch.tensor([self._known[key] for key in keys], dtype=torch.float64)

    def _keep(self, path: Path, found: dict[bytes, tuple[float, ...]]) -> None:
        with path.open("ab") as file:
            for key, (chosen, rejected) in found.items():
                file.write(RECORD.pack(key, chosen, rejected))
                self._known[key] = (chosen, rejected)

    def _read(self, path: Path, digest: bytes) -> None:
        content = path.read_bytes() if path.exists() else b""
        if len(content) < DIGEST:
            path.write_bytes(digest)
            return
        if content[:DIGEST] != digest:
            raise UserError(
                f"{path} belongs to another model than the one this run starts from: restore what init_from named "
                "when the run began, or start anew with resume=never"
            )
        whole = (len(content) - DIGEST) // RECORD.size
        with path.open("r+b") as file:  # what follows was cut off while it was written
            file.truncate(DIGEST + whole * RECORD.size)
        for key, chosen, rejected in RECORD.iter_unpack(content[DIGEST : DIGEST + whole * RECORD.size]):
            self._known[key] = (chosen, rejected)
