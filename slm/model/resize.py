"""A model's weights with more rows in the vocabulary: for special tokens that are added to it.

Shape suffixes: V vocabulary, D model width.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from slm.model.config import ModelConfig
from slm.model.held.held_model import assemble
from slm.model.stored_weights import stream_weights
from slm.model.transformer import LanguageModel

MULTIPLE = 64
"""Rows are padded up to a multiple of this."""
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def with_vocabulary(shape: ModelConfig, n_ids: int, *, bos_id: int | None, eos_id: int | None) -> ModelConfig:
    """``shape`` with at least ``n_ids`` rows and these special tokens."""
    rows = shape.vocab_size if n_ids <= shape.vocab_size else -(-n_ids // MULTIPLE) * MULTIPLE
    return replace(shape, vocab_size=rows, bos_id=bos_id, eos_id=eos_id)


def with_rows(table_VD: Tensor, rows: int) -> Tensor:
    """The table with ``rows`` rows: each new one is the mean of the old ones, so it begins as an average token."""
    missing = rows - len(table_VD)
    if missing <= 0:
        return table_VD
    mean_D = table_VD.float().mean(0).to(table_VD.dtype)
    return torch.cat([table_VD, mean_D.expand(missing, -1)])


def spread_rows(table_VD: Tensor, new: range) -> None:
    """Move the rows of ``new`` ids apart in place: the mean of the old rows, plus noise with the old rows' deviation.

    For a table that stays as it is in training: there, equal rows could never be told apart. The same table and ids
    give the same rows, so that adapters trained from one model fit each other's base.
    """
    old_VD = table_VD[: new.start].float()
    noise_ND = torch.randn(len(new), table_VD.shape[1], generator=torch.Generator().manual_seed(new.start))
    table_VD[new.start : new.stop] = (old_VD.mean(0) + old_VD.std(0) * noise_ND).to(table_VD.dtype)


def load_model(directory: str | Path, shape: ModelConfig, *, spread: range = range(0)) -> LanguageModel:
    """The model in ``directory`` as ``shape``, which differs from its own in the vocabulary's rows at most.

    ``spread``: ids that are new in the tokenizer. Their rows are moved apart. One tensor at a time is in memory in the
    form in which it is stored.
    """
    return assemble(shape, stream_resized(directory, shape, spread=spread), lambda *_: None, where=str(directory))


def stream_resized(directory: str | Path, shape: ModelConfig, *, spread: range) -> Iterator[tuple[str, Tensor]]:
    """The tensors of ``load_model`` one at a time, as stored."""
    for name, tensor in stream_weights(directory, tied=shape.tie_embeddings):
        if name in TABLES:
            tensor = with_rows(tensor, shape.vocab_size)
            if spread:
                spread_rows(tensor, spread)
        yield name, tensor
