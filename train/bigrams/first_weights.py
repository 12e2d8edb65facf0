"""Embedding and head of a new model as a low-rank model of bigrams.

Where the layers' outputs begin at zero, a model's logits are head . norm(embedding). So embedding and head can begin as
a model of which token follows which, counted on far more text than the first hundreds of steps read. The final norm
brings every row to the same length; one dimension therefore has about the same value in all rows. It carries the
tokens' own frequencies, and what remains of a row's length after the norm is about its length before.

Shape suffixes: V tokens of the vocabulary, D width, N sampled pairs.

Tested in tests/train/bigrams/test_first_weights.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from slm.model.transformer import LanguageModel
from slm.train.bigrams.counts import Bigrams
from slm.train.bigrams.low_rank import low_rank

LEVEL = 0.4
"""The dimension that all rows share, in units of the root of the width."""
SCALES = (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Scales to try for the head's factors; the one with the lowest loss on ``SAMPLED`` pairs is taken."""
SAMPLED = 1024


@dataclass(frozen=True)
class Start:
    """What the first weights were made of, and what they are worth."""

    tokens: int
    """Pairs that were counted."""
    nats: float
    """Cross-entropy of the next token on some of these pairs, nats per token, where the layers' outputs are zero."""


@torch.no_grad()
def set_first_weights(model: LanguageModel, bigrams: Bigrams, embed_std: float, seed: int) -> Start:
    """Write embedding, at ``embed_std`` (root mean square of a row), and head. The head must be a separate matrix.

    Rows of tokens that never occur keep their direction from before.
    """
    generator = torch.Generator().manual_seed(seed)
    embedding_VD, head_VD = model.model.embed_tokens.weight, model.lm_head.weight
    V, D = embedding_VD.shape
    factors = low_rank(bigrams, min(D - 1, V), generator)
    left_VD, right_VD = (F.pad(each, (0, D - each.shape[1])) for each in (factors.left, factors.right))
    left_VD[:, -1] = LEVEL * D**0.5
    rows_VD = _unit_rows(left_VD)
    seen_V = bigrams.occurrences()[0] > 0
    sample_N = _sample(bigrams, generator)
    best_VD, nats = _head(right_VD, factors.log_frequency, rows_VD, bigrams, sample_N)
    embedding_VD.copy_(torch.where(seen_V[:, None], rows_VD, _unit_rows(embedding_VD)) * embed_std)
    head_VD.copy_(best_VD)
    return Start(bigrams.tokens, nats)


def _sample(bigrams: Bigrams, generator: torch.Generator) -> Tensor:
    """``SAMPLED`` indices of pairs, each as likely as it is frequent."""
    upto_P = bigrams.count.double().cumsum(0)
    places_N = torch.rand(SAMPLED, generator=generator, dtype=torch.float64) * upto_P[-1]
    return torch.searchsorted(upto_P, places_N, right=True).clamp_(max=len(upto_P) - 1)


def _head(
    right_VD: Tensor, log_frequency_V: Tensor, rows_VD: Tensor, bigrams: Bigrams, sample_N: Tensor
) -> tuple[Tensor, float]:
    """The head [V, D] with the best of ``SCALES``, and its loss on the sampled pairs."""
    common = (rows_VD[bigrams.first, -1] * bigrams.count).sum() / bigrams.count.sum()
    level_V = log_frequency_V / common
    at_ND, next_N = rows_VD[bigrams.first[sample_N]], bigrams.second[sample_N]
    base_NV, found_NV = at_ND[:, -1:] * level_V, at_ND @ right_VD.T
    nats = {scale: F.cross_entropy(base_NV + scale * found_NV, next_N).item() for scale in SCALES}
    scale = min(nats, key=nats.__getitem__)
    head_VD = right_VD * scale
    head_VD[:, -1] = level_V
    return head_VD, nats[scale]


def _unit_rows(rows_VD: Tensor) -> Tensor:
    """The rows with a root mean square of 1."""
    return rows_VD / rows_VD.pow(2).mean(1, keepdim=True).sqrt().clamp_min(1e-8)
