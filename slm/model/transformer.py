"""A decoder-only transformer of the Llama family: RMSNorm, RoPE, gated feed-forward, grouped-query attention.

Parameter names are Hugging Face's own, so a state dict is a checkpoint. It computes what transformers' class of the
configuration's architecture does; ``slm/model/architectures.py`` says in what they differ.

Shape suffixes: B batch, T positions of this call, D model width, E values per head, V vocabulary.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from slm.data.errors import UserError
from slm.model.config import InitConfig, ModelConfig
from slm.model.cross_entropy import chunk_gradients, cross_entropy, linear_cross_entropy, soft_capped
from slm.model.initialization import CLASSIC, initialize
from slm.model.layers.held import product, whole
from slm.model.layers.joined import JoinedLayer
from slm.model.layers.layer import Attention, Layer, LayerCache, RMSNorm
from slm.model.layers.lfm2 import Lfm2Layer
from slm.model.rope import attention_factor, rope_frequencies, switches


class Embedding(nn.Embedding):
    """torch's, without random numbers on the meta device: for these torch imports its compiler, which takes seconds."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class Decoder(nn.Module):
    """Embedding, layers and final norm: everything below the output head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(_layer(config, index) for index in range(config.n_layers))
        self._norm_name = config.traits.final_norm
        norm = RMSNorm(config.d_model, config.norm_eps, config.traits.norm_offset, scale=1 / config.logits_scaling)
        setattr(self, self._norm_name, norm)

    @property
    def norm(self) -> RMSNorm:
        """The one behind the last layer."""
        return cast(RMSNorm, self._modules[self._norm_name])

    def layer_list(self) -> list[Layer]:
        """The layers, by their type."""
        return cast(list[Layer], list(self.layers))


def _layer(config: ModelConfig, index: int) -> Layer:
    if config.traits.short_conv:
        return Lfm2Layer(config, is_conv=config.is_conv(index))
    kind = JoinedLayer if config.traits.joined else Layer
    return kind(config, config.sliding_window if config.is_local(index) else None)


class LanguageModel(nn.Module):
    """The whole model. ``state_dict`` names are Hugging Face's; a tied head has no entry.

    New weights are random as ``init`` says. Set the seed with torch before building.
    """

    def __init__(self, config: ModelConfig, init: InitConfig = CLASSIC) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self._cross_entropy = cross_entropy
        self.model = Decoder(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        initialize(self, config.n_layers, init, norm_offset=config.traits.norm_offset)

    @property
    def head_weight_VD(self) -> Tensor:
        """The output projection's values: its parameter, or those that it is held as."""
        return whole(self.head)

    @property
    def head(self) -> Tensor:
        """The output projection's parameter."""
        return self.model.embed_tokens.weight if self.config.tie_embeddings else self.lm_head.weight

    def hidden_states(
        self, ids_BT: Tensor, cache: list[LayerCache] | None = None, starts_BT: Tensor | None = None
    ) -> Tensor:
        """The final normed hidden states [B, T, D] of token ids [B, T] (int64), after ``cache`` where given. Logits
        are their products with the head.

        ``starts_BT`` (int32): the first position of its sequence that each one may see; None: all before it.
        ids [B, T, S] are bags of S tokens: a position's embedding is the mean of theirs.
        """
        start, T = len(cache[0]) if cache else 0, ids_BT.shape[1]
        length = cache[0].length if cache else 0
        if switches(self.config.rope_scaling, max(start, length), start + T):
            raise UserError(_grown(self.config))
        rope_TE = rope_tables(self.config, start, start + T, length=length)
        local_rope_TE, local_starts_BT = rope_TE, starts_BT
        if any(self.config.local_layers):
            local_rope_TE = rope_tables(self.config, start, start + T, local=True)
            local_starts_BT = starts_BT if cache else local_starts(self.config, ids_BT.shape[:2], starts_BT)
        x_BTD = self.model.embed_tokens(ids_BT)
        if ids_BT.ndim == 3:
            x_BTD = x_BTD.mean(2)
        if self.config.embedding_scale != 1.0:
            x_BTD = x_BTD * self.config.embedding_scale
        if torch.is_autocast_enabled("cpu"):
            x_BTD = x_BTD.to(torch.get_autocast_dtype("cpu"))
        for index, layer in enumerate(self.model.layers):
            local = self.config.is_local(index)
            (cos_TE, sin_TE), seen_BT = (local_rope_TE, local_starts_BT) if local else (rope_TE, starts_BT)
            if not self.config.has_rope(index):
                cos_TE, sin_TE = no_rotation(cos_TE)
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BTD = checkpoint(layer, x_BTD, cos_TE, sin_TE, None, seen_BT, use_reentrant=False)
            else:
                # Generation changes shape with every token: it must not reach a layer compiled for one shape.
                call = layer.forward if cache else layer
                x_BTD = call(x_BTD, cos_TE, sin_TE, cache[index] if cache else None, seen_BT)
        return self.model.norm(x_BTD)

    def forward(self, ids_BT: Tensor, cache: list[LayerCache] | None = None, starts_BT: Tensor | None = None) -> Tensor:
        """Next-token logits [B, T, V], f32, of token ids [B, T] (int64)."""
        return self.logits(self.hidden_states(ids_BT, cache, starts_BT)).float()

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of final hidden states [..., D]."""
        return self.capped(product(hidden, self.head))

    def capped(self, products: Tensor) -> Tensor:
        """Logits of the products of final hidden states with the head: soft-capped where the architecture does that."""
        return soft_capped(products, self.config.logit_cap)

    def loss(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats per scored target (targets of -100 are not scored): a scalar, f32."""
        x_BTD = self.hidden_states(ids_BT, starts_BT=starts_BT)
        return self._cross_entropy(x_BTD, self.head_weight_VD, targets_BT, self.config.logit_cap)

    def new_cache(self, length: int = 0) -> list[LayerCache]:
        """An empty cache to pass to successive calls that continue one batch of sequences. ``length``: the positions
        that these may come to have, where that is known."""
        return [LayerCache(length) for _ in self.model.layers]

    def compile_parts(self) -> None:
        """Compile this model's layers and loss with inductor. Layers of one kind share a graph: one of each kind is
        compiled."""
        for layer in self.model.layer_list():
            if isinstance(layer.mixer, Attention):
                layer.mixer.blockwise = True
            layer.compile(dynamic=False)
        compiled = torch.compile(chunk_gradients, dynamic=False)

        def chunked(x_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor, cap: float | None = None) -> Tensor:
            return linear_cross_entropy(x_BTD.flatten(0, 1), weight_VD, targets_BT.flatten(), compiled, cap)

        self._cross_entropy = chunked


def local_starts(config: ModelConfig, shape: torch.Size, starts_BT: Tensor | None = None) -> Tensor | None:
    """The first position that each one sees in a local layer, int32 ``shape`` [B, T]; ``starts_BT``: in other layers.

    None where that is every position before it.
    """
    window, T = config.sliding_window, shape[1]
    if window is None or window >= T:
        return starts_BT
    first_T = (torch.arange(T, dtype=torch.int32) - (window - 1)).clamp(min=0)
    return first_T.expand(shape) if starts_BT is None else torch.maximum(starts_BT, first_T)


def _grown(config: ModelConfig) -> str:
    assert config.rope_scaling is not None
    return (
        f"a text has grown beyond {config.rope_scaling['original_max_position_embeddings']} tokens, where a LongRoPE "
        "model rotates the positions before it otherwise: give the text so far in one piece"
    )


def rope_tables(
    config: ModelConfig, start: int, stop: int, *, local: bool = False, length: int = 0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, rotated], f32, of positions ``start`` to ``stop``; ``local``: those of local layers.
    ``length``: of the whole text, where it is longer than ``stop``."""
    frequencies = rope_frequencies(config, local=local, length=max(length, stop))
    angles_TE = torch.outer(torch.arange(start, stop, dtype=torch.float32), frequencies).repeat(1, 2)
    factor = attention_factor(None if local else config.rope_scaling)
    return angles_TE.cos() * factor, angles_TE.sin() * factor


def no_rotation(cos_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a layer without rotary positions, of the shape of ``cos_TE``."""
    return torch.ones_like(cos_TE), torch.zeros_like(cos_TE)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a model, by its Hugging Face name. Nothing is allocated."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in LanguageModel(config).state_dict().items()}


def empty_model(config: ModelConfig) -> LanguageModel:
    """A model in memory without set weights, to copy others into.

    ``nn.Module.to_empty`` does the same, but imports a package of symbolic mathematics, which takes a second.
    """
    with torch.device("meta"):
        model = LanguageModel(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
    return model
