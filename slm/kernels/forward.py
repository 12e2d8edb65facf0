"""The forward pass by the kernels: embedding and layers, with what the backward pass needs of them.

Shape suffixes: B sequences, T positions each, N = B T, D model width, F feed-forward width, V vocabulary, E values per
head.

Tested in tests/slm/kernels/test_fused.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slm.kernels.operations import norm
from slm.kernels.packed import PackedWeights
from slm.kernels.workspace import Activations, Workspace
from slm.model.layers.held import held_of, rows_of
from slm.model.layers.layer import Attention, RMSNorm
from slm.model.layers.lfm2 import ShortConv

Observer = Callable[[list[Tensor], Tensor], None]
"""Called with the parameters of some matrices and the input [N, inputs] that all of them read."""


class Forward:
    """Embedding and layers of one model."""

    def __init__(self, work: Workspace) -> None:
        self._work, self._layers = work, work.layers
        self._post_norms = work.config.traits.post_norms
        self._gelu = int(work.config.traits.activation != "silu")
        self.observe: Observer | None = None
        """For the input of every matrix of the layers."""

    def keeping(self, ids_N: Tensor) -> Tensor:
        """The last layer's output [N, D]; what the backward pass needs is kept."""
        work = self._work
        inputs = [each.x_ND for each in work.activations]
        self._embed(ids_N, inputs[0])
        outputs = [*inputs[1:], work.buffer("top", *inputs[0].shape)]
        for index, (x_ND, out_ND) in enumerate(zip(inputs, outputs, strict=True)):
            self._layer(index, x_ND, work.saved(index), out_ND)
            work.progress((index + 1) / (3 * len(inputs)))  # the backward pass is twice as much
        return outputs[-1]

    def hidden_states(self, ids_N: Tensor) -> Tensor:
        """The final normed hidden states [N, D]; nothing is kept for a backward pass."""
        work = self._work
        kinds = [work.config.is_conv(index) for index in range(len(self._layers))]
        # Layers of one kind share the memory of the first of them.
        saved = {kind: work.saved(kinds.index(kind)) for kind in set(kinds)}
        x_ND = saved[kinds[0]].x_ND
        self._embed(ids_N, x_ND)
        out_ND = work.buffer("top", *x_ND.shape)
        for index, kind in enumerate(kinds):
            self._layer(index, x_ND, saved[kind], out_ND)
            x_ND, out_ND = out_ND, x_ND
        return norm(work, work.model.model.norm, x_ND, None)

    def mix(self, index: int, x_ND: Tensor, s: Activations) -> None:
        """The attention (or the short convolution) of layer ``index`` and its residual, into ``s``."""
        work, layer = self._work, self._layers[index]
        h_ND = norm(work, layer.attention_norm, x_ND, s.inverse_rms_1)
        if isinstance(layer.mixer, ShortConv):
            self._linear(h_ND, work.qkv[index], s.qkv)
            bcx, out = work.spread("wide_qkv", s.qkv), work.wide("wide_attended", s.attended)
            work.kernels.slm_short_conv(bcx, *conv_arguments(work, layer.mixer), out)
            if work.rows:
                work.rows.take(out, s.attended)
        else:
            self._attend(index, h_ND, s)
        if self._post_norms:
            self._linear(s.attended, work.o[index], s.branch_1)
            h_ND = norm(work, layer.post_attention_layernorm, s.branch_1, s.inverse_rms_3)
            torch.add(x_ND, h_ND, out=s.mid_ND)
        else:
            self._add_branch(s.attended, work.o[index], x_ND, s.mid_ND)

    def _attend(self, index: int, h_ND: Tensor, s: Activations) -> None:
        work, (B, T), c = self._work, self._work.shape, self._work.config
        if (bias := _qkv_bias(self._layers[index].self_attn)) is not None:
            s.qkv.copy_(bias.expand(s.qkv.shape))
        self._linear(h_ND, work.qkv[index], s.qkv, residual=None if bias is None else s.qkv)
        if c.traits.wide_qk_norm:
            norm_wide(work, index, s)
        size = work.kernels.slm_attention_scratch(B, T, c.n_kv_heads, c.head_dim)
        keys = work.buffer("keys", size, dtype=torch.int32)
        qkv, out = work.spread("wide_qkv", s.qkv), work.wide("wide_attended", s.attended)
        work.kernels.slm_attention_forward(qkv, *attention_arguments(work, index), out, s.lse_BHT, keys)
        if work.rows:
            work.rows.take(out, s.attended)

    def gated(self, index: int, s: Activations, gate_up: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """f(gate) * up [N, F] of the layer's middle; gate and up too where there is room for them."""
        work = self._work
        h_ND = norm(work, self._layers[index].feedforward_norm, s.mid_ND, s.inverse_rms_2)
        (N, D), F = h_ND.shape, work.config.ffn_dim
        act_NF = work.buffer("act", N, F)
        packed = work.gate_up[index]
        if self.observe:
            self.observe(packed.weights, h_ND)
        if (low := packed.low_rank) is not None:
            gate_NF, up_NF = gate_up
            if gate_NF is None or up_NF is None:
                gate_up = gate_NF, up_NF = work.buffer("gate", N, F), work.buffer("up", N, F)
            low.add_forward(work.kernels, h_ND, work.room("low_x", N, low.rank), [gate_NF, up_NF])
        weights = packed.layout("forward")
        work.kernels.slm_gate_up(h_ND, N, D, weights, F, *gate_up, act_NF, self._gelu, int(low is not None))
        return act_NF

    def normed_mlp(self, index: int, act_NF: Tensor, s: Activations) -> Tensor:
        """The feed-forward's branch [N, D], normed; what its backward pass needs stays in ``s``."""
        self._linear(act_NF, self._work.down[index], s.branch_2)
        return norm(self._work, self._layers[index].post_feedforward_layernorm, s.branch_2, s.inverse_rms_4)

    def _embed(self, ids_N: Tensor, out_ND: Tensor) -> None:
        table_VD, config = self._work.model.model.embed_tokens.weight, self._work.config
        if held_of(table_VD) is not None:
            out_ND.copy_(rows_of(table_VD, ids_N).mul_(config.embedding_scale))
        elif ids_N.ndim == 2:  # bags of tokens [N, S]
            out_ND.copy_(nn.functional.embedding_bag(ids_N, table_VD, mode="mean").mul_(config.embedding_scale))
        elif config.embedding_scale != 1.0:  # in f32: rounded to the activations' format once
            out_ND.copy_(nn.functional.embedding(ids_N, table_VD).mul_(config.embedding_scale))
        else:
            self._work.kernels.slm_embed(table_VD, ids_N, *out_ND.shape, out_ND)

    def _layer(self, index: int, x_ND: Tensor, s: Activations, out_ND: Tensor) -> None:
        """Layer ``index`` of x into out; what its backward pass needs stays in ``s``."""
        self.mix(index, x_ND, s)
        act_NF = self.gated(index, s, s.gate_up or (None, None))
        if self._post_norms:
            torch.add(s.mid_ND, self.normed_mlp(index, act_NF, s), out=out_ND)
        else:
            self._add_branch(act_NF, self._work.down[index], s.mid_ND, out_ND)

    def _add_branch(self, x: Tensor, packed: PackedWeights, residual_ND: Tensor, out_ND: Tensor) -> None:
        """``residual_ND`` plus the branch that ends in this product, into ``out_ND``."""
        if (factor := self._work.config.residual_multiplier) == 1.0:
            self._linear(x, packed, out_ND, residual=residual_ND)
        else:
            branch_ND = self._work.buffer("branch", *out_ND.shape)
            self._linear(x, packed, branch_ND)
            torch.add(residual_ND, branch_ND, alpha=factor, out=out_ND)

    def _linear(self, x: Tensor, packed: PackedWeights, out: Tensor, residual: Tensor | None = None) -> None:
        if self.observe:
            self.observe(packed.weights, x)
        if (low := packed.low_rank) is not None:
            low.add_forward(self._work.kernels, x, self._work.room("low_x", len(x), low.rank), [out], residual)
            residual = out
        weights = packed.layout("forward")
        self._work.kernels.slm_linear(x, x.shape[0], packed.width, weights, packed.rows, residual, out)


def attention_arguments(work: Workspace, index: int) -> tuple[Any, ...]:
    """What the kernels of attention, forward and backward, read of layer ``index`` besides its activations."""
    c, attention = work.config, work.layers[index].self_attn
    # A factor of the queries is a factor of their norm's gain; without such a norm their rotation has it.
    norms = (attention.q_norm.gain * c.query_factor, attention.k_norm.gain) if work.head_norms else (None, None)
    rope_TR, starts_BT = work.rope_and_starts(index)
    heads = (c.n_heads, c.n_kv_heads, c.head_dim, c.rotated)
    return (*work.shape, *heads, *rope_TR, *norms, c.norm_eps, c.attention_cap or 0.0, starts_BT)


def norm_wide(work: Workspace, index: int, s: Activations) -> None:
    """Norm queries and keys over all heads, where they stand; their values before it stay in ``s``."""
    for part, layer, raw, inverse_rms_N in wide_norms(work, index, s):
        raw.copy_(s.qkv[:, part])
        normed = work.buffer(f"normed_{part.start}", *raw.shape)
        work.kernels.slm_rmsnorm(raw, *raw.shape, layer.gain, layer.eps, normed, inverse_rms_N)
        s.qkv[:, part] = normed


def wide_norms(work: Workspace, index: int, s: Activations) -> list[tuple[slice, RMSNorm, Tensor, Tensor]]:
    """For queries and keys: their columns, their norm over all heads, their values before it, and 1 / rms."""
    attention, (raw_q, raw_k), (rms_q, rms_k) = work.layers[index].self_attn, s.raw, s.inverse_rms_qk
    width = raw_q.shape[1]
    queries, keys = slice(0, width), slice(width, width + raw_k.shape[1])
    return [(queries, attention.q_norm, raw_q, rms_q), (keys, attention.k_norm, raw_k, rms_k)]


def conv_arguments(work: Workspace, conv: ShortConv) -> tuple[Any, ...]:
    """What the kernels of short convolutions, forward and backward, read besides activations."""
    taps_WD = conv.taps_WD.contiguous()
    _, starts_BT = work.rope_and_starts(0)
    return (*work.shape, work.config.d_model, len(taps_WD), taps_WD, starts_BT)


def _qkv_bias(attention: Attention) -> Tensor | None:
    """The biases of queries, keys and values, one after another; None where there are none."""
    biases: list[Tensor] = [each.bias for each in attention.inputs]
    return None if biases[0] is None else torch.cat(biases)
