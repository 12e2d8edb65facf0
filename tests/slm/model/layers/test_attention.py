"""Blockwise attention is exact, and has exact gradients."""

import pytest
import torch
import torch.nn.functional as F

from slm.model.layers import attention
from slm.model.layers.attention import causal_attention


def tensors(*shapes, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


STARTS = torch.tensor([[0, 0, 0, 3, 3, 5, 5, 5, 5, 5], [0, 1, 1, 1, 1, 1, 6, 6, 6, 9]], dtype=torch.int32)


@pytest.mark.parametrize("starts", [None, STARTS])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_attention_is_torchs_own(monkeypatch, n_kv_heads, starts):
    monkeypatch.setattr(attention, "BLOCK", 4)
    q, k, v = tensors((2, 4, 10, 8), (2, n_kv_heads, 10, 8), (2, n_kv_heads, 10, 8))
    mask = torch.ones(10, 10, dtype=torch.bool).tril()
    if starts is not None:
        mask = mask & (torch.arange(10) >= starts[:, None, :, None])
    ours = causal_attention(q, k, v, starts)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    expected = torch.autograd.grad((theirs * weights).sum(), (q, k, v))
    for one, other in zip(torch.autograd.grad((ours * weights).sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_attention_passes_gradcheck(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 3)
    q, k, v = tensors((1, 4, 7, 4), (1, 2, 7, 4), (1, 2, 7, 4))
    assert torch.autograd.gradcheck(causal_attention, (q, k, v))


def test_bf16_stays_within_its_own_rounding(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 16)
    wide = [each.detach() for each in tensors((2, 4, 40, 32), (2, 4, 40, 32), (2, 4, 40, 32), dtype=torch.float32)]
    low = [each.bfloat16().requires_grad_() for each in wide]
    exact = F.scaled_dot_product_attention(*wide, is_causal=True)
    ours = causal_attention(*low).float()
    theirs = F.scaled_dot_product_attention(*low, is_causal=True).float()
    assert (ours - exact).norm() < 1.3 * (theirs - exact).norm()
