"""The sizes that a budget chooses from: the presets' proportions, and steps between them.

Tested in tests/train/budget/test_choice.py.
"""

from dataclasses import dataclass
from typing import Any

from slm.model.config import ModelConfig
from slm.train.config import HEAD_DIM, ModelSpec

VOCABULARIES = (2048, 4096, 8192, 16384, 32768, 49152)
TIED_FROM = 30_000_000
"""Parameters of the layers from which embedding and head are tied, as in the presets."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Depth and widths of a ``qwen3`` model."""

    n_layers: int
    d_model: int
    ffn_dim: int

    @property
    def n_matrix(self) -> int:
        """Parameters of the layers' matrices."""
        return self.n_layers * self.d_model * (3 * self.d_model + 3 * self.ffn_dim)

    def options(self, *, tied: bool) -> dict[str, Any]:
        """The options of the group ``model``."""
        heads = self.d_model // HEAD_DIM
        return {
            "arch": "qwen3",
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "n_heads": heads,
            "n_kv_heads": heads // 2,
            "ffn_dim": self.ffn_dim,
            "tie_embeddings": tied,
        }

    def model_config(self, vocab_size: int, seq_len: int, *, tied: bool | None = None) -> ModelConfig:
        """The model with a vocabulary; ``tied`` None: as its size says."""
        spec = ModelSpec(**self.options(tied=self.tied if tied is None else tied))
        return spec.model_config(vocab_size=vocab_size, seq_len=seq_len, eos_id=None)

    @property
    def tied(self) -> bool:
        """Whether embedding and head are tied."""
        return self.n_matrix >= TIED_FROM


def _shape(n_layers: int, d_model: int, ffn_dim: int) -> Shape:
    return Shape(n_layers=n_layers, d_model=d_model, ffn_dim=ffn_dim)


SHAPES = (
    _shape(1, 256, 512),
    _shape(2, 256, 512),
    _shape(4, 256, 512),  # tiny
    _shape(6, 256, 512),
    _shape(3, 512, 1024),
    _shape(4, 512, 1024),  # 10m
    _shape(6, 512, 1024),
    _shape(8, 512, 1536),
    _shape(13, 512, 1536),  # 50m
    _shape(8, 768, 2048),
    _shape(12, 768, 2048),  # 125m
    _shape(12, 1024, 2816),
    _shape(18, 1024, 2816),
    _shape(24, 1024, 2816),  # 350m
)
"""From the smallest to the largest; each holds a third to two thirds more than the one before, but the first few."""
