"""The backward pass by the kernels: from the gradient of the last layer's output to those of all parameters.

Shape suffixes: B sequences, T positions each, N = B T, D model width, F feed-forward width, V vocabulary.

Tested in tests/slm/kernels/test_fused.py.
"""

import torch
from torch import Tensor

from slm.kernels.forward import Forward, attention_arguments, conv_arguments, wide_norms
from slm.kernels.gradients import gradient_of, run_hooks
from slm.kernels.operations import (
    add_bias_gradient,
    add_product,
    add_weight_gradient,
    add_weight_gradients,
    norm,
    norm_backward,
)
from slm.kernels.packed import PackedWeights
from slm.kernels.workspace import Activations, Workspace
from slm.model.layers.layer import Attention, RMSNorm
from slm.model.layers.lfm2 import ShortConv


class Backward:
    """Layers and embedding of one model. ``forward`` computes again what was not kept."""

    def __init__(self, work: Workspace, forward: Forward) -> None:
        self._work, self._forward, self._layers = work, forward, work.layers
        self._post_norms = work.config.traits.post_norms
        self._gelu = int(work.config.traits.activation != "silu")

    def run(self, ids_N: Tensor, dx_ND: Tensor) -> None:
        """Add every gradient from the lowest weights that learn to the last layer's output. The output's own gradient
        ``dx_ND`` is used up."""
        for index in reversed(range(self._lowest(), len(self._layers))):
            self._layer(index, dx_ND)
            self._work.progress(1 - 2 * index / (3 * len(self._layers)))
        self._embed(ids_N, dx_ND)

    def _lowest(self) -> int:
        """The lowest layer that the gradient must go through."""
        if self._work.model.model.embed_tokens.weight.requires_grad:
            return 0
        return next(filter(self._work.learns, range(len(self._layers))), len(self._layers))

    def _layer(self, index: int, dx_ND: Tensor) -> None:
        """Turn ``dx_ND`` from the gradient of layer ``index``'s output into that of its input, in place."""
        x_ND, s = self._work.activations[index].x_ND, self._work.saved(index)
        if not self._work.activations[index].whole:
            self._forward.mix(index, x_ND, s)
            act_NF = self._forward.gated(index, s, s.gate_up or (None, None))
            if self._post_norms:
                self._forward.normed_mlp(index, act_NF, s)
        self._mlp(index, s, dx_ND)
        conv = self._layers[index].mixer
        if isinstance(conv, ShortConv):
            self._short_conv(index, conv, x_ND, s, dx_ND)
        else:
            self._attention(index, x_ND, s, dx_ND)

    def _mlp(self, index: int, s: Activations, dx_ND: Tensor) -> None:
        work, layer, (N, D), F = self._work, self._layers[index], dx_ND.shape, self._work.config.ffn_dim
        gate_up = s.gate_up
        if gate_up is None:
            gate_up = (work.buffer("gate", N, F), work.buffer("up", N, F))
            self._forward.gated(index, s, gate_up)
        act_NF, d_gate_up, dh_ND = work.buffer("act", N, F), work.buffer("d_gate_up", N, 2 * F), work.buffer("dh", N, D)
        d_branch_ND = self._branch_gradient(dx_ND)
        if self._post_norms:
            d_branch_ND = work.buffer("d_branch", N, D)
            norm_backward(work, layer.post_feedforward_layernorm, dx_ND, s.branch_2, s.inverse_rms_4, None, d_branch_ND)
        down, into = work.down[index], (*gate_up, d_gate_up, act_NF)
        adds = int(self._low_rank_gradient(d_branch_ND, down, act_NF))
        weights = down.layout("backward")
        work.kernels.slm_gate_up_backward(d_branch_ND, N, D, weights, F, *into, self._gelu, adds)
        add_weight_gradient(work, "down", d_branch_ND, act_NF, layer.mlp.down_proj.weight)
        self._add_low_rank(d_branch_ND, down, act_NF)
        run_hooks(layer.mlp.down_proj.weight)
        self._input_gradient(d_gate_up, work.gate_up[index], dh_ND)
        h_ND = norm(work, layer.feedforward_norm, s.mid_ND, None)
        gates = [each.weight for each in layer.mlp.inputs]
        add_weight_gradients(work, "gate_up", d_gate_up, h_ND, gates)
        self._add_low_rank(d_gate_up, work.gate_up[index], h_ND)
        run_hooks(*reversed(gates))
        self._norm_backward(layer.feedforward_norm, dh_ND, s.mid_ND, s.inverse_rms_2, dx_ND)

    def _attention(self, index: int, x_ND: Tensor, s: Activations, dx_ND: Tensor) -> None:
        work, layer, c, (B, T) = self._work, self._layers[index], self._work.config, self._work.shape
        attention = layer.self_attn
        d_attended, d_qkv = work.buffer("d_attended", *s.attended.shape), work.buffer("d_qkv", *s.qkv.shape)
        d_branch_ND = self._branch_gradient(dx_ND)
        if self._post_norms:
            d_branch_ND = work.buffer("d_branch", *dx_ND.shape)
            norm_backward(work, layer.post_attention_layernorm, dx_ND, s.branch_1, s.inverse_rms_3, None, d_branch_ND)
        self._input_gradient(d_branch_ND, work.o[index], d_attended)
        add_weight_gradient(work, "o", d_branch_ND, s.attended, attention.o_proj.weight)
        self._add_low_rank(d_branch_ND, work.o[index], s.attended)
        run_hooks(attention.o_proj.weight)
        size = work.kernels.slm_attention_backward_scratch(B, T, c.n_heads, c.head_dim)
        heads = work.buffer("heads", size, dtype=torch.float32)
        norms = work.buffer("norms", B * c.n_heads, 2, c.head_dim, dtype=torch.float32)
        d_norms = torch.zeros(2, c.head_dim)
        arguments = attention_arguments(work, index)
        qkv, out = work.spread("wide_qkv", s.qkv), work.spread("wide_attended", s.attended)
        d_out, d_wide = self._wide_gradients(d_attended, d_qkv)
        work.kernels.slm_attention_backward(qkv, *arguments, out, s.lse_BHT, d_out, d_wide, d_norms, heads, norms)
        if work.rows:
            work.rows.gather(d_wide, d_qkv)
        if c.traits.wide_qk_norm:
            self._wide_norms_backward(index, s, d_qkv)
        dh_ND = work.buffer("dh", *dx_ND.shape)
        self._input_gradient(d_qkv, work.qkv[index], dh_ND)
        h_ND = norm(work, layer.attention_norm, x_ND, None)
        self._add_qkv_gradients(attention, d_qkv, h_ND)
        self._add_low_rank(d_qkv, work.qkv[index], h_ND)
        if work.head_norms:
            d_norms[0] *= c.query_factor
            _add_qk_norm_gradients(attention, d_norms)
        self._norm_backward(layer.attention_norm, dh_ND, x_ND, s.inverse_rms_1, dx_ND)

    def _branch_gradient(self, dx_ND: Tensor) -> Tensor:
        """The gradient of what a branch ends in, before any norm, from that of its sum with the residual stream."""
        if (factor := self._work.config.residual_multiplier) == 1.0:
            return dx_ND
        return torch.mul(dx_ND, factor, out=self._work.buffer("d_branch", *dx_ND.shape))

    def _norm_backward(
        self, layer: RMSNorm | None, dh_ND: Tensor, x_ND: Tensor, inverse_rms_N: Tensor, dx_ND: Tensor
    ) -> None:
        """Add to ``dx_ND`` what comes through a branch's first norm, or through none."""
        if layer is None:
            dx_ND += dh_ND
        else:
            norm_backward(self._work, layer, dh_ND, x_ND, inverse_rms_N, dx_ND, dx_ND)

    def _wide_norms_backward(self, index: int, s: Activations, d_qkv: Tensor) -> None:
        """Turn the gradients of normed queries and keys in ``d_qkv`` into those of what was normed."""
        for part, layer, raw, inverse_rms_N in wide_norms(self._work, index, s):
            d_normed = self._work.buffer(f"normed_{part.start}", *raw.shape).copy_(d_qkv[:, part])
            d_raw = self._work.buffer(f"d_raw_{part.start}", *raw.shape)
            norm_backward(self._work, layer, d_normed, raw, inverse_rms_N, None, d_raw)
            d_qkv[:, part] = d_raw

    def _short_conv(self, index: int, conv: ShortConv, x_ND: Tensor, s: Activations, dx_ND: Tensor) -> None:
        work, layer = self._work, self._layers[index]
        d_mixed_ND, d_bcx = work.buffer("d_mixed", *s.attended.shape), work.buffer("d_bcx", *s.qkv.shape)
        self._input_gradient(dx_ND, work.o[index], d_mixed_ND)
        add_weight_gradient(work, "out_proj", dx_ND, s.attended, conv.out_proj.weight)
        self._add_low_rank(dx_ND, work.o[index], s.attended)
        arguments, d_taps_WD = conv_arguments(work, conv), torch.empty(conv.taps_WD.shape)
        size = work.kernels.slm_short_conv_scratch(x_ND.shape[1], len(d_taps_WD))
        partial = work.buffer("partial_taps", size, dtype=torch.float32)
        d_out, d_wide = self._wide_gradients(d_mixed_ND, d_bcx)
        bcx = work.spread("wide_qkv", s.qkv)
        work.kernels.slm_short_conv_backward(bcx, d_out, *arguments, d_wide, d_taps_WD, partial)
        if work.rows:
            work.rows.gather(d_wide, d_bcx)
        dh_ND = work.buffer("dh", *dx_ND.shape)
        self._input_gradient(d_bcx, work.qkv[index], dh_ND)
        h_ND = norm(work, layer.attention_norm, x_ND, None)
        add_weight_gradient(work, "in_proj", d_bcx, h_ND, conv.in_proj.weight)
        self._add_low_rank(d_bcx, work.qkv[index], h_ND)
        if conv.conv.weight.requires_grad:
            _add_gradient(conv.conv.weight, d_taps_WD.T[:, None])
        run_hooks(conv.out_proj.weight, conv.in_proj.weight)
        self._norm_backward(layer.attention_norm, dh_ND, x_ND, s.inverse_rms_1, dx_ND)

    def _wide_gradients(self, d_attended: Tensor, d_qkv: Tensor) -> tuple[Tensor, Tensor]:
        """Every position's gradient of what attention returns, and memory for that of what it reads."""
        work = self._work
        d_out = work.wide("wide_d_attended", d_attended)
        return work.rows.place(d_attended, d_out) if work.rows else d_out, work.wide("wide_d_qkv", d_qkv)

    def _add_qkv_gradients(self, attention: Attention, d_qkv: Tensor, h_ND: Tensor) -> None:
        """Add the gradients of queries, keys and values. Their columns of ``d_qkv`` [N, ...] follow one another."""
        column, weights = 0, [each.weight for each in attention.inputs]
        add_weight_gradients(self._work, "qkv", d_qkv, h_ND, weights)
        for linear in attention.inputs:
            if linear.bias is not None and linear.bias.requires_grad:
                add_bias_gradient(self._work, d_qkv[:, column:], linear.bias)
            column += len(linear.weight)
        run_hooks(*reversed(weights))

    def _input_gradient(self, dy: Tensor, packed: PackedWeights, out: Tensor) -> None:
        residual = out if self._low_rank_gradient(dy, packed, out) else None
        weights = packed.layout("backward")
        self._work.kernels.slm_linear(dy, dy.shape[0], packed.rows, weights, packed.width, residual, out)

    def _low_rank_gradient(self, dy: Tensor, packed: PackedWeights, out: Tensor) -> bool:
        """Whether the layers have adapters: then ``out`` gets what these add to the gradient of their input."""
        if (low := packed.low_rank) is None:
            return False
        low.add_backward(self._work.kernels, dy, self._work.room("low_dy", len(dy), low.rank), out)
        return True

    def _add_low_rank(self, dy: Tensor, packed: PackedWeights, x: Tensor) -> None:
        """Add the gradients of the layers' adapters, right after that of their input."""
        if (low := packed.low_rank) is None:
            return
        work, N = self._work, len(x)
        u_NR, v_NR = work.room("low_x", N, low.rank), work.room("low_dy", N, low.rank)
        low.inner(work.kernels, x, u_NR)
        da_RI, db_RO = torch.empty(low.rank, low.width), torch.empty(low.rank, low.rows)
        add_product(work, "low_rank", v_NR, x, da_RI, 0, work.kernels)
        add_product(work, "low_rank", u_NR, dy, db_RO, 0, work.kernels)
        low.add_gradients(da_RI, db_RO)

    def _embed(self, ids_N: Tensor, dx_ND: Tensor) -> None:
        table_VD, config = self._work.model.model.embed_tokens.weight, self._work.config
        if not table_VD.requires_grad:
            return
        if config.embedding_scale != 1.0:
            dx_ND *= config.embedding_scale
        grad, add = gradient_of(table_VD)
        if not add:
            grad.zero_()
        columns = [ids_N] if ids_N.ndim == 1 else ids_N.T.contiguous().unbind()
        if len(columns) > 1:
            dx_ND /= len(columns)
        for each_N in columns:
            self._work.kernels.slm_embed_backward(dx_ND, each_N, *dx_ND.shape, grad)
        run_hooks(table_VD)


def _add_qk_norm_gradients(attention: Attention, d_norms: Tensor) -> None:
    """``d_norms`` [2, values per head]: the gradients of the gains of queries and keys."""
    for each, gradient in zip((attention.q_norm, attention.k_norm), d_norms, strict=True):
        if each.weight.requires_grad:
            _add_gradient(each.weight, gradient)


def _add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    grad, add = gradient_of(parameter)
    if add:
        grad += gradient
    else:
        grad.copy_(gradient)
    run_hooks(parameter)
