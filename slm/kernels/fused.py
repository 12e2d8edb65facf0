"""A language model's loss and gradients by hand-written kernels: forward and backward in one call, without autograd.

Activations are bf16 or f32, as the kernels are. Sums are f32. Gradients are f32 and go straight into
``parameter.grad``. What autograd and a compiler do not do here: weights are packed once per optimizer step into the
layout that the products read; what follows a product (residual, gate, their gradients) is done while its result is in
registers; gradients of weights are added where they belong inside the product; the head's logits exist only for
some rows at a time; attention does no work on masked keys.

Shape suffixes: B sequences, T positions each, N = B T, D model width, F feed-forward width, V vocabulary, H query
heads.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from slm.kernels.library import Kernels
from slm.kernels.packed import PackedWeights
from slm.model.cross_entropy import IGNORED
from slm.model.head_loss import HeadLoss, HeadPass
from slm.model.transformer import Attention, LanguageModel, RMSNorm, local_starts, rope_tables

HEAD_ROWS = 2048
"""Positions whose logits are held at once, at most."""
HEAD_LOGITS = 1 << 27
"""Logits held at once, at most: a vocabulary of 262,144 would take 2 GiB otherwise."""
Recompute = Literal["none", "mlp", "layer"]


def unsupported(model: LanguageModel, kernels: Kernels) -> str | None:
    """Why the kernels cannot run this model, or None where they can."""
    config = model.config
    most, multiple = kernels.slm_max_head_dim(), kernels.slm_width_multiple()
    if config.head_dim > most:
        return f"head_dim={config.head_dim} is above {most}"
    for name in ("head_dim", "d_model", "ffn_dim", "vocab_size"):
        if getattr(config, name) % multiple:
            return f"{name}={getattr(config, name)} is not a multiple of {multiple}"
    if any(p.dtype != torch.float32 for p in model.parameters()):
        return "its weights are not f32"
    return None


class Activations:
    """What a layer's backward pass needs of its forward pass; ``recompute`` says what is computed again instead."""

    def __init__(self, model: LanguageModel, B: int, T: int, recompute: Recompute, dtype: torch.dtype) -> None:
        c, N = model.config, B * T

        def empty(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=dtype)

        self.x_ND = empty(N, c.d_model)
        self.whole = recompute != "layer"
        if not self.whole:
            return
        self.qkv = empty(N, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim)
        self.attended = empty(N, c.n_heads * c.head_dim)
        self.lse_BHT = torch.empty(B, c.n_heads, T)
        self.mid_ND = empty(N, c.d_model)
        self.inverse_rms_1, self.inverse_rms_2 = torch.empty(N), torch.empty(N)
        self.gate_up = (empty(N, c.ffn_dim), empty(N, c.ffn_dim)) if recompute == "none" else None
        if c.traits.post_norms:  # the two branches before their last norm
            self.branch_1, self.branch_2 = empty(N, c.d_model), empty(N, c.d_model)
            self.inverse_rms_3, self.inverse_rms_4 = torch.empty(N), torch.empty(N)


class Fused:
    """Loss and gradients of one model. Memory is kept from call to call, for one shape of batch at a time.

    ``recompute``: ``none`` keeps all activations, ``mlp`` makes gate and up again in the backward pass (half the
    activations' memory for an eighth of the layers' work), ``layer`` keeps each layer's input only (a third more work).
    ``keep_packed``: hold the packed weights of both directions (4 bytes a parameter in bf16, 8 in f32) instead of
    packing them at each use.
    """

    def __init__(
        self, model: LanguageModel, kernels: Kernels, *, recompute: Recompute = "none", keep_packed: bool = True
    ) -> None:
        reason = unsupported(model, kernels)
        if reason is not None:
            raise ValueError(f"the training kernels cannot run this model: {reason}")
        self.model, self.kernels, self.recompute = model, kernels, recompute
        self._layers = model.model.layer_list()
        self._post_norms, self._gelu = model.config.traits.post_norms, int(model.config.traits.activation != "silu")

        def pack(*linears: nn.Linear, **options: bool) -> PackedWeights:
            return PackedWeights(kernels, [each.weight for each in linears], keep=keep_packed, **options)

        self._qkv = [pack(a.q_proj, a.k_proj, a.v_proj) for a in (layer.self_attn for layer in self._layers)]
        self._o = [pack(layer.self_attn.o_proj) for layer in self._layers]
        self._gate_up = [pack(m.gate_proj, m.up_proj, side_by_side=True) for m in (each.mlp for each in self._layers)]
        self._down = [pack(layer.mlp.down_proj) for layer in self._layers]
        self._head = PackedWeights(kernels, [model.head_weight_VD], keep=keep_packed)
        self._versions: tuple[int, ...] = ()
        self._observe: Callable[[list[Tensor], Tensor], None] | None = None
        self._shape = (0, 0)
        self._buffers: dict[str, Tensor] = {}

    @property
    def vocab_size(self) -> int:
        return self._head.rows

    def use(self, kernels: Kernels) -> None:
        """Call these kernels from now on (a benchmark puts a clock around each)."""
        self.kernels = kernels
        for packed in self._all_packed():
            packed.kernels = kernels

    def _all_packed(self) -> tuple[PackedWeights, ...]:
        return (*self._qkv, *self._o, *self._gate_up, *self._down, self._head)

    # The entries.

    @torch.no_grad()
    def loss_and_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, *, scale: float = 1.0, starts_BT: Tensor | None = None
    ) -> float:
        """The mean cross-entropy, nats per scored target; ``scale`` times its gradient is added to every ``.grad``.

        ids and targets are int64 [B, T]; targets of -100 are not scored. ``starts_BT`` (int32) gives each position the
        first one of its sequence that it may see, never falling along a sequence; None: all before it. Frozen weights
        (``requires_grad`` false) get no gradient, and no time is spent on one. Hooks that
        wait for a parameter's gradient (``register_post_accumulate_grad_hook``) run as under autograd.
        """
        self._prepare(ids_BT, targets_BT, starts_BT)
        ids_N, targets_N = ids_BT.flatten().contiguous(), targets_BT.flatten().contiguous()
        n_scored = max(1, int((targets_N != IGNORED).sum()))
        top_ND = self._forward(ids_N)
        nats, dx_ND = self._head_gradients(top_ND, targets_N, _Mean(scale / n_scored))
        self._backward(ids_N, dx_ND)
        return nats / n_scored

    @torch.no_grad()
    def head_gradients(
        self, ids_BT: Tensor, targets_BT: Tensor, head: HeadLoss, *, starts_BT: Tensor | None = None
    ) -> None:
        """Add the gradient of another loss of the logits than the mean cross-entropy. The rest is as above."""
        self._prepare(ids_BT, targets_BT, starts_BT)
        ids_N, targets_N = ids_BT.flatten().contiguous(), targets_BT.flatten().contiguous()
        _, dx_ND = self._head_gradients(self._forward(ids_N), targets_N, head)
        self._backward(ids_N, dx_ND)

    @torch.no_grad()
    def losses(self, ids_BT: Tensor, targets_BT: Tensor, *, starts_BT: Tensor | None = None) -> Tensor:
        """Every position's cross-entropy [B, T], f32 nats, 0 where not scored. Nothing is kept for a backward pass."""
        self._prepare(ids_BT, targets_BT, starts_BT)
        return self._losses(self._top(ids_BT), targets_BT.flatten().contiguous()).view(targets_BT.shape)

    @torch.no_grad()
    def hidden_states(self, ids_BT: Tensor, *, starts_BT: Tensor | None = None) -> Tensor:
        """The final normed hidden states [N, D], in the kernels' precision. The next call writes over them."""
        self._prepare(ids_BT, ids_BT, starts_BT)
        return self._top(ids_BT)

    def observed_hidden_states(self, ids_BT: Tensor, *, observe: Callable[[list[Tensor], Tensor], None]) -> Tensor:
        """``hidden_states``, with ``observe(weights, x_NI)`` called for the input of every matrix of the layers:
        ``weights`` are the parameters that read ``x_NI`` [N, inputs], whose memory is soon written over."""
        self._observe = observe
        try:
            return self.hidden_states(ids_BT)
        finally:
            self._observe = None

    def forget_weights(self) -> None:
        """Convert the weights anew at the next call. Changes that autograd counts are noticed without it."""
        self._versions = ()

    # Preparation.

    def _prepare(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None) -> None:
        self._check(ids_BT, targets_BT, starts_BT)
        versions = tuple(parameter._version for parameter in self.model.parameters())
        if versions != self._versions:
            self._versions = versions
            for packed in self._all_packed():
                packed.forget()
        if self._shape != ids_BT.shape:
            B, T = ids_BT.shape
            self._shape = (B, T)
            self._buffers = {}
            dtype = self.kernels.dtype
            self._activations = [Activations(self.model, B, T, self.recompute, dtype) for _ in self._layers]
            if self.recompute == "layer":
                self._again = Activations(self.model, B, T, "none", dtype)
            self._rope_TE = rope_tables(self.model.config, 0, T)
            self._local_rope_TE = rope_tables(self.model.config, 0, T, local=True)
        self._starts_BT = None if starts_BT is None else starts_BT.to(torch.int32).contiguous()
        local_BT = local_starts(self.model.config, ids_BT.shape, self._starts_BT)
        self._local_starts_BT = None if local_BT is None else local_BT.contiguous()

    def _check(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None) -> None:
        """ValueError for what the kernels would read or write outside of their tensors."""
        for name, tensor in (("ids", ids_BT), ("targets", targets_BT)):
            if tensor.dtype != torch.int64 or tensor.ndim != 2 or tensor.shape != ids_BT.shape or not tensor.numel():
                raise ValueError(f"{name} must be int64 [B, T], not {tensor.dtype} {list(tensor.shape)}")
            if int(tensor.max()) >= self.vocab_size:
                raise ValueError(f"{name} holds {int(tensor.max())}, which is beyond the vocabulary")
        if int(ids_BT.min()) < 0:
            raise ValueError(f"ids holds {int(ids_BT.min())}, which is no token")
        if starts_BT is not None and (starts_BT.shape != ids_BT.shape or int(starts_BT.min()) < 0):
            raise ValueError(f"starts must be positions [B, T], not {list(starts_BT.shape)}")

    def _buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory of this name, kept for this shape of batch, of the activations' dtype where none is named; its content
        is whatever was there."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty(*shape, dtype=dtype or self.kernels.dtype)
        found = self._buffers[name]
        if found.shape != shape:  # the kernels would write past its end
            raise RuntimeError(f"the buffer {name} is {tuple(found.shape)}, not {shape}")
        return found

    # Forward.

    def _forward(self, ids_N: Tensor) -> Tensor:
        """The last layer's output [N, D]; what the backward pass needs is kept."""
        self._embed(ids_N, self._activations[0].x_ND)
        top_ND = self._buffer("top", *self._activations[0].x_ND.shape)
        outputs = [*(each.x_ND for each in self._activations[1:]), top_ND]
        for index, out_ND in enumerate(outputs):
            saved = self._activations[index]
            self._layer(index, saved.x_ND, saved if saved.whole else self._again, out_ND)
        return outputs[-1]

    def _top(self, ids_BT: Tensor) -> Tensor:
        """The final normed hidden states [N, D]; nothing is kept for a backward pass."""
        saved = self._activations[0] if self._activations[0].whole else self._again
        x_ND = saved.x_ND
        self._embed(ids_BT.flatten().contiguous(), x_ND)
        out_ND = self._buffer("top", *x_ND.shape)
        for index in range(len(self._layers)):
            self._layer(index, x_ND, saved, out_ND)
            x_ND, out_ND = out_ND, x_ND
        return self._norm(self.model.model.norm, x_ND, None)

    def _embed(self, ids_N: Tensor, out_ND: Tensor) -> None:
        table_VD = self.model.model.embed_tokens.weight
        if self.model.config.traits.scaled_embedding:  # in f32: rounded to the activations' format once
            out_ND.copy_(nn.functional.embedding(ids_N, table_VD).mul_(self.model.config.embedding_scale))
        else:
            self.kernels.slm_embed(table_VD, ids_N, *out_ND.shape, out_ND)

    def _norm(self, norm: RMSNorm, x_ND: Tensor, inverse_rms_N: Tensor | None) -> Tensor:
        h_ND = self._buffer("h", *x_ND.shape)
        self.kernels.slm_rmsnorm(x_ND, *x_ND.shape, norm.gain, norm.eps, h_ND, inverse_rms_N)
        return h_ND

    def _linear(self, x: Tensor, packed: PackedWeights, out: Tensor, residual: Tensor | None = None) -> None:
        if self._observe:
            self._observe(packed.weights, x)
        weights = packed.layout("forward")
        self.kernels.slm_linear(x, len(x), packed.width, weights, packed.rows, residual, out)

    def _layer(self, index: int, x_ND: Tensor, s: Activations, out_ND: Tensor) -> None:
        """Layer ``index`` of x into out; what its backward pass needs stays in ``s``."""
        self._attention(index, x_ND, s)
        act_NF = self._mlp_to_act(index, s, s.gate_up or (None, None))
        if self._post_norms:
            torch.add(s.mid_ND, self._normed_mlp(index, act_NF, s), out=out_ND)
        else:
            self._linear(act_NF, self._down[index], out_ND, residual=s.mid_ND)

    def _normed_mlp(self, index: int, act_NF: Tensor, s: Activations) -> Tensor:
        """The feed-forward's branch, normed; what its backward pass needs stays in ``s``."""
        self._linear(act_NF, self._down[index], s.branch_2)
        return self._norm(self._layers[index].post_feedforward_layernorm, s.branch_2, s.inverse_rms_4)

    def _attention(self, index: int, x_ND: Tensor, s: Activations) -> None:
        h_ND = self._norm(self._layers[index].input_layernorm, x_ND, s.inverse_rms_1)
        attention = self._layers[index].self_attn
        if (bias := _qkv_bias(attention)) is not None:
            s.qkv.copy_(bias.expand(s.qkv.shape))
        self._linear(h_ND, self._qkv[index], s.qkv, residual=None if bias is None else s.qkv)
        c, (B, T) = self.model.config, self._shape
        keys = self._buffer(
            "keys", self.kernels.slm_attention_scratch(B, T, c.n_kv_heads, c.head_dim), dtype=torch.int32
        )
        self.kernels.slm_attention_forward(s.qkv, *self._attention_arguments(index), s.attended, s.lse_BHT, keys)
        if self._post_norms:
            self._linear(s.attended, self._o[index], s.branch_1)
            h_ND = self._norm(self._layers[index].post_attention_layernorm, s.branch_1, s.inverse_rms_3)
            torch.add(x_ND, h_ND, out=s.mid_ND)
        else:
            self._linear(s.attended, self._o[index], s.mid_ND, residual=x_ND)

    def _attention_arguments(self, index: int) -> tuple[Any, ...]:
        c, attention = self.model.config, self._layers[index].self_attn
        # A factor of the queries is a factor of their norm's gain.
        norms = (attention.q_norm.gain * c.query_factor, attention.k_norm.gain) if attention.qk_norm else (None, None)
        shape = (*self._shape, c.n_heads, c.n_kv_heads, c.head_dim)
        rope, starts_BT = self._rope_TE, self._starts_BT
        if c.is_local(index):
            rope, starts_BT = self._local_rope_TE, self._local_starts_BT
        return (*shape, *rope, *norms, c.norm_eps, starts_BT)

    def _mlp_to_act(self, index: int, s: Activations, gate_up: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """f(gate) * up of the layer's middle; gate and up too where there is room for them."""
        h_ND = self._norm(self._layers[index].feedforward_norm, s.mid_ND, s.inverse_rms_2)
        (N, D), F = h_ND.shape, self.model.config.ffn_dim
        act_NF = self._buffer("act", N, F)
        if self._observe:
            self._observe(self._gate_up[index].weights, h_ND)
        self.kernels.slm_gate_up(h_ND, N, D, self._gate_up[index].layout("forward"), F, *gate_up, act_NF, self._gelu)
        return act_NF

    # The head.

    def _cross_entropy(self, h_ND: Tensor, targets_N: Tensor, logits: Tensor, scale: float | None) -> Tensor:
        """Losses [N]; with ``scale`` the logits become scale times their gradient, [N, V]."""
        (N, D), V = h_ND.shape, self._head.rows
        losses_N = torch.empty(N)
        weights, keep = self._head.layout("forward"), scale is not None
        self.kernels.slm_cross_entropy(h_ND, N, D, weights, V, targets_N, scale or 0.0, int(keep), logits, losses_N)
        return losses_N

    def _losses(self, h_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Losses [N]; the logits are given up at once."""
        logits = self._buffer("some_logits", self.kernels.slm_cross_entropy_rows(), self._head.rows)
        return self._cross_entropy(h_ND, targets_N, logits, None)

    def _head_gradients(self, x_ND: Tensor, targets_N: Tensor, head: HeadLoss) -> tuple[float, Tensor]:
        """The summed cross-entropy, and the gradient of the loss in the last layer's output."""
        N, D = x_ND.shape
        norm = self.model.model.norm
        inverse_rms_N = self._buffer("inverse_rms", N, dtype=torch.float32)
        h_ND, dh_ND = self._norm(norm, x_ND, inverse_rms_N), self._buffer("dh", N, D)
        nats = 0.0
        for number, each in enumerate(head.passes(lambda: self._losses(h_ND, targets_N))):
            own_ND = h_ND if each.temperature == 1 else h_ND / each.temperature
            out_ND = dh_ND if number == 0 else self._buffer("dh_of_pass", N, D)
            nats = self._head_pass(each, own_ND, targets_N, out_ND)
            if each.temperature != 1:
                out_ND /= each.temperature
            if number:
                dh_ND += out_ND
        weight_VD = self._head.weights[0]
        if not self.model.config.tie_embeddings:
            run_hooks(weight_VD)
        dx_ND = self._buffer("dx", N, D)
        self._norm_backward(norm, dh_ND, x_ND, inverse_rms_N, None, dx_ND)
        return nats, dx_ND

    def _head_pass(self, each: HeadPass, h_ND: Tensor, targets_N: Tensor, dh_ND: Tensor) -> float:
        """Write one pass's gradient in ``h_ND``, and add that in the head's weights. Returns the summed loss."""
        (N, D), V = h_ND.shape, self._head.rows
        at_once = min(N, HEAD_ROWS, max(1, HEAD_LOGITS // V))
        logits = self._buffer("logits", at_once, V)
        sums = self._buffer("head_sums", at_once, D, dtype=torch.float32)
        nats = 0.0
        for start in range(0, N, at_once):
            part = slice(start, min(N, start + at_once))
            rows = part.stop - start
            scale = 1.0 if isinstance(each.weights, Tensor) else each.weights
            losses_R = self._cross_entropy(h_ND[part], targets_N[part], logits, scale)
            nats += losses_R.sum(dtype=torch.float64).item()
            if isinstance(each.weights, Tensor):
                logits[:rows] *= each.weights[part, None]
            if each.soften:
                each.soften(logits[:rows], losses_R, part)
            self.kernels.slm_head_backward(logits, rows, V, self._head.layout("backward"), D, dh_ND[part], sums)
            self._weight_gradient("head", logits[:rows], h_ND[part], self._head.weights[0])
        return nats

    # Backward.

    def _backward(self, ids_N: Tensor, dx_ND: Tensor) -> None:
        """From the gradient of the last layer's output, which is used up, to all others."""
        for index in reversed(range(len(self._layers))):
            self._layer_backward(index, self._activations[index], dx_ND)
        self._embed_backward(ids_N, dx_ND)

    def _layer_backward(self, index: int, s: Activations, dx_ND: Tensor) -> None:
        """Turn ``dx_ND`` from the gradient of layer ``index``'s output into that of its input, in place."""
        x_ND = s.x_ND
        if not s.whole:
            s = self._again
            self._attention(index, x_ND, s)
            act_NF = self._mlp_to_act(index, s, s.gate_up or (None, None))
            if self._post_norms:
                self._normed_mlp(index, act_NF, s)
        self._mlp_backward(index, s, dx_ND)
        self._attention_backward(index, x_ND, s, dx_ND)

    def _mlp_backward(self, index: int, s: Activations, dx_ND: Tensor) -> None:
        layer, (N, D), F = self._layers[index], dx_ND.shape, self.model.config.ffn_dim
        gate_up = s.gate_up
        if gate_up is None:
            gate_up = (self._buffer("gate", N, F), self._buffer("up", N, F))
            self._mlp_to_act(index, s, gate_up)
        act_NF, d_gate_up, dh_ND = (
            self._buffer("act", N, F),
            self._buffer("d_gate_up", N, 2 * F),
            self._buffer("dh", N, D),
        )
        d_branch_ND = dx_ND
        if self._post_norms:
            d_branch_ND = self._buffer("d_branch", N, D)
            self._norm_backward(layer.post_feedforward_layernorm, dx_ND, s.branch_2, s.inverse_rms_4, None, d_branch_ND)
        weights = self._down[index].layout("backward")
        self.kernels.slm_gate_up_backward(d_branch_ND, N, D, weights, F, *gate_up, d_gate_up, act_NF, self._gelu)
        self._weight_gradient("down", d_branch_ND, act_NF, layer.mlp.down_proj.weight)
        self._input_gradient(d_gate_up, self._gate_up[index], dh_ND)
        h_ND = self._norm(layer.feedforward_norm, s.mid_ND, None)
        self._weight_gradient("gate_up", d_gate_up, h_ND, layer.mlp.gate_proj.weight)
        self._weight_gradient("gate_up", d_gate_up[:, F:], h_ND, layer.mlp.up_proj.weight)
        run_hooks(layer.mlp.down_proj.weight, layer.mlp.up_proj.weight, layer.mlp.gate_proj.weight)
        self._norm_backward(layer.feedforward_norm, dh_ND, s.mid_ND, s.inverse_rms_2, dx_ND, dx_ND)

    def _attention_backward(self, index: int, x_ND: Tensor, s: Activations, dx_ND: Tensor) -> None:
        layer, c, (B, T) = self._layers[index], self.model.config, self._shape
        attention = layer.self_attn
        d_attended, d_qkv = self._buffer("d_attended", *s.attended.shape), self._buffer("d_qkv", *s.qkv.shape)
        d_branch_ND = dx_ND
        if self._post_norms:
            d_branch_ND = self._buffer("d_branch", *dx_ND.shape)
            self._norm_backward(layer.post_attention_layernorm, dx_ND, s.branch_1, s.inverse_rms_3, None, d_branch_ND)
        self._input_gradient(d_branch_ND, self._o[index], d_attended)
        self._weight_gradient("o", d_branch_ND, s.attended, attention.o_proj.weight)
        size = self.kernels.slm_attention_backward_scratch(B, T, c.n_heads, c.head_dim)
        heads = self._buffer("heads", size, dtype=torch.float32)
        norms = self._buffer("norms", B * c.n_heads, 2, c.head_dim, dtype=torch.float32)
        d_norms = torch.zeros(2, c.head_dim)
        arguments = self._attention_arguments(index)
        self.kernels.slm_attention_backward(
            s.qkv, *arguments, s.attended, s.lse_BHT, d_attended, d_qkv, d_norms, heads, norms
        )
        dh_ND = self._buffer("dh", *dx_ND.shape)
        self._input_gradient(d_qkv, self._qkv[index], dh_ND)
        h_ND = self._norm(layer.input_layernorm, x_ND, None)
        column = 0
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            self._weight_gradient(f"qkv{column}", d_qkv[:, column:], h_ND, linear.weight)
            if linear.bias is not None and linear.bias.requires_grad:
                self._bias_gradient(d_qkv[:, column:], linear.bias)
            column += len(linear.weight)
        run_hooks(attention.o_proj.weight, attention.v_proj.weight, attention.k_proj.weight, attention.q_proj.weight)
        if attention.qk_norm:
            d_norms[0] *= c.query_factor
            for norm, gradient in zip((attention.q_norm, attention.k_norm), d_norms, strict=True):
                if not norm.weight.requires_grad:
                    continue
                grad, add = _grad(norm.weight)
                if add:
                    grad += gradient
                else:
                    grad.copy_(gradient)
                run_hooks(norm.weight)
        self._norm_backward(layer.input_layernorm, dh_ND, x_ND, s.inverse_rms_1, dx_ND, dx_ND)

    def _input_gradient(self, dy: Tensor, packed: PackedWeights, out: Tensor) -> None:
        self.kernels.slm_linear(dy, len(dy), packed.rows, packed.layout("backward"), packed.width, None, out)

    def _weight_gradient(self, name: str, dy: Tensor, x: Tensor, weight: Tensor) -> None:
        """Add dy^T x to the weight's gradient, unless it is frozen; dy may be some columns of a wider tensor."""
        if not weight.requires_grad:
            return
        (n, k), N = weight.shape, len(x)
        grad, add = _grad(weight)
        size = self.kernels.slm_weight_gradient_scratch(N, n, k)
        scratch = self._buffer(f"packed_{name}_{size}", size, dtype=torch.int32)
        self.kernels.slm_weight_gradient(dy, dy.stride(0), x, x.stride(0), N, n, k, grad, add, scratch)

    def _bias_gradient(self, dy: Tensor, bias: Tensor) -> None:
        """Add the sum of dy's rows to the bias's gradient; dy may be some columns of a wider tensor."""
        grad, add = _grad(bias)
        self.kernels.slm_bias_gradient(dy, dy.stride(0), len(dy), len(bias), grad, add)
        run_hooks(bias)

    def _norm_backward(
        self, norm: RMSNorm, dh: Tensor, x: Tensor, inverse_rms: Tensor, residual: Tensor | None, dx: Tensor
    ) -> None:
        frozen = not norm.weight.requires_grad
        grad, add = (self._buffer("norm", *norm.weight.shape, dtype=torch.float32), 0) if frozen else _grad(norm.weight)
        size = self.kernels.slm_rmsnorm_backward_scratch(x.shape[1])
        partial = self._buffer("partial", size, dtype=torch.float32)
        self.kernels.slm_rmsnorm_backward(dh, x, inverse_rms, norm.gain, *x.shape, residual, dx, grad, add, partial)
        run_hooks(norm.weight)

    def _embed_backward(self, ids_N: Tensor, dx_ND: Tensor) -> None:
        table_VD = self.model.model.embed_tokens.weight
        if not table_VD.requires_grad:
            return
        if self.model.config.traits.scaled_embedding:
            dx_ND *= self.model.config.embedding_scale
        grad, add = _grad(table_VD)
        if not add:
            grad.zero_()
        self.kernels.slm_embed_backward(dx_ND, ids_N, *dx_ND.shape, grad)
        run_hooks(table_VD)


class _Mean:
    """The cross-entropy of all scored targets, times one factor."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def passes(self, losses: Callable[[], Tensor]) -> list[HeadPass]:
        return [HeadPass(self._scale)]


def _qkv_bias(attention: Attention) -> Tensor | None:
    """The biases of queries, keys and values, one after another; None where there are none."""
    if attention.q_proj.bias is None:
        return None
    return torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])


def _grad(parameter: Tensor) -> tuple[Tensor, int]:
    """Where a parameter's gradient goes, and whether (1) something is there that it is added to."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
        return parameter.grad, 0
    return parameter.grad, 1


def run_hooks(*parameters: Tensor) -> None:
    """These gradients hold all of this micro-batch: call the hooks that wait for that, as autograd would."""
    for parameter in parameters:
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)
