"""Causal attention by blocks of queries, for training: no work on keys that the mask hides from a whole block.

torch's CPU flash kernel reaches a fraction of the machine's matrix rate. Here each block of queries meets the keys up
to its own end in plain matrix products, which run at that rate, and the backward pass computes the probabilities again
from the saved log-sum-exp (Dao et al. 2022) instead of keeping them. Meant to be compiled.

Shape suffixes: B sequences, H query heads, K key heads, P = B K, G query heads per key head, T positions, R rows of a
block (G times its positions), S visible keys, E values per head.
"""

import math
from typing import Any

import torch
from torch import Tensor

from slm.model.cross_entropy import soft_cap_slope, soft_capped

BLOCK = 256
"""Query positions per block."""


def causal_attention(
    q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, starts_BT: Tensor | None = None, cap: float | None = None
) -> Tensor:
    """Attention [B, H, T, E] of every position over itself and those before it, from ``starts_BT`` (int32) on. ``cap``:
    scores are soft-capped at it."""
    B, H, T, E = q_BHTE.shape
    K = k_BKTE.shape[1]
    starts_PT = None if starts_BT is None else starts_BT.repeat_interleave(K, dim=0)
    out = BlockwiseAttention.apply(
        q_BHTE.reshape(B * K, H // K, T, E), k_BKTE.reshape(B * K, T, E), v_BKTE.reshape(B * K, T, E), starts_PT, cap
    )
    return out.view(B, H, T, E)


def capped_attention(q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, cap: float, mask: Tensor | None) -> Tensor:
    """Attention [B, H, T, E] with soft-capped scores over cached keys, which torch's kernel cannot. ``mask``: the keys
    that each query sees, bool [T, S] or [B, 1, T, S]; None: all up to its own."""
    (B, H, T, E), (K, S) = q_BHTE.shape, k_BKSE.shape[1:3]
    if mask is None:
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    q_BKGTE = q_BHTE.reshape(B, K, H // K, T, E)
    scores_BKGTS = soft_capped(_at_least_f32(q_BKGTE @ k_BKSE[:, :, None].transpose(-1, -2)) / math.sqrt(E), cap)
    hidden = ~(mask if mask.ndim == 2 else mask[:, :, None])
    p_BKGTS = scores_BKGTS.masked_fill(hidden, -math.inf).softmax(-1).to(v_BKSE.dtype)
    return (p_BKGTS @ v_BKSE[:, :, None]).reshape(B, H, T, E)


class BlockwiseAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(E)) v for q [P, G, T, E] and k, v [P, T, E]; the result like q. ``cap``: what the softmax
    gets is soft-capped at it."""

    @staticmethod
    def forward(
        ctx: Any, q_PGTE: Tensor, k_PTE: Tensor, v_PTE: Tensor, starts_PT: Tensor | None, cap: float | None
    ) -> Tensor:
        P, G, T, E = q_PGTE.shape
        scale = 1 / math.sqrt(E)
        outs, lses = [], []
        for start, stop in _blocks(T):
            q_PRE = q_PGTE[:, :, start:stop].reshape(P, -1, E)
            scores_PRS = soft_capped(_at_least_f32(q_PRE @ k_PTE[:, :stop].transpose(1, 2)) * scale, cap)
            scores_PRS = scores_PRS.masked_fill(_causal_mask(start, stop, G, starts_PT), -math.inf)
            lse_PR1 = scores_PRS.logsumexp(-1, keepdim=True)
            p_PRS = (scores_PRS - lse_PR1).exp().to(q_PRE.dtype)
            outs.append((p_PRS @ v_PTE[:, :stop]).view(P, G, stop - start, E))
            lses.append(lse_PR1)
        out_PGTE = torch.cat(outs, dim=2)
        ctx.save_for_backward(q_PGTE, k_PTE, v_PTE, starts_PT, out_PGTE, *lses)
        ctx.cap = cap
        return out_PGTE

    @staticmethod
    def backward(ctx: Any, dout_PGTE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_PGTE, k_PTE, v_PTE, starts_PT, out_PGTE, *lses = ctx.saved_tensors
        P, G, T, E = q_PGTE.shape
        scale = 1 / math.sqrt(E)
        dqs = []
        dk_PTE = torch.zeros_like(_at_least_f32(k_PTE))
        dv_PTE = torch.zeros_like(_at_least_f32(v_PTE))
        for (start, stop), lse_PR1 in zip(_blocks(T), lses, strict=True):
            q_PRE = q_PGTE[:, :, start:stop].reshape(P, -1, E)
            out_PRE = out_PGTE[:, :, start:stop].reshape(P, -1, E)
            dout_PRE = dout_PGTE[:, :, start:stop].reshape(P, -1, E)
            scores_PRS = soft_capped(_at_least_f32(q_PRE @ k_PTE[:, :stop].transpose(1, 2)) * scale, ctx.cap)
            p_PRS = (scores_PRS - lse_PR1).exp().masked_fill(_causal_mask(start, stop, G, starts_PT), 0.0)
            dp_PRS = _at_least_f32(dout_PRE @ v_PTE[:, :stop].transpose(1, 2))
            delta_PR1 = (_at_least_f32(dout_PRE) * _at_least_f32(out_PRE)).sum(-1, keepdim=True)
            ds_PRS = p_PRS * (dp_PRS - delta_PR1) * scale
            if ctx.cap:
                ds_PRS = ds_PRS * soft_cap_slope(scores_PRS, ctx.cap)
            ds_PRS = ds_PRS.to(q_PRE.dtype)
            dqs.append((ds_PRS @ k_PTE[:, :stop]).view(P, G, stop - start, E))
            dk_PTE[:, :stop] += ds_PRS.transpose(1, 2) @ q_PRE
            dv_PTE[:, :stop] += p_PRS.to(q_PRE.dtype).transpose(1, 2) @ dout_PRE
        return torch.cat(dqs, dim=2), dk_PTE.to(k_PTE.dtype), dv_PTE.to(v_PTE.dtype), None, None


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def _causal_mask(start: int, stop: int, groups: int, starts_PT: Tensor | None) -> Tensor:
    """True where a row of the block may not attend to a key: bool [R, S], or [P, R, S] with starts."""
    rows_R1 = torch.arange(start, stop).repeat(groups)[:, None]
    keys_S = torch.arange(stop)
    masked_RS = rows_R1 < keys_S
    if starts_PT is None:
        return masked_RS
    return masked_RS | (keys_S < starts_PT[:, start:stop].repeat(1, groups)[:, :, None])


def _at_least_f32(x: Tensor) -> Tensor:
    """``x`` in f32 or its own wider type: sums and exponentials are not computed in bf16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
