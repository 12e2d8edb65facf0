"""Learning from pairs of a chosen and a rejected answer: DPO and ORPO.

Both are functions of two numbers per pair, the log-probabilities of its answers. Their gradient in these is computed
first; it says what each token's cross-entropy counts in the backward pass, negative for rejected answers. So one pass
forward and one backward suffice, with the head's product done twice, and the kernels need nothing more.

Shape suffixes: B sequences of a micro-batch, T positions, P pairs, 2 the chosen and the rejected answer.

Tested in tests/train/objective/test_preference.py, tests/train/objective/test_preference_run.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slm.model.cross_entropy import IGNORED
from slm.model.head_loss import HeadPass
from slm.train.backend import Backend
from slm.train.config import PreferenceConfig
from slm.train.objective.batch import Batch
from slm.train.objective.objective import Objective, Part

ALMOST_SURE = -1e-9
"""The highest mean log-probability that has odds."""
REWARD_ACCURACY, REWARD_MARGIN = "reward_accuracy", "reward_margin"


class Answers:
    """Where the answers of a micro-batch are: chosen and rejected ones take turns in every sequence."""

    def __init__(self, batch: Batch) -> None:
        assert batch.starts is not None, "pairs come as conversations"
        starts_BT, B = batch.starts.numpy(), len(batch.starts)
        number_BT = np.cumsum(np.diff(starts_BT, axis=1, prepend=starts_BT[:, :1]) != 0, axis=1)
        most = int(number_BT.max()) // 2 * 2 + 2
        self.scored_BT = batch.targets.numpy() != IGNORED
        self._index_BT, self._size = number_BT + most * np.arange(B)[:, None], most * B
        counts_P2 = self._sums(np.ones(starts_BT.shape)).reshape(-1, 2)
        self._whole_P = np.asarray((counts_P2 > 0).all(axis=1))
        """Pairs; what pads a sequence is none."""
        self.lengths_P2 = torch.from_numpy(counts_P2[self._whole_P])
        self.rejected_BT = number_BT % 2 == 1
        self._batch = batch

    def __len__(self) -> int:
        return len(self.lengths_P2)

    def _sums(self, values_BT: np.ndarray) -> np.ndarray:
        scored = self.scored_BT
        return np.bincount(self._index_BT[scored], weights=values_BT[scored], minlength=self._size)

    def log_probabilities(self, losses_BT: Tensor) -> Tensor:
        """Each answer's summed log-probability, f64 [P, 2], nats."""
        return torch.from_numpy(-self._sums(losses_BT.numpy()).reshape(-1, 2)[self._whole_P])

    def per_token(self, values_P2: Tensor) -> Tensor:
        """Each answer's number at each of its scored targets, f32 [B, T]; 0 elsewhere."""
        all_P2 = np.zeros((len(self._whole_P), 2))
        all_P2[self._whole_P] = values_P2.numpy()
        values_BT = all_P2.reshape(-1)[self._index_BT] * self.scored_BT
        return torch.from_numpy(values_BT.astype(np.float32))

    def tokens(self) -> list[bytes]:
        """What identifies each pair: the tokens of both conversations, and which of them are scored."""
        ids, targets = self._batch.ids.numpy().reshape(-1), self._batch.targets.numpy().reshape(-1)
        index = self._index_BT.reshape(-1) // 2
        return [
            np.concatenate([ids[index == pair], targets[index == pair]]).tobytes()
            for pair in np.flatnonzero(self._whole_P)
        ]


@dataclass(frozen=True)
class PairLosses:
    """What pairs cost."""

    loss: Tensor
    """[P]."""
    rewards: Tensor
    """[P, 2]: what the model gives for each answer; it is right where the chosen one gets more."""


def dpo(log_p_P2: Tensor, reference_P2: Tensor, lengths_P2: Tensor, config: PreferenceConfig) -> PairLosses:
    """Direct preference optimization (Rafailov et al. 2023, equation 7).

    An answer's reward is beta * (log p - log p of the reference), nats; the loss is -log sigmoid of the rewards'
    difference. With ``config.sft`` the chosen answer's cross-entropy per token is added (Pang et al. 2024).
    """
    rewards_P2 = config.beta * (log_p_P2 - reference_P2)
    margin_P = rewards_P2[:, 0] - rewards_P2[:, 1]
    loss_P = -F.logsigmoid(margin_P)
    return PairLosses(loss_P - config.sft * log_p_P2[:, 0] / lengths_P2[:, 0], rewards_P2)


def orpo(log_p_P2: Tensor, lengths_P2: Tensor, config: PreferenceConfig) -> PairLosses:
    """Odds ratio preference optimization (Hong et al. 2024, equations 4 to 7): no reference.

    The chosen answer's cross-entropy per token, plus beta (the paper's lambda) times -log sigmoid of the difference of
    log odds. An answer's probability is the geometric mean of its tokens', and its reward that mean's logarithm.
    """
    mean_P2 = (log_p_P2 / lengths_P2).clamp(max=ALMOST_SURE)
    odds_P2 = mean_P2 - torch.log(-torch.expm1(mean_P2))
    loss_P = -mean_P2[:, 0] - config.beta * F.logsigmoid(odds_P2[:, 0] - odds_P2[:, 1])
    return PairLosses(loss_P, mean_P2)


Reference = Callable[[Batch, Answers], Tensor]
"""The reference model's log-probabilities of the answers, f64 [P, 2], nats."""


class PreferenceObjective(Objective):
    """The mean loss of pairs. ``reference``: only DPO needs one."""

    figures = held_out_figures = (REWARD_ACCURACY, REWARD_MARGIN)

    def __init__(self, config: PreferenceConfig, reference: Reference | None = None) -> None:
        assert config.loss == "orpo" or reference is not None
        self._config, self._reference = config, reference

    def gradients(self, backend: Backend, batch: Batch, scale: float) -> Part:
        answers = Answers(batch)
        if not len(answers):
            return Part(0.0, 0, dict.fromkeys(self.figures, 0.0))
        head = _PairHead(self, batch, answers, scale)
        backend.head_gradients(batch.ids, batch.targets, head, batch.starts)
        return head.part

    def held_out(self, batch: Batch, losses_BT: Tensor) -> Part:
        answers = Answers(batch)
        with torch.no_grad():
            return part_of(self.pair_losses(batch, answers, answers.log_probabilities(losses_BT)))

    def text(self, batch: Batch) -> Tensor:
        return torch.where(torch.from_numpy(Answers(batch).rejected_BT), IGNORED, batch.targets)

    def pair_losses(self, batch: Batch, answers: Answers, log_p_P2: Tensor) -> PairLosses:
        """The pairs' losses as a function of their log-probabilities, which autograd may follow."""
        if self._config.loss == "orpo":
            return orpo(log_p_P2, answers.lengths_P2, self._config)
        assert self._reference is not None
        return dpo(log_p_P2, self._reference(batch, answers), answers.lengths_P2, self._config)


class _PairHead:
    """A micro-batch's pairs at the head. ``part`` holds what they came to."""

    def __init__(self, objective: PreferenceObjective, batch: Batch, answers: Answers, scale: float) -> None:
        self._objective, self._batch, self._answers, self._scale = objective, batch, answers, scale

    def over_logits(self, losses: Callable[[], Tensor]) -> HeadPass:
        with torch.enable_grad():
            log_p_P2 = self._answers.log_probabilities(losses().view_as(self._batch.targets)).requires_grad_()
            found = self._objective.pair_losses(self._batch, self._answers, log_p_P2)
            (gradient_P2,) = torch.autograd.grad(found.loss.sum(), log_p_P2)
        self.part = part_of(found)
        # A target's cross-entropy is its log-probability with the sign turned.
        return HeadPass(self._answers.per_token(-self._scale * gradient_P2).flatten())


def part_of(found: PairLosses) -> Part:
    """The sums over pairs."""
    rewards_P2 = found.rewards.detach()
    margin_P = rewards_P2[:, 0] - rewards_P2[:, 1]
    figures = {REWARD_ACCURACY: float((margin_P > 0).sum()), REWARD_MARGIN: margin_P.sum().item()}
    return Part(found.loss.detach().sum().item(), len(margin_P), figures)
