"""The shape of a model and its checks, and its translation from and to Hugging Face's ``config.json``."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from slm.data.errors import UserError
from slm.model.architectures import LEFT_OUT, OLMO3, TRAITS, Architecture, Traits, known_classes
from slm.model.foreign.config_values import MULTIPLIERS, cleaned
from slm.model.foreign.joined import as_plain
from slm.model.rope import LONG, SHORT, number, read_scaling

WIDTH_MULTIPLE = 256
"""K-quants store rows in super-blocks of 256 values; other widths silently fall back to larger types."""
ATTENTION_CAP, LOGIT_CAP = 50.0, 30.0
"""Gemma 2: what attention's scores and the logits are soft-capped at where nothing else is said, as in llama.cpp."""
GEMMA2_27B_LAYERS = 46
"""llama.cpp takes a Gemma 2 with this number of layers for the 27B, and divides its attention's logits otherwise."""
ROPE_PATTERN = 4
"""SmolLM3: every layer with a multiple of this number has no rotary positions. llama.cpp knows no other pattern."""
_LOCAL, _GLOBAL, _CONV = "sliding_attention", "full_attention", "conv"
_CONV_WIDTH = 3
CONV_PATTERN = 2
"""New LFM2 models: one of this many layers, the last of them, has attention."""


@dataclass(kw_only=True, frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family (RMSNorm, RoPE, gated feed-forward, grouped-query attention).

    ``arch`` says what sets it apart (``traits``). Widths may be any multiple of the head layout: ``check_widths`` is
    what refuses new models that K-quants cannot hold.
    """

    arch: Architecture = "llama"
    vocab_size: int
    """Rows of the embedding; at least the tokenizer's ids (padding up is fine)."""
    n_layers: int
    d_model: int
    """Width of the residual stream."""
    n_heads: int
    """Query heads."""
    n_kv_heads: int
    """Key and value heads; divides n_heads."""
    head_dim: int
    ffn_dim: int
    """Width inside the gated feed-forward."""
    seq_len: int
    """Longest context, tokens (max_position_embeddings)."""
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    """Hugging Face's rope parameters of type "llama3", "linear", "yarn" or (phi3) "longrope"; None: plain RoPE."""
    rotary_dim: int | None = None
    """phi3: values of a head that RoPE turns, the first ones; None: all."""
    sliding_window: int | None = None
    """gemma2, gemma3, olmo2: positions that a local layer sees, the position itself included; None: no layer is local
    (an olmo2 is then an OLMo 2, else an OLMo 3)."""
    local_layers: tuple[bool, ...] = ()
    """gemma2, gemma3, olmo2: which layers are local; empty: all but every second (gemma2), sixth (gemma3) or fourth one
    (olmo2)."""
    local_rope_theta: float = 10_000.0
    """gemma3: ``rope_theta`` of local layers; other architectures have one for all layers."""
    query_scalar: float | None = None
    """gemma2, gemma3: attention's logits are divided by the root of this (``query_pre_attn_scalar``); None: of
    head_dim."""
    attention_cap: float | None = None
    """gemma2: attention's scores are soft-capped at this (``attn_logit_softcapping``); None: at 50; 0: they are not."""
    logit_cap: float | None = None
    """gemma2: the logits are soft-capped at this (``final_logit_softcapping``); None: at 30; 0: they are not."""
    rope_layers: tuple[bool, ...] = ()
    """smollm3: which layers have rotary positions; empty: all but every fourth one."""
    embedding_multiplier: float = 1.0
    """granite: what embeddings are multiplied by."""
    attention_multiplier: float | None = None
    """granite: what attention's logits are multiplied by; None: 1 / sqrt(head_dim)."""
    residual_multiplier: float = 1.0
    """granite: what is multiplied by this before it is added to the residual stream: each layer's two branches."""
    logits_scaling: float = 1.0
    """granite: what logits are divided by."""
    conv_layers: tuple[bool, ...] = ()
    """lfm2: which layers have a short convolution in place of attention; empty: the first of every two."""
    conv_width: int = _CONV_WIDTH
    """lfm2: the positions that such a layer sees, the position itself included."""
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    """The output projection is the embedding matrix."""
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        if self.arch not in TRAITS:
            raise UserError(f"arch {self.arch!r} is not known; it is one of: {', '.join(TRAITS)}")
        for name in (
            "vocab_size",
            "n_layers",
            "d_model",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "ffn_dim",
            "seq_len",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if self.n_heads % self.n_kv_heads:
            divisors = [n for n in range(1, self.n_heads + 1) if self.n_heads % n == 0]
            raise UserError(
                f"model.n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}; use one of {divisors}"
            )
        if self.head_dim % 2:
            raise UserError(f"model.head_dim={self.head_dim} must be even: RoPE rotates pairs of values")
        if self.rope_scaling:
            object.__setattr__(self, "rope_scaling", read_scaling(self.rope_scaling, self.seq_len))
        self._check_rotation()
        if self.traits.sliding_window:
            self._complete_sliding_window()
        elif self.sliding_window is not None or self.local_layers:
            raise UserError(f"a {self.arch} model has no sliding window: leave it out")
        if self.query_scalar is not None and not self.traits.query_scalar:
            raise UserError(f"a {self.arch} model has no query_scalar: leave it out")
        self._complete_soft_caps()
        if self.traits.short_conv:
            self._complete_short_conv()
        elif self.conv_layers or self.conv_width != _CONV_WIDTH:
            raise UserError(
                f"a {self.arch} model has no short convolutions: leave model.conv_layers and model.conv_width out"
            )

        if self.traits.nope:
            layers = tuple(self.rope_layers) or every_nth_global(self.n_layers, ROPE_PATTERN)
            if len(layers) != self.n_layers:
                raise UserError(f"model.rope_layers names {len(layers)} layers, the model has {self.n_layers}")
            object.__setattr__(self, "rope_layers", layers)
        elif self.rope_layers:
            raise UserError(f"all layers of a {self.arch} model have rotary positions: leave model.rope_layers out")
        self._check_multipliers()

    def _check_rotation(self) -> None:
        if self.rotary_dim == self.head_dim:
            object.__setattr__(self, "rotary_dim", None)
        if self.rotary_dim is not None:
            if not self.traits.long_rope:
                raise UserError(f"RoPE turns all values of a {self.arch} model's heads: leave model.rotary_dim out")
            if self.rotary_dim % 2 or not 0 < self.rotary_dim < self.head_dim:
                raise UserError(
                    f"model.rotary_dim={self.rotary_dim} must be even, and between 2 and head_dim={self.head_dim}"
                )
        scaling = self.rope_scaling or {}
        if not scaling:
            return
        if (scaling["rope_type"] == "longrope") != self.traits.long_rope:
            known = "'longrope'" if self.traits.long_rope else "'llama3', 'linear' or 'yarn'"
            raise UserError(
                f"rope scaling of type {scaling['rope_type']!r} in a {self.arch} model is not supported; of type "
                f"{known} it is, and plain RoPE"
            )
        for key in (SHORT, LONG) if self.traits.long_rope else ():
            if len(scaling[key]) != self.rotated // 2:
                raise UserError(
                    f"{key} of the rope scaling in config.json has {len(scaling[key])} numbers, and a head has "
                    f"{self.rotated // 2} pairs of values that are rotated: download config.json again"
                )

    def _complete_soft_caps(self) -> None:
        if self.traits.soft_caps and not self.tie_embeddings:
            raise UserError(
                f"a {self.arch} model has no separate head, and llama.cpp no place for one: set "
                "model.tie_embeddings=true (tie_word_embeddings in config.json)"
            )
        for name, usual in (("attention_cap", ATTENTION_CAP), ("logit_cap", LOGIT_CAP)):
            value = getattr(self, name)
            if not self.traits.soft_caps:
                if value is not None:
                    raise UserError(f"a {self.arch} model has no {name}: leave it out")
            elif value is None:
                object.__setattr__(self, name, usual)
            elif value < 0:
                raise UserError(f"model.{name} must be at least 0, not {value}")

    def _check_multipliers(self) -> None:
        for name in MULTIPLIERS:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"model.{name} must be above 0, not {value}")
            if not self.traits.multipliers and value != getattr(type(self), name):
                raise UserError(f"a {self.arch} model has no {name}: leave it out")
        if self.attention_multiplier == self.head_dim**-0.5:
            object.__setattr__(self, "attention_multiplier", None)

    def _complete_short_conv(self) -> None:
        # A single layer has attention.
        usual = every_nth_global(self.n_layers, CONV_PATTERN) if self.n_layers > 1 else (False,)
        layers = tuple(self.conv_layers) or usual
        if len(layers) != self.n_layers:
            raise UserError(f"model.conv_layers names {len(layers)} layers, the model has {self.n_layers}")
        if all(layers):
            raise UserError("model.conv_layers leaves no layer with attention: set one of them to false, at least")
        if self.conv_width < 2:
            raise UserError(f"model.conv_width must be at least 2, not {self.conv_width}")
        if self.rope_scaling:
            raise UserError(f"rope scaling in a {self.arch} model is not supported; plain RoPE is")
        object.__setattr__(self, "conv_layers", layers)

    def _complete_sliding_window(self) -> None:
        if not self.traits.local_rope:
            self._give_all_layers_one_rope()
        elif self.rope_scaling and self.rope_scaling["rope_type"] != "linear":
            raise UserError(f"in a {self.arch} model only rope scaling of type 'linear' is supported, and plain RoPE")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise UserError(f"model.sliding_window must be at least 1, not {self.sliding_window}")
        layers = tuple(self.local_layers) or every_nth_global(self.n_layers, self.traits.sliding_pattern)
        if len(layers) != self.n_layers:
            raise UserError(f"model.local_layers names {len(layers)} layers, the model has {self.n_layers}")
        if self.sliding_window is None or not any(layers):
            layers = (False,) * self.n_layers
            object.__setattr__(self, "sliding_window", None)
        object.__setattr__(self, "local_layers", layers)
        if self.query_scalar is not None and self.query_scalar <= 0:
            raise UserError(f"model.query_scalar must be above 0, not {self.query_scalar}")
        if self.query_scalar == self.head_dim:
            object.__setattr__(self, "query_scalar", None)

    def _give_all_layers_one_rope(self) -> None:
        if self.arch == "gemma2" and self.rope_scaling:
            raise UserError(f"rope scaling in a {self.arch} model is not supported; plain RoPE is")
        if self.local_rope_theta not in (self.rope_theta, type(self).local_rope_theta):
            raise UserError(f"a {self.arch} model has one rope_theta: leave model.local_rope_theta out")
        object.__setattr__(self, "local_rope_theta", self.rope_theta)

    @property
    def traits(self) -> Traits:
        """What sets the architecture apart."""
        return TRAITS[self.arch]

    def is_local(self, layer: int) -> bool:
        """Whether the layer sees only the last ``sliding_window`` positions."""
        return bool(self.local_layers) and self.local_layers[layer]

    def is_conv(self, layer: int) -> bool:
        """Whether the layer has a short convolution in place of attention."""
        return bool(self.conv_layers) and self.conv_layers[layer]

    def has_rope(self, layer: int) -> bool:
        """Whether the layer has rotary positions."""
        return not self.rope_layers or self.rope_layers[layer]

    @property
    def rotated(self) -> int:
        """Values of a head that RoPE turns, the first ones."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def n_conv_layers(self) -> int:
        """Layers with a short convolution in place of attention."""
        return sum(self.conv_layers)

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(self.d_model) if self.traits.scaled_embedding else self.embedding_multiplier

    @property
    def attention_scale(self) -> float:
        """granite: what attention's logits are multiplied by."""
        return self.head_dim**-0.5 if self.attention_multiplier is None else self.attention_multiplier

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by, next to attention's 1 / sqrt(head_dim)."""
        if self.attention_multiplier is not None:
            return self.attention_multiplier * math.sqrt(self.head_dim)
        return 1.0 if self.query_scalar is None else math.sqrt(self.head_dim / self.query_scalar)

    def check_widths(self) -> None:
        """Refuse widths that K-quants cannot hold, naming the nearest that they can (for new models)."""
        widths = {
            "d_model": self.d_model,
            "ffn_dim": self.ffn_dim,
            "n_heads*head_dim": self.n_heads * self.head_dim,
        }
        for name, width in widths.items():
            if width % WIDTH_MULTIPLE:
                below = max(WIDTH_MULTIPLE, width // WIDTH_MULTIPLE * WIDTH_MULTIPLE)
                above = -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
                near = f"{below} or {above}" if below != above else f"{below}"
                raise UserError(
                    f"model.{name}={width} is not a multiple of {WIDTH_MULTIPLE}: K-quants (q4_k_m and its kin) store "
                    f"rows in blocks of {WIDTH_MULTIPLE} and would fall back to larger types; use {near}"
                )

    def check_runs_in_llama_cpp(self) -> None:
        """UserError where llama.cpp would compute something else than the checkpoint, or nothing at all."""
        divisor, name = self.head_dim, "head_dim"
        if self.arch == "gemma2" and self.n_layers == GEMMA2_27B_LAYERS:
            divisor, name = self.d_model // self.n_heads, f"d_model / n_heads (in a gemma2 of {self.n_layers} layers)"
        if self.traits.query_scalar and (self.query_scalar or self.head_dim) != divisor:
            raise UserError(
                f"query_pre_attn_scalar={self.query_scalar or self.head_dim:g} cannot be exported: llama.cpp divides "
                f"attention's logits by the root of {name}={divisor}, and a GGUF has no place for another number"
            )
        if self.traits.soft_caps and not (self.attention_cap and self.logit_cap):
            raise UserError(
                f"a {self.arch} model without soft-caps does not run in llama.cpp: set model.attention_cap and "
                "model.logit_cap (attn_logit_softcapping and final_logit_softcapping in config.json)"
            )
        if self.rope_layers and self.rope_layers != every_nth_global(self.n_layers, ROPE_PATTERN):
            raise UserError(
                f"a {self.arch} model with layers without rotary positions that are other ones than every "
                f"{ROPE_PATTERN}th does not run in llama.cpp: a GGUF has no place for another pattern"
            )
        if self.arch == "olmo2" and self.tie_embeddings:
            raise UserError(
                "a tied olmo2 model does not run in llama.cpp: give it a separate head (model.tie_embeddings=false)"
            )
        if self.arch in ("qwen2", "lfm2", "granite", "olmo2", "phi3") and self.n_heads * self.head_dim != self.d_model:
            raise UserError(
                f"a {self.arch} model with n_heads*head_dim={self.n_heads * self.head_dim}, which is not its "
                f"d_model={self.d_model} does not run in llama.cpp: make them equal"
            )

    # What a step costs, by formula.

    @property
    def n_params(self) -> int:
        """Exact number of parameters, a tied embedding counted once."""
        embedding = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        norms = 2 * (self.traits.pre_norms + self.traits.post_norms) * self.d_model
        normed = self.n_heads + self.n_kv_heads if self.traits.wide_qk_norm else 2
        per_attention = normed * self.head_dim if self.traits.qk_norm else 0
        per_attention += (self.n_heads + 2 * self.n_kv_heads) * self.head_dim if self.traits.qkv_bias else 0
        small = self._n_attention_layers * per_attention + self.n_conv_layers * self.conv_width * self.d_model
        return embedding + self.n_layer_matrix_params + self.n_layers * norms + small + self.d_model

    @property
    def n_matmul_params(self) -> int:
        """Parameters that take part in matrix products per token: the layers' matrices and the output head."""
        return self.n_layer_matrix_params + self.vocab_size * self.d_model

    @property
    def n_layer_matrix_params(self) -> int:
        """Parameters of the layers' matrices: the size that the loss law goes by."""
        attention = 2 * (self.n_heads + self.n_kv_heads) * self.head_dim
        mixers = self._n_attention_layers * attention + self.n_conv_layers * 4 * self.d_model
        return self.d_model * (mixers + self.n_layers * 3 * self.ffn_dim)

    @property
    def _n_attention_layers(self) -> int:
        return self.n_layers - self.n_conv_layers

    def flops_per_token(self, seq_len: int | None = None, words: int = 0) -> int:
        """Forward and backward FLOPs of one training token: 6 N + causal attention at ``seq_len``.

        N is ``n_matmul_params``; of the head's, those of ``words`` alone where they are fewer (0: all). Attention is 2
        products of T/2 visible keys on average, forward once and backward twice: 6 n_layers T n_heads head_dim. A local
        layer sees fewer, and a short convolution counts as nothing beside its matrices. Recomputation is not counted.
        """
        seq_len = seq_len or self.seq_len
        n_local = sum(self.local_layers)
        window = min(seq_len, self.sliding_window or seq_len)
        # Twice the keys seen on average: T, and W (2 T - W) / T where a window of W is shorter than T.
        seen = (self._n_attention_layers - n_local) * seq_len + n_local * window * (2 * seq_len - window) // seq_len
        left_out = self.vocab_size - min(words or self.vocab_size, self.vocab_size)
        return 6 * (self.n_matmul_params - left_out * self.d_model) + 6 * seen * self.n_heads * self.head_dim

    def validation_share(self, seq_len: int, words: int) -> float:
        """About what a token costs in a validation, in units of a training token with the logits of ``words``: a
        forward pass, with all logits."""
        return self.flops_per_token(seq_len) / self.flops_per_token(seq_len, words) / 3

    @property
    def training_state_bytes(self) -> int:
        """Bytes that training holds whatever the batch: f32 weights, gradients and AdamW's two moments."""
        return 16 * self.n_params

    def activation_bytes(
        self, tokens: int, *, recompute: Literal["none", "mlp", "layer"] = "none", value_bytes: int = 2
    ) -> int:
        """What the layers keep of a pass of this many tokens for the backward pass, bytes, attention's scores left out.

        Per token and layer 4 of the model's width and 3 of the feed-forward's, of ``value_bytes`` each; ``recompute``:
        ``mlp`` has gate and up again, ``layer`` all but its input. The head's logits come a chunk at a time.
        """
        kept = {"layer": self.d_model, "mlp": 4 * self.d_model, "none": 4 * self.d_model + 3 * self.ffn_dim}
        return value_bytes * tokens * self.n_layers * kept[recompute]

    # Hugging Face's config.json.

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ModelConfig":
        """Read a ``config.json`` of transformers 4 or 5. UserError for what this model cannot compute."""
        unnamed = isinstance(config, dict) and not config.get("architectures")
        config = as_plain(cleaned(config))
        name = (config["architectures"] or [None])[0]
        arch = next((arch for arch, traits in TRAITS.items() if name in (traits.hf_class, *traits.hf_aliases)), None)
        if arch is None:  # saved without a class, or by the one without a head
            kind = next((arch for arch, traits in TRAITS.items() if config.get("model_type") == traits.hf_type), None)
            arch = kind if unnamed or (kind and name == TRAITS[kind].hf_class.replace("ForCausalLM", "Model")) else None
        if arch is None:
            reason = f" ({LEFT_OUT[name]})" if name in LEFT_OUT else ""
            raise UserError(
                f"architecture {name} is not supported{reason}: training and export know {known_classes()}. For "
                "others, llama.cpp's convert_hf_to_gguf.py may make a GGUF file, which make serve and make chat take"
            )
        traits = TRAITS[arch]
        _refuse_unknown(config, traits)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        local_rope = rope.get(_LOCAL) or {}
        rope = rope.get(_GLOBAL) or {} if _LOCAL in rope or _GLOBAL in rope else rope
        if traits.long_rope:
            rope = {"original_max_position_embeddings": config.get("original_max_position_embeddings", 4096)} | rope
        partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        share = 1 if partial is None else number(partial, "partial_rotary_factor")
        if share != 1 and not traits.long_rope:
            raise UserError(
                f"partial_rotary_factor={partial} in config.json is not supported: RoPE rotates all values here"
            )
        local_rope_type = local_rope.get("rope_type", "default")
        if local_rope_type != "default":
            raise UserError(f"rope scaling of type {local_rope_type!r} in local layers is not supported")
        eos = config.get("eos_token_id")
        n_heads = config["num_attention_heads"]
        default_theta = 1_000_000.0 if traits.local_rope or traits.short_conv else 10_000.0
        default_theta = 2_000_000.0 if traits.nope else 500_000.0 if name == OLMO3 else default_theta
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or default_theta)
        local: dict[str, Any] = {}
        if traits.sliding_window and (arch != "olmo2" or name == OLMO3):  # an OLMo 2 has none, whatever its file names
            local = {
                "sliding_window": config.get("sliding_window", 4096),
                "local_layers": _local_layers(config, traits),
            }
        local_theta = local_rope.get("rope_theta")
        if traits.local_rope:
            local["local_rope_theta"] = float(local_theta or config.get("rope_local_base_freq") or 1e4)
        elif local_theta is not None and number(local_theta, "rope_theta") != theta:
            raise UserError(
                f"rope_theta={local_theta} in local layers and {theta:g} in the others is not supported: llama.cpp has "
                f"one for all layers of a {name}"
            )
        if traits.query_scalar:
            local["query_scalar"] = config.get("query_pre_attn_scalar", 256)
        if traits.soft_caps:  # null: they are not capped
            local["attention_cap"] = config.get("attn_logit_softcapping", ATTENTION_CAP) or 0.0
            local["logit_cap"] = config.get("final_logit_softcapping", LOGIT_CAP) or 0.0
        if traits.short_conv:
            local = {"conv_layers": _conv_layers(config), "conv_width": config.get("conv_L_cache", _CONV_WIDTH)}
        if traits.nope:
            local = {"rope_layers": _rope_layers(config)}
        if traits.multipliers:
            local = {key: float(config.get(key, 1.0)) for key in MULTIPLIERS}
        head_dim = config.get("head_dim") or traits.head_dim or config["hidden_size"] // n_heads
        if traits.long_rope:
            local = {"rotary_dim": int(head_dim * share)}
        return cls(
            arch=arch,
            vocab_size=config["vocab_size"],
            n_layers=config["num_hidden_layers"],
            d_model=config["hidden_size"],
            n_heads=n_heads,
            n_kv_heads=config.get("num_key_value_heads") or n_heads,
            head_dim=head_dim,
            ffn_dim=_lfm2_ffn_dim(config) if traits.short_conv else config["intermediate_size"],
            seq_len=min(config["max_position_embeddings"], _window(config) or config["max_position_embeddings"]),
            rope_theta=theta,
            rope_scaling=read_scaling(rope, config["max_position_embeddings"]),
            norm_eps=config.get("norm_eps", 1e-5) if traits.short_conv else config.get("rms_norm_eps", _eps(traits)),
            tie_embeddings=config.get("tie_word_embeddings", config.get("tie_embedding", traits.tied)),
            bos_id=config.get("bos_token_id"),
            eos_id=eos[0] if isinstance(eos, list) else eos,
            **local,
        )

    def to_hf(self) -> dict[str, Any]:
        """A ``config.json`` that transformers 4 and 5, vLLM and llama.cpp's converter read."""
        rope: dict[str, Any] = {"rope_type": "default", **(self.rope_scaling or {}), "rope_theta": self.rope_theta}
        is_olmo3 = self.arch == "olmo2" and self.sliding_window is not None
        if self.traits.local_rope or is_olmo3:
            rope = {_GLOBAL: rope, _LOCAL: {"rope_type": "default", "rope_theta": self.local_rope_theta}}
        config = {
            "architectures": [OLMO3 if is_olmo3 else self.traits.hf_class],
            "model_type": "olmo3" if is_olmo3 else self.traits.hf_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "intermediate_size": self.ffn_dim,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.seq_len,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": rope,
            "rope_theta": self.rope_theta,  # transformers 4 reads it here
            "rope_scaling": self.rope_scaling,
            "tie_word_embeddings": self.tie_embeddings,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": self.bos_id,
            "eos_token_id": self.eos_id,
            "dtype": "float32",
            "torch_dtype": "float32",
        }
        if self.arch in ("llama", "granite", "smollm3"):
            config["mlp_bias"] = False
        if self.traits.multipliers:
            config |= {key: getattr(self, key) for key in MULTIPLIERS} | {"pad_token_id": None}
            config["attention_multiplier"] = self.attention_scale
        elif self.traits.nope:
            layers = list(map(int, self.rope_layers))
            config |= {"no_rope_layers": layers, "no_rope_layer_interval": ROPE_PATTERN, "pad_token_id": None}
            config |= {"use_sliding_window": False, "sliding_window": None}
        elif not self.traits.pre_norms:
            config["pad_token_id"] = None
            if self.arch == "exaone4":
                config |= {"sliding_window": None, "layer_types": [_GLOBAL] * self.n_layers}
            elif is_olmo3:
                config |= {"sliding_window": self.sliding_window, "layer_types": self._layer_types()}
        elif self.traits.sliding_window:
            config |= self._sliding_window_hf()
            del config["hidden_act"]
        elif self.traits.short_conv:
            config |= self._short_conv_hf()
            for name in ("hidden_act", "rms_norm_eps", "attention_bias", "attention_dropout", "rope_scaling"):
                del config[name]
        elif self.traits.long_rope:
            config |= self._long_rope_hf()
        elif self.arch != "llama":
            config |= {"use_sliding_window": False, "sliding_window": None}
        if self.traits.qkv_bias:
            del config["attention_bias"]  # the class has its biases without being asked
        return config

    def _long_rope_hf(self) -> dict[str, Any]:
        share, scaling = self.rotated / self.head_dim, self.rope_scaling
        old = int(scaling["original_max_position_embeddings"]) if scaling else self.seq_len
        kind = "longrope" if scaling else "default"
        factors: dict[str, Any] = {key: scaling[key] for key in (SHORT, LONG)} if scaling else {}
        if scaling and scaling["factor"] * old != self.seq_len:  # else transformers 4 wants the two lists alone
            factors["factor"] = scaling["factor"]
        length = {"original_max_position_embeddings": old} if scaling else {}
        more = {"rope_theta": self.rope_theta, "partial_rotary_factor": share}
        return {
            "rope_parameters": {"rope_type": kind, **factors, **length, **more},
            "rope_scaling": {"type": kind, **factors} if scaling else None,
            "partial_rotary_factor": share,
            "original_max_position_embeddings": old,
            "sliding_window": None,
            "pad_token_id": None,
        }

    def _short_conv_hf(self) -> dict[str, Any]:
        return {
            "layer_types": [_CONV if conv else _GLOBAL for conv in self.conv_layers],
            "conv_L_cache": self.conv_width,
            "conv_bias": False,
            "block_auto_adjust_ff_dim": False,  # intermediate_size is the width as it is
            "norm_eps": self.norm_eps,
            "pad_token_id": None,
        }

    def _layer_types(self) -> list[str]:
        return [_LOCAL if local else _GLOBAL for local in self.local_layers]

    def _sliding_window_hf(self) -> dict[str, Any]:
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": self.head_dim if self.query_scalar is None else self.query_scalar,
            "sliding_window": self.sliding_window
            or self.seq_len,  # transformers wants one where no layer is local, too
            "layer_types": self._layer_types(),
            **({"rope_local_base_freq": self.local_rope_theta} if self.traits.local_rope else {}),  # transformers 4
            "attn_logit_softcapping": self.attention_cap or None,
            "final_logit_softcapping": self.logit_cap or None,
            "use_bidirectional_attention": False,
            "pad_token_id": None,
        }


def _window(config: dict[str, Any]) -> int | None:
    """The positions that all layers of a Mistral or a Phi-3 see: up to that length a text is read as without one."""
    has_one = config["architectures"] and config["architectures"][0] in ("MistralForCausalLM", "Phi3ForCausalLM")
    return config.get("sliding_window") if has_one else None


def every_nth_global(n_layers: int, pattern: int) -> tuple[bool, ...]:
    """Which layers are local where the last of every ``pattern`` layers is not."""
    return tuple((layer + 1) % pattern != 0 for layer in range(n_layers))


def _local_layers(config: dict[str, Any], traits: Traits) -> tuple[bool, ...]:
    """``layer_types`` of a config.json, or what an older one says in a number."""
    if types := config.get("layer_types"):
        return tuple(each == _LOCAL for each in types)
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or traits.sliding_pattern
    return every_nth_global(config["num_hidden_layers"], pattern)


def _conv_layers(config: dict[str, Any]) -> tuple[bool, ...]:
    """``layer_types`` of an LFM2's config.json, or the layers with attention that an older one lists."""
    if types := config.get("layer_types"):
        return tuple(each == _CONV for each in types)
    n_layers = config["num_hidden_layers"]
    attention = config.get("full_attn_idxs")
    return tuple(layer not in (range(n_layers) if attention is None else attention) for layer in range(n_layers))


def _rope_layers(config: dict[str, Any]) -> tuple[bool, ...]:
    """``no_rope_layers`` of a SmolLM3's config.json: a one is a layer with rotary positions."""
    n_layers = config["num_hidden_layers"]
    if layers := config.get("no_rope_layers"):
        return tuple(map(bool, layers[:n_layers]))
    return every_nth_global(n_layers, config.get("no_rope_layer_interval") or ROPE_PATTERN)


def _eps(traits: Traits) -> float:
    """``rms_norm_eps`` where config.json has none."""
    return 1e-6 if traits.pre_norms and not traits.long_rope else 1e-5


def _lfm2_ffn_dim(config: dict[str, Any]) -> int:
    """The feed-forward's width, which an LFM2's config.json gives before it is cut to two thirds and rounded up."""
    width: int = config.get("block_ff_dim") or config["intermediate_size"]
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    factor, multiple = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
    width = int(2 * width / 3)
    width = width if factor is None else int(factor * width)
    return multiple * -(-width // multiple)


def quantized_message(kind: str) -> str:
    """What to do about a checkpoint that another program has quantized."""
    return (
        f"the checkpoint is quantized by {kind}, and its matrices are packed for that program: give the model that it "
        "was made from (its page on the Hub names it), or a GGUF file of it"
    )


def _refuse_unknown(config: dict[str, Any], traits: Traits) -> None:
    """UserError for what a config.json asks for and this model does not compute."""
    if isinstance(mlx := config.get("quantization"), dict) and "bits" in mlx:
        raise UserError(quantized_message("MLX"))
    if (quantized := config.get("quantization_config")) is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise UserError(quantized_message(str(method or "another program")))
    for key in ("mlp_bias", "conv_bias") if traits.qkv_bias else ("attention_bias", "mlp_bias", "conv_bias"):
        if config.get(key):
            raise UserError(f"{key}=true in config.json is not supported: a {traits.hf_class} has no such biases here")
    key, name = ("hidden_act", "silu") if traits.activation == "silu" else ("hidden_activation", "gelu_pytorch_tanh")
    if (config.get(key) or name) != name:
        raise UserError(f"{key}={config[key]} in config.json is not supported: only {name} is")
    if config.get("use_sliding_window"):
        raise UserError("use_sliding_window=true in config.json is not supported")
    if traits.short_conv and config.get("sliding_window"):
        raise UserError(f"sliding_window={config['sliding_window']} in an LFM2's config.json is not supported")
    local = config.get("layer_types") is None or _LOCAL in config["layer_types"]
    if traits.hf_type == "exaone4" and local and (window := config.get("sliding_window", 4096)):
        raise UserError(f"sliding_window={window} in an EXAONE 4's config.json is not supported: its 1.2B has none")
    caps = () if traits.soft_caps else ("attn_logit_softcapping", "final_logit_softcapping")
    for key in (*caps, "use_bidirectional_attention"):
        if config.get(key):
            raise UserError(f"{key}={config[key]} in config.json is not supported")


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Standard deviations of normal weights. The defaults are GPT-2's recipe."""

    embed_std: float = 0.02
    """Standard deviation of the embedding with an untied head."""
    head_std: float = 0.02
    """Standard deviation of an untied head."""
    tied_std: float = 0.02
    """Standard deviation of a tied embedding."""
    matrix_std: float = 0.02
    """Standard deviation of the layers' matrices; 0: 0.7 / sqrt(inputs)."""
    output_gain: float = 1.0
    """Standard deviation of the two projections that write to the residual stream (o_proj and down_proj), in units of
    0.02 / sqrt(2 n_layers); 0: zeros."""
    qk_gain: float = 1.0
    """Gains of the norms of queries and keys (qwen3, gemma3); attention's logits grow with its square."""
