"""Held-out loss: the same text whatever the micro-batch, in little memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slm.data.stream.loader import HeldOut
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.backend import LOSS_ROWS, AutogradBackend, fallback_line
from slm.train.config import TrainConfig
from slm.train.environment import Environment
from slm.train.validation import Validator
from tests.helpers.chat_model import base_tokenizer

PLAIN = Environment(threads=1, precision="f32", compile=False, notes=())
VOCAB = 700
TRAIN = TrainConfig(max_steps=1, seq_len=64, micro_batch=1)
SHAPE = ModelConfig(
    vocab_size=VOCAB, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=64
)


def new_model() -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(SHAPE)


def blocks(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 300, (rows, length + 1)).astype(np.int64)


class Shapes(AutogradBackend):
    """The backend, and the batches that it is given."""

    def losses(self, ids_BT, targets_BT, starts_BT=None):
        self.seen = [*getattr(self, "seen", []), len(ids_BT)]
        return super().losses(ids_BT, targets_BT, starts_BT)


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 7, 64])
def test_the_text_that_is_scored_does_not_depend_on_the_micro_batch(micro_batch):
    """And all batches have one shape, for which a compiled step is made."""
    held_out, backend = blocks(10, 16), Shapes(new_model(), PLAIN)
    found = Validator(HeldOut(held_out), base_tokenizer(), VOCAB, micro_batch)(backend)
    whole = Validator(HeldOut(held_out), base_tokenizer(), VOCAB, 10)(backend)
    assert (found.tokens, found.loss) == (160, pytest.approx(whole.loss, rel=1e-6))
    assert found.bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-6)
    assert set(backend.seen[:-1]) == {min(micro_batch, 10)}


def test_the_last_validation_scores_more_and_tells_the_loss_of_the_usual_blocks():
    held_out, backend = HeldOut(blocks(10, 16)), AutogradBackend(new_model(), PLAIN)
    mine = Validator(held_out, base_tokenizer(), VOCAB, 3, usual=4)
    usual, last = mine(backend), mine(backend, last=True)
    everything = Validator(held_out, base_tokenizer(), VOCAB, 3)(backend)
    assert (usual.tokens, last.tokens) == (64, 160)
    assert usual.usual_loss is None
    assert last.usual_loss == pytest.approx(usual.loss, rel=1e-6)
    assert last.loss == pytest.approx(everything.loss, rel=1e-6)
    assert last.loss != pytest.approx(usual.loss, rel=1e-3)


class SavesAThird(AutogradBackend):
    """A model that spends two thirds of what a unigram model of ``counts`` spends, and a little that differs."""

    def __init__(self, counts: np.ndarray) -> None:
        super().__init__(new_model(), PLAIN)
        self._nats = torch.from_numpy(-np.log((counts + 0.5) / (counts + 0.5).sum()))

    def losses(self, ids_BT, targets_BT, starts_BT=None):
        return self._nats[targets_BT] * 2 / 3 + 0.01 * ids_BT / VOCAB


def test_a_sample_is_scored_as_the_text_that_it_stands_for():
    """Half of the text is one frequent token, and a sample has more or less of that."""
    tokenizer, ids = base_tokenizer(), np.random.default_rng(0).integers(0, 300, (40, 17))
    ids[:20] = tokenizer.encode("e")[0]
    counts = np.bincount(ids[:, 1:].ravel(), minlength=tokenizer.vocab_size)
    backend = SavesAThird(counts)
    whole = Validator(HeldOut(ids), tokenizer, tokenizer.vocab_size, 8)(backend).bits_per_byte
    for rows in (slice(10, 40), slice(0, 25), slice(22, 40)):
        sample = Validator(HeldOut(ids[rows], counts), tokenizer, tokenizer.vocab_size, 8)(backend).bits_per_byte
        alone = Validator(HeldOut(ids[rows]), tokenizer, tokenizer.vocab_size, 8)(backend).bits_per_byte
        assert sample == pytest.approx(whole, rel=0.01)
        assert alone != pytest.approx(whole, rel=0.05)


class Largest(TorchDispatchMode):
    """The most numbers of one tensor that a computation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        self.numbers = max([self.numbers, *(each.numel() for each in made)])
        return out


def test_autograd_makes_the_logits_of_some_positions_at_a_time():
    model, block = new_model(), torch.from_numpy(blocks(40, 64))
    ids, targets = block[:, :-1], block[:, 1:].contiguous()
    with torch.no_grad():
        wanted = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    with Largest() as largest:
        losses = AutogradBackend(model, PLAIN).losses(ids, targets)
    assert torch.allclose(losses, wanted, atol=1e-5)
    assert largest.numbers == LOSS_ROWS * VOCAB < ids.numel() * VOCAB


def test_recomputing_whole_layers_instead_of_parts_is_said():
    some, whole = (replace(TRAIN, gradient_checkpointing=how) for how in ("mlp", True))
    assert "whole layers are recomputed" in (fallback_line(new_model(), PLAIN, some) or "")
    assert fallback_line(new_model(), PLAIN, whole) is None
