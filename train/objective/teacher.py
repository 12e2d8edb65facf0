"""Teachers: a model in torch or with the training kernels, or a GGUF file (``slm.train.objective.gguf_teacher``).

Shape suffixes: N positions of a micro-batch, R some of them, D model width, V vocabulary.

Tested in tests/train/objective/test_teacher.py.
"""

import hashlib
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.hub.models import gguf_file, resolve
from slm.llama.gguf_check import read_header
from slm.llama.verdict import require_working_build
from slm.model import checkpoint
from slm.model.transformer import LanguageModel
from slm.train.backend import Backend, make_frozen_backend
from slm.train.config import TrainConfig
from slm.train.environment import Environment
from slm.train.objective.batch import Batch
from slm.train.objective.gguf_teacher import GGUFTeacher, vocabulary
from slm.train.objective.sampled_softmax import Words
from slm.train.objective.soft_targets import ComputedTargets, DenseTargets

SAMPLE = 1 << 20
"""Bytes at each end of a file by which a teacher is recognised, with the file's length."""


class ModelTeacher:
    """A model that computes along."""

    def __init__(self, model: LanguageModel, backend: Backend, *, n_ids: int) -> None:
        self._backend, self._n_ids = backend, n_ids
        self._head_VD = model.head_weight_VD.detach()[:n_ids]
        self._capped = model.capped
        self._more_rows = len(model.head_weight_VD) > n_ids  # rows that stand for nothing would be part of a softmax

    def targets(self, batch: Batch, words: Words | None = None) -> DenseTargets:
        """Those of the batch's positions, among ``words`` where they are given."""
        x_ND = self._backend.hidden_states(batch.ids, batch.starts)
        ids, offsets = (None, None) if words is None else (words.ids, words.offsets)

        def logits(rows: slice) -> Tensor:
            return self._capped(F.linear(x_ND[rows].float(), self._head_VD if ids is None else self._head_VD[ids]))

        def gradient(rows: slice, targets_R: Tensor, share: float) -> Tensor:
            return self._backend.softmax_gradient(x_ND[rows], targets_R, share, ids, offsets)

        targets = (logits, self._n_ids if ids is None else len(ids), offsets)
        if ids is None and self._more_rows:
            return DenseTargets(*targets)
        return ComputedTargets(*targets, gradient=gradient)


Live = ModelTeacher | GGUFTeacher


class Named:
    """A teacher's files, found and compared with the student's tokenizer, and not yet loaded.

    ``eot_id``: what ends documents that do not see each other. UserError where there is none, or where its tokens are
    not the student's.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        config: TrainConfig,
        environment: Environment,
        *,
        eot_id: int | None,
        short: bool,
    ) -> None:
        self._config, self._environment = config, environment
        self._n_ids, self._eot_id = tokenizer.vocab_size, eot_id
        file = gguf_file(name)
        self.is_gguf = file is not None
        self.path = file.path if file else resolve(name).checkpoint()
        context = self._check_tokens(tokenizer)
        if not short and config.seq_len > context:
            raise UserError(
                f"train.seq_len={config.seq_len} is longer than the context of the teacher {self.path}: use "
                f"train.seq_len={context} or less"
            )

    def _check_tokens(self, tokenizer: Tokenizer) -> int:
        """UserError where ids stand for other tokens. Returns the teacher's context, tokens."""
        if self.is_gguf:
            require_working_build()
            theirs, facts = vocabulary(self.path), read_header(self.path).metadata
            context = int(facts.get(f"{facts.get('general.architecture')}.context_length", 0))
        else:
            theirs, context = spellings(load_tokenizer(str(self.path))), checkpoint.load_config(self.path).seq_len
        for id, (mine, its) in enumerate(zip(spellings(tokenizer), theirs, strict=False)):
            if mine != its:
                raise UserError(
                    f"the teacher {self.path} has another tokenizer: its token {id} is {its!r}, here it is {mine!r}; "
                    "name a teacher with the tokenizer of the model that is trained"
                )
        if len(theirs) < tokenizer.vocab_size:
            raise UserError(
                f"the teacher {self.path} has another tokenizer: {len(theirs):,} tokens, here there are "
                f"{tokenizer.vocab_size:,}; name a teacher with the tokenizer of the model that is trained"
            )
        return context

    def digest(self) -> str:
        """Identifies the teacher by its weights: the lengths of their files, and their ends."""
        files = [self.path] if self.is_gguf else sorted(self.path.glob("*.safetensors"))
        found = hashlib.blake2b(digest_size=16)
        for path in (each for each in files if each.name != checkpoint.OPTIMIZER):
            size = path.stat().st_size
            with path.open("rb") as file:
                found.update(f"{size} ".encode() + file.read(SAMPLE))
                file.seek(max(0, size - SAMPLE))
                found.update(file.read())
        return found.hexdigest()

    def load(self) -> Live:
        if self.is_gguf:
            return GGUFTeacher(
                self.path,
                seq_len=self._config.seq_len,
                n_ids=self._n_ids,
                n_threads=self._environment.threads,
                eot_id=self._eot_id,
            )
        return model_teacher(self.path, self._environment, self._n_ids, self._eot_id)


def model_teacher(directory: Path, environment: Environment, n_ids: int, eot_id: int | None) -> ModelTeacher:
    """The model of a checkpoint or a Hugging Face model directory, as a teacher."""
    model = checkpoint.load_model(directory).requires_grad_(False).eval()
    return frozen_teacher(model, environment, n_ids, eot_id)


def frozen_teacher(model: LanguageModel, environment: Environment, n_ids: int, eot_id: int | None) -> ModelTeacher:
    """A model that is not trained, as a teacher."""
    return ModelTeacher(model, make_frozen_backend(model, environment, eot_id), n_ids=n_ids)


def spellings(tokenizer: Tokenizer) -> list[bytes]:
    """What every id stands for: bytes of text, or a special token's name."""
    found = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    for token in tokenizer.spec.get("added_tokens") or []:
        if token["id"] < len(found):
            found[token["id"]] = token["content"].encode()
    return found
