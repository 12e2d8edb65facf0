"""The shape of a model and its checks, and its translation from and to Hugging Face's ``config.json``."""

from dataclasses import dataclass
from typing import Any, Literal

from data.errors import UserError

Architecture = Literal["llama", "qwen3"]
ARCHITECTURES: dict[Architecture, str] = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a block, by their names in a checkpoint."""
WIDTH_MULTIPLE = 256
"""K-quants store rows in super-blocks of 256 values; other widths silently fall back to larger types."""


@dataclass(kw_only=True, frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family (RMSNorm, RoPE, SwiGLU, grouped-query attention).

    ``arch="qwen3"`` adds an RMSNorm over each head's queries and keys. Widths may be any multiple of the head
    layout: ``check_widths`` is what refuses new models that K-quants cannot hold.
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
    """Hugging Face's rope parameters of type "llama3", or None for plain RoPE."""
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    """The output projection is the embedding matrix."""
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise UserError(f"arch {self.arch!r} is not known; it is one of: {', '.join(ARCHITECTURES)}")
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
        if self.rope_scaling and self.rope_scaling.get("rope_type") != "llama3":
            raise UserError(
                f"rope scaling of type {self.rope_scaling.get('rope_type')!r} is not supported; "
                "plain RoPE and type 'llama3' are"
            )

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

    # What a step costs, by formula.

    @property
    def n_params(self) -> int:
        """Exact number of parameters, a tied embedding counted once."""
        embedding = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        norms = 2 * self.d_model + (2 * self.head_dim if self.arch == "qwen3" else 0)
        return embedding + self.n_layers * (self._layer_matrix_params + norms) + self.d_model

    @property
    def n_matmul_params(self) -> int:
        """Parameters that take part in matrix products per token: the layers' matrices and the output head."""
        return self.n_layers * self._layer_matrix_params + self.vocab_size * self.d_model

    @property
    def _layer_matrix_params(self) -> int:
        q_width, kv_width = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return self.d_model * (2 * q_width + 2 * kv_width + 3 * self.ffn_dim)

    def flops_per_token(self, seq_len: int | None = None) -> int:
        """Forward and backward FLOPs of one training token: 6 N + causal attention at ``seq_len``.

        N is ``n_matmul_params``. Attention is 2 products of T/2 visible keys on average, forward once and
        backward twice: 6 n_layers T n_heads head_dim. Recomputation is not counted.
        """
        seq_len = seq_len or self.seq_len
        return 6 * self.n_matmul_params + 6 * self.n_layers * seq_len * self.n_heads * self.head_dim

    @property
    def training_state_bytes(self) -> int:
        """Bytes that training holds whatever the batch: f32 weights, gradients and AdamW's two moments."""
        return 16 * self.n_params

    # Hugging Face's config.json.

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ModelConfig":
        """Read a ``config.json`` of transformers 4 or 5. UserError for what this model cannot compute."""
        names = {name: arch for arch, name in ARCHITECTURES.items()}
        name = (config.get("architectures") or [None])[0]
        if name not in names:
            raise UserError(
                f"architecture {name} is not supported: training and export know {' and '.join(names)}. For others, "
                "llama.cpp's convert_hf_to_gguf.py may make a GGUF file, which make serve and make chat take"
            )
        for key in ("attention_bias", "mlp_bias"):
            if config.get(key):
                raise UserError(f"{key}=true in config.json is not supported: this model has no biases")
        if config.get("hidden_act", "silu") != "silu":
            raise UserError(f"hidden_act={config['hidden_act']} in config.json is not supported: only silu is")
        if config.get("use_sliding_window"):
            raise UserError("use_sliding_window=true in config.json is not supported")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        eos = config.get("eos_token_id")
        n_heads = config["num_attention_heads"]
        arch = names[name]
        return cls(
            arch=arch,
            vocab_size=config["vocab_size"],
            n_layers=config["num_hidden_layers"],
            d_model=config["hidden_size"],
            n_heads=n_heads,
            n_kv_heads=config.get("num_key_value_heads") or n_heads,
            head_dim=config.get("head_dim") or (128 if arch == "qwen3" else config["hidden_size"] // n_heads),
            ffn_dim=config["intermediate_size"],
            seq_len=config["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            rope_scaling=None if rope_type == "default" else {**rope, "rope_type": rope_type},
            norm_eps=config.get("rms_norm_eps", 1e-6),
            tie_embeddings=config.get("tie_word_embeddings", False),
            bos_id=config.get("bos_token_id"),
            eos_id=eos[0] if isinstance(eos, list) else eos,
        )

    def to_hf(self) -> dict[str, Any]:
        """A ``config.json`` that transformers 4 and 5, vLLM and llama.cpp's converter read."""
        rope = {"rope_type": "default", **(self.rope_scaling or {}), "rope_theta": self.rope_theta}
        config = {
            "architectures": [ARCHITECTURES[self.arch]],
            "model_type": self.arch,
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
        if self.arch == "llama":
            config["mlp_bias"] = False
        else:
            config |= {"use_sliding_window": False, "sliding_window": None}
        return config


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Standard deviations of normal weights. The defaults are GPT-2's recipe."""

    embed_std: float = 0.02
    """Of the embedding of a model with a head of its own."""
    head_std: float = 0.02
    """Of that head."""
    tied_std: float = 0.02
    """Of an embedding that is the head, too."""
    matrix_std: float = 0.02
    """Of the layers' matrices; 0: 0.7 / sqrt(inputs)."""
    output_gain: float = 1.0
    """Of the two projections that write to the residual stream (o_proj and down_proj), in units of 0.02 / sqrt(2
    n_layers); 0: zeros."""
    qk_gain: float = 1.0
    """Gains of the norms of queries and keys (qwen3); attention's logits grow with its square."""
