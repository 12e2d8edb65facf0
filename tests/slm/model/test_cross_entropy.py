"""The chunked loss is the plain one, with exact gradients, and each model compiles its own."""

import torch
import torch.nn.functional as F

from slm.model import cross_entropy
from slm.model.config import ModelConfig
from slm.model.cross_entropy import linear_cross_entropy
from slm.model.transformer import LanguageModel


def tensors(*shapes, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


def test_the_chunked_loss_is_the_plain_one_and_passes_gradcheck(monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 3 * 11)
    x, weight = tensors((8, 5), (11, 5))
    targets = torch.tensor([1, 10, -100, 3, 0, -100, 7, 2])
    expected = F.cross_entropy(x @ weight.T, targets)
    torch.testing.assert_close(linear_cross_entropy(x, weight, targets), expected)
    assert torch.autograd.gradcheck(lambda a, b: linear_cross_entropy(a, b, targets), (x, weight))
    capped = F.cross_entropy(2 * torch.tanh(x @ weight.T / 2), targets)
    torch.testing.assert_close(linear_cross_entropy(x, weight, targets, cap=2.0), capped)
    assert torch.autograd.gradcheck(lambda a, b: linear_cross_entropy(a, b, targets, cap=2.0), (x, weight))


def test_compiling_one_model_leaves_every_other_loss_as_it_is(monkeypatch):
    compiled = []

    def stand_in(function, **_):
        def call(*arguments, **options):
            compiled.append(getattr(function, "__name__", "layer"))
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(torch, "compile", stand_in)
    shape = dict(arch="gemma2", n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32)
    model = LanguageModel(ModelConfig(vocab_size=64, **shape))
    ids = torch.arange(10)[None]
    plain = model.loss(ids[:, :-1], ids[:, 1:])
    model.compile_parts()
    x, weight = tensors((8, 5), (11, 5))
    linear_cross_entropy(x, weight, torch.arange(8))
    assert compiled == []
    torch.testing.assert_close(model.loss(ids[:, :-1], ids[:, 1:]), plain)
    assert "chunk_gradients" in compiled
