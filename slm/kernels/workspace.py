"""What the passes over a model share: its weights as the kernels read them, and memory for one shape of batch.

Tested in tests/slm/kernels/test_fused.py.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from slm.kernels.native import Kernels
from slm.kernels.packed import PackedWeights
from slm.model.layers.shared_rows import Rows
from slm.model.transformer import LanguageModel, local_starts, no_rotation, rope_tables

Recompute = Literal["none", "mlp", "layer"]


class Activations:
    """What a layer's backward pass needs of its forward pass; ``recompute`` says what is computed again instead."""

    def __init__(
        self,
        model: LanguageModel,
        shape: tuple[int, int],
        N: int,
        recompute: Recompute,
        dtype: torch.dtype,
        *,
        is_conv: bool,
    ) -> None:
        (B, T), c = shape, model.config

        def empty(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=dtype)

        self.x_ND = empty(N, c.d_model)
        self.whole = recompute != "layer"
        if not self.whole:
            return
        self.qkv = empty(N, 3 * c.d_model if is_conv else (c.n_heads + 2 * c.n_kv_heads) * c.head_dim)
        """Queries, keys and values; of a short convolution b, c and x."""
        self.attended = empty(N, c.d_model if is_conv else c.n_heads * c.head_dim)
        """Attention's outcome, or the short convolution's, before its last matrix."""
        self.lse_BHT = torch.empty(0 if is_conv else B, c.n_heads, T)
        self.mid_ND = empty(N, c.d_model)
        self.inverse_rms_1, self.inverse_rms_2 = torch.empty(N), torch.empty(N)
        self.gate_up = (empty(N, c.ffn_dim), empty(N, c.ffn_dim)) if recompute == "none" else None
        if c.traits.post_norms:  # the two branches before their last norm
            self.branch_1, self.branch_2 = empty(N, c.d_model), empty(N, c.d_model)
            self.inverse_rms_3, self.inverse_rms_4 = torch.empty(N), torch.empty(N)
        if c.traits.wide_qk_norm:  # queries and keys before their norm
            self.raw = empty(N, c.n_heads * c.head_dim), empty(N, c.n_kv_heads * c.head_dim)
            self.inverse_rms_qk = torch.empty(N), torch.empty(N)


class Workspace:
    """One model's packed weights, its activations, and buffers by name. ``prepare`` makes it ready for a batch."""

    def __init__(self, model: LanguageModel, kernels: Kernels, *, recompute: Recompute, keep_packed: bool) -> None:
        self.model, self.config, self.kernels, self.recompute = model, model.config, kernels, recompute
        self.layers = model.model.layer_list()
        self.head_norms = model.config.traits.qk_norm and not model.config.traits.wide_qk_norm
        """Each head's queries and keys are normed, which attention's kernels do."""
        self.progress: Callable[[float], None] = lambda share: None
        """Told how much of a forward and backward pass is done, after each layer."""
        self.shape = (0, 0)
        """B and T of the batch."""
        self.rows: Rows | None = None
        """The positions that the layers compute; None: all."""
        self._n_rows = 0
        self.activations: list[Activations] = []
        """By layer."""
        self._again: dict[bool, Activations] = {}
        """Those that layers share to be computed again, by whether they are short convolutions."""
        self._buffers: dict[str, Tensor] = {}

        def pack(*linears: nn.Linear, side_by_side: bool = False) -> PackedWeights:
            weights = [each.weight for each in linears]
            return PackedWeights(kernels, weights, keep=keep_packed, side_by_side=side_by_side)

        groups = [layer.input_groups() for layer in self.layers]
        self.qkv = [pack(*into) for into, *_ in groups]
        self.o = [pack(*out) for _, out, *_ in groups]
        self.gate_up = [pack(*into, side_by_side=True) for _, _, into, _ in groups]
        self.down = [pack(*out) for *_, out in groups]
        self.head = PackedWeights(kernels.head, [model.head], keep=keep_packed)

    def keep_packed(self, keep: bool, *, frozen: bool) -> None:
        """From now on packed weights are kept, or made at each use. ``frozen``: the same for those that never
        change."""
        for packed in self._all_packed():
            packed.keep = frozen if packed.frozen else keep

    def learns(self, index: int) -> bool:
        """Whether layer ``index`` has weights that are trained, or adapters."""
        stacks = (self.qkv[index], self.o[index], self.gate_up[index], self.down[index])
        return any(each.low_rank is not None for each in stacks) or any(
            each.requires_grad for each in self.layers[index].parameters()
        )

    def use(self, kernels: Kernels) -> None:
        """Call these kernels from now on."""
        self.kernels = kernels
        for packed in self._all_packed():
            packed.kernels = kernels
        self.head.kernels = kernels.head

    def prepare(self, ids_BT: Tensor, starts_BT: Tensor | None, rows: Rows | None = None) -> None:
        """Make ready for a batch of this shape and these starts of sequences, of which ``rows`` are computed (None:
        all), with the weights as they are now."""
        for packed in self._all_packed():
            packed.check()
        B, T = ids_BT.shape[:2]
        n_rows = B * T if rows is None else len(rows.own)
        self.rows = rows
        if (self.shape, self._n_rows) != ((B, T), n_rows):
            self.shape, self._n_rows = (B, T), n_rows
            self._buffers, self.activations, self._again = {}, [], {}  # given up before as much is taken again
            dtype = self.kernels.dtype
            kinds = [self.config.is_conv(index) for index in range(len(self.layers))]
            self.activations = [
                Activations(self.model, self.shape, n_rows, self.recompute, dtype, is_conv=is_conv) for is_conv in kinds
            ]
            again = set(kinds) if self.recompute == "layer" else set()
            self._again = {
                kind: Activations(self.model, self.shape, n_rows, "none", dtype, is_conv=kind) for kind in again
            }
            # A factor of the queries: half of it for queries, half for keys.
            half = 1.0 if self.head_norms else math.sqrt(self.config.query_factor)

            def tables(*, local: bool) -> tuple[Tensor, Tensor]:
                cos_TR, sin_TR = rope_tables(self.config, 0, T, local=local)
                return (cos_TR, sin_TR) if half == 1.0 else (cos_TR * half, sin_TR * half)

            self._rope_TR, self._local_rope_TR = tables(local=False), tables(local=True)
            self._no_rope_TR = no_rotation(self._rope_TR[0])
        self._starts_BT = None if starts_BT is None else starts_BT.to(torch.int32).contiguous()
        local_BT = local_starts(self.config, torch.Size((B, T)), self._starts_BT)
        self._local_starts_BT = None if local_BT is None else local_BT.contiguous()

    def forget_weights(self) -> None:
        """Pack the weights anew at the next batch, but for frozen ones. Changes that autograd counts, and other tensors
        in a parameter's place, are noticed without it."""
        for packed in self._all_packed():
            packed.forget()

    def saved(self, index: int) -> Activations:
        """Where layer ``index`` writes its activations: its own, or those that layers share to be computed again."""
        return self._again.get(self.config.is_conv(index)) or self.activations[index]

    def rope_and_starts(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Cosines and sines [T, R], and the first position that each may see [B, T], of layer ``index``."""
        if self.config.is_local(index):
            return self._local_rope_TR, self._local_starts_BT
        return self._rope_TR if self.config.has_rope(index) else self._no_rope_TR, self._starts_BT

    def spread(self, name: str, x_RD: Tensor) -> Tensor:
        """Every position's values [N, D], of those of the rows that are computed."""
        return x_RD if self.rows is None else self.rows.spread(x_RD, self._wide(name, x_RD))

    def wide(self, name: str, x_RD: Tensor) -> Tensor:
        """Memory for every position's values [N, D]: ``x_RD`` itself where all positions are computed."""
        return x_RD if self.rows is None else self._wide(name, x_RD)

    def _wide(self, name: str, x_RD: Tensor) -> Tensor:
        width = x_RD.shape[1]  # attention and short convolutions in one model have different ones
        return self.buffer(f"{name}_{width}", self.shape[0] * self.shape[1], width)

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory of this name, kept for this shape of batch, of the activations' dtype where none is named; its content
        is whatever was there."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty(*shape, dtype=dtype or self.kernels.dtype)
        found = self._buffers[name]
        if found.shape != shape:  # the kernels would write past its end
            raise RuntimeError(f"the buffer {name} is {tuple(found.shape)}, not {shape}")
        return found

    def room(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Like ``buffer``, for a shape that changes from call to call: the largest that there was is kept."""
        size, found = math.prod(shape), self._buffers.get(name)
        if found is None or found.numel() < size:
            found = self._buffers[name] = torch.empty(size, dtype=dtype or self.kernels.dtype)
        return found[:size].view(shape)

    def _all_packed(self) -> tuple[PackedWeights, ...]:
        return (*self.qkv, *self.o, *self.gate_up, *self.down, self.head)
