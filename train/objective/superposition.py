"""Token superposition: the first part of a run reads bags of tokens and predicts the next bag (arXiv 2605.06546).

A bag is some neighbouring tokens of the text. The model sees the mean of their embeddings at one position, and its
loss there is the mean cross-entropy of all tokens of the next bag. So a position stands for several tokens of text at
the cost of one. The rest of the run trains on single tokens as usual, and the model's file is an ordinary one.

Shape suffixes: B sequences, P positions (bags) of each, S tokens of a bag, N = B P, R of them at a time, V vocabulary.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from slm.data.stream import marks
from slm.model.cross_entropy import IGNORED
from slm.model.head_loss import HeadPass
from slm.train.backend import Backend, count_scored
from slm.train.objective.batch import Batch
from slm.train.objective.objective import Objective, Part
from slm.train.objective.sampled_softmax import Words, draw

LEAST_PROBABILITY = 1e-30
"""Smallest probability of a token in its cross-entropy: one that is rounded to zero must not make the loss infinite."""


class Superposition(Objective):
    """The mean cross-entropy of the next bag's tokens, nats per token, where a bag has ``bag`` of them."""

    def __init__(self, bag: int, *, sampled: int = 0, vocab_size: int = 0) -> None:
        """``sampled``: how many words of ``vocab_size`` are computed (``train.sampled_softmax``); 0: all."""
        self._bag, self._sampled, self._vocab_size = bag, sampled, vocab_size

    def split(self, block_BT1: np.ndarray) -> Batch:
        """Bags of the first T tokens of each block [B, T + 1]; the last bag of a sequence has none to predict."""
        ids = torch.from_numpy(marks.ids_of(block_BT1).astype(np.int64))
        ids_BPS = ids[:, :-1].unflatten(1, (-1, self._bag)).contiguous()
        targets_BPS = torch.full_like(ids_BPS, IGNORED)
        targets_BPS[:, :-1] = ids_BPS[:, 1:]
        return Batch(ids_BPS, targets_BPS, None)

    def gradients(self, backend: Backend, batch: Batch, scale: float) -> Part:
        words = draw(batch.targets, self._vocab_size, self._sampled)
        targets_BPS = batch.targets if words is None else words.places(batch.targets)
        head = NextBag(targets_BPS.flatten(0, 1), scale, words)
        first_BP = targets_BPS[..., 0].contiguous()
        backend.head_gradients(batch.ids, first_BP, head)
        return Part(head.nats, count_scored(first_BP))


class NextBag:
    """The loss at the head. ``targets_NS``: each position's next bag, -100 where there is none; where there are
    ``words``, as places among them.

    ``nats`` is, after the pass, the sum over the positions of their mean cross-entropies.
    """

    def __init__(self, targets_NS: Tensor, scale: float, words: Words | None = None) -> None:
        self._targets_NS, self._scale, self._words = targets_NS, scale, words
        self.nats = 0.0

    def over_logits(self, losses: Callable[[], Tensor]) -> HeadPass:
        """The cross-entropy of each bag's first token, which ``_spread`` makes that of all of them."""
        if self._words is None:
            return HeadPass(self._scale, soften=self._spread)
        return HeadPass(self._scale, soften=self._spread, words=self._words.ids, offsets=self._words.offsets)

    def _spread(self, dlogits_RV: Tensor, losses_R: Tensor, rows: slice) -> None:
        """From scale * (softmax - first token) to scale * (softmax - the share of each of the bag's tokens)."""
        targets_RS = self._targets_NS[rows]
        scored_R = (targets_RS[:, 0] != IGNORED).float()
        targets_RS = targets_RS.clamp(min=0)
        # In bf16, adding the 1 back would leave two digits of the first token's probability: take it from its loss.
        first_R = self._scale * scored_R * torch.exp(-losses_R)
        dlogits_RV.scatter_(1, targets_RS[:, :1], first_R[:, None].to(dlogits_RV.dtype))
        probabilities_RS = dlogits_RV.gather(1, targets_RS).float() / self._scale
        nats_R = -probabilities_RS.clamp(min=LEAST_PROBABILITY).log().mean(1)
        self.nats += (nats_R * scored_R).double().sum().item()
        share_R1 = (-self._scale / targets_RS.shape[1] * scored_R)[:, None].to(dlogits_RV.dtype)
        dlogits_RV.scatter_add_(1, targets_RS, share_R1.expand(targets_RS.shape).contiguous())


def joined(batches: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
    """``count`` batches at a time as one: as many positions as before, each a bag of this many tokens."""
    while True:
        yield np.concatenate([next(batches) for _ in range(count)])
