"""A teacher's predictions as targets, and the correction that they make to the gradient of a cross-entropy.

The gradient of a cross-entropy in the logits is softmax - one-hot. Where the target is a distribution q instead of one
token, it is softmax - q. So soft targets cost no further pass: some of the one-hot is taken back, and q put in its
place.

Shape suffixes: N positions, R of them at a time, V vocabulary, K tokens of a sparse target.

Tested in tests/train/objective/test_distillation.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from slm.model.cross_entropy import CHUNK_LOGITS, IGNORED

LOWEST = -1e4
"""Log-probabilities below it count as it."""
SHOWN = 16
"""One in this many scored positions has its KL computed, where that is no part of the gradient."""
SMALLEST = 1e-38
"""Probabilities below it count as it, when they are shown."""


class HeadRows(NamedTuple):
    """Some positions at the head, with the gradient of their hard targets."""

    rows: slice
    """Which of the micro-batch's positions they are."""
    gradient: Tensor
    """[R, V]: ``weight`` times (softmax - one-hot), zeros where not scored."""
    losses: Tensor
    """Cross-entropies of the hard targets, nats [R]."""
    targets: Tensor
    """int64 [R]; ``IGNORED`` where not scored."""
    weight: float


class SoftTargets(Protocol):
    """Distributions over the vocabulary, one for each scored position of a micro-batch."""

    def correct(self, at: HeadRows, share: float) -> float:
        """Add ``share`` times (one-hot - q) to the gradient of these rows. Returns their summed KL(q || softmax),
        nats."""
        ...


@dataclass(frozen=True)
class DenseTargets:
    """Whole distributions, made from the teacher's logits when they are needed."""

    logits: Callable[[slice], Tensor]
    """The teacher's logits at some of the N positions: [R, V], or more columns."""
    n_ids: int
    """V: what the tokenizer knows. A model may have more rows, which stand for nothing."""
    offsets: Tensor | None = None
    """What every position's logits grow by, f32 [V]: that of drawn words."""

    def probabilities(self, rows: slice) -> Tensor:
        """log q [R, V], f32."""
        logits_RV = self.logits(rows)[:, : self.n_ids].float()
        if self.offsets is not None:
            logits_RV = logits_RV + self.offsets
        return logits_RV.log_softmax(-1)

    def correct(self, at: HeadRows, share: float) -> float:
        rows, dlogits_RV, losses_R, targets_R, weight = at
        kl = 0.0
        step = max(1, CHUNK_LOGITS // dlogits_RV.shape[1])
        for start in range(0, len(dlogits_RV), step):
            part = slice(start, min(len(dlogits_RV), start + step))
            scored_R1 = targets_R[part, None] != IGNORED
            log_q_RV = self.probabilities(slice(rows.start + part.start, rows.start + part.stop))
            q_RV = log_q_RV.exp() * scored_R1
            index_R1 = targets_R[part, None].clamp(min=0)
            log_p_RV = _log_p(dlogits_RV[part, : self.n_ids].float() / weight, losses_R[part], index_R1)
            kl += (q_RV * (log_q_RV - log_p_RV)).sum().item()
            dlogits_RV[part, : self.n_ids] -= q_RV.mul_(share)
            dlogits_RV[part].scatter_add_(1, index_R1, (share * scored_R1).to(dlogits_RV.dtype))
        return kl


@dataclass(frozen=True)
class ComputedTargets(DenseTargets):
    """Whole distributions of a model that computes the gradient of their cross-entropy itself.

    It is ``share`` times (q - one-hot): taking it away is all of the correction, without a logarithm of any
    probability. The KL is computed at some positions only, and stands for all.
    """

    gradient: Callable[[slice, Tensor, float], Tensor] = field(kw_only=True)
    """``gradient(rows, targets_R, share)``, [R, V]; valid until the next call."""

    def correct(self, at: HeadRows, share: float) -> float:
        rows, dlogits_RV, losses_R, targets_R, weight = at
        scored = (targets_R != IGNORED).nonzero()[:, 0]
        some = scored[::SHOWN]
        gradient_RV = self.gradient(rows, targets_R, share)
        mine_RV = dlogits_RV[:, : gradient_RV.shape[1]]  # the model may have more rows, which stand for no token
        mine_SV, losses_S, targets_S = mine_RV[some].float() / weight, losses_R[some], targets_R[some]
        its_SV = gradient_RV[some].float() / share
        mine_RV -= gradient_RV
        if not len(some):
            return 0.0
        return _divergence(mine_SV, its_SV, losses_S, targets_S) * len(scored) / len(some)


def _divergence(mine_SV: Tensor, its_SV: Tensor, losses_S: Tensor, targets_S: Tensor) -> float:
    """Summed KL(q || p) in nats, with q the teacher's probabilities and p the student's.

    ``its_SV`` holds q - one-hot, ``mine_SV`` holds p - one-hot, ``losses_S`` the student's cross-entropies. At a
    target the subtraction of 1 leaves few bits of a rounded probability. So there log p = -loss, and q = 1 - the sum of
    its others.
    """
    index_S1 = targets_S[:, None]
    others_SV = its_SV.scatter(1, index_S1, 0.0)
    q_SV = others_SV.scatter(1, index_S1, 1 - others_SV.sum(1, keepdim=True)).clamp_(min=0)
    return (q_SV * (q_SV.clamp(min=SMALLEST).log() - _log_p(mine_SV, losses_S, index_S1))).sum().item()


def _log_p(gradient_RV: Tensor, losses_R: Tensor, index_R1: Tensor) -> Tensor:
    """Log-probabilities of p - one-hot, those of the targets from their cross-entropies."""
    return gradient_RV.clamp(min=SMALLEST).log_().scatter_(1, index_R1, -losses_R[:, None])


@dataclass(frozen=True)
class SparseTargets:
    """Some tokens of each distribution with their weights. The expectation of the weights is the distribution."""

    ids: Tensor
    """int64 [N, K]. A token may occur several times: its weights add up."""
    weights: Tensor
    """f32 [N, K]: they add up to 1 where a position is scored, else to 0."""
    entropy: Tensor
    """f32 [N]: the entropy of the whole distribution, in nats."""

    def correct(self, at: HeadRows, share: float) -> float:
        rows, dlogits_RV, losses_R, targets_R, weight = at
        ids_RK, q_RK = self.ids[rows], self.weights[rows]
        scored_R1, index_R1 = targets_R[:, None] != IGNORED, targets_R[:, None].clamp(min=0)
        log_p_RK = (dlogits_RV.gather(1, ids_RK).float() / weight).clamp(min=SMALLEST).log()
        log_p_RK = torch.where(ids_RK == index_R1, -losses_R[:, None], log_p_RK)
        kl = (-(q_RK * log_p_RK).sum(1) - self.entropy[rows] * scored_R1[:, 0]).sum().item()
        dlogits_RV.scatter_add_(1, ids_RK, (-share * q_RK).to(dlogits_RV.dtype))
        dlogits_RV.scatter_add_(1, index_R1, (share * scored_R1).to(dlogits_RV.dtype))
        return kl


@dataclass(frozen=True)
class Sampled:
    """Distributions in few numbers: the likeliest tokens, and a sample of the others."""

    entropy: Tensor
    """f32 [N], nats."""
    top: Tensor
    """The likeliest tokens, int64 [N, K]."""
    p: Tensor
    """Their probabilities, f32 [N, K]."""
    tail: Tensor
    """int64 [N, M]: tokens drawn from all others, with replacement, each as often as it is likely among them."""

    def targets(self) -> tuple[Tensor, Tensor]:
        """ids and weights [N, K + M]. The others' whole probability is shared by those that were drawn, so that the
        expected weight of every token is its probability: plain top-k would give all others nothing (Anshumann et al.
        2025, "Sparse Logit Sampling")."""
        rest_N1 = (1 - self.p.sum(1, keepdim=True)).clamp(min=0)
        share_NM = (rest_N1 / self.tail.shape[1]).expand(self.tail.shape)
        return torch.cat([self.top, self.tail], 1), torch.cat([self.p, share_NM], 1)


def sample(log_q_NV: Tensor, top: int, samples: int, generator: torch.Generator) -> Sampled:
    """Distributions as their ``top`` likeliest tokens and ``samples`` of the others."""
    q_NV = log_q_NV.exp()
    entropy_N = -(q_NV * log_q_NV.clamp(min=LOWEST)).sum(1)
    p_NK, top_NK = q_NV.topk(top, dim=1)
    others_NV = q_NV.scatter(1, top_NK, 0.0)
    nothing_N1 = others_NV.sum(1, keepdim=True) <= 0  # the top is all there is: what is drawn then weighs nothing
    tail_NM = torch.multinomial(others_NV + nothing_N1, samples, replacement=True, generator=generator)
    return Sampled(entropy_N, top_NK, p_NK, tail_NM)
