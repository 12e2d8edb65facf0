"""Learning from a teacher's predictions next to the text's own tokens (Hinton et al. 2015).

The loss of a scored token is (1 - alpha) * cross-entropy + alpha * KL(teacher || student), so that one softmax serves
both terms.

Tested in tests/train/objective/test_distillation.py, tests/train/objective/test_distilled_run.py.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from slm.model.head_loss import HeadPass
from slm.train.backend import Backend, count_scored
from slm.train.config import DistillConfig
from slm.train.objective.batch import Batch
from slm.train.objective.objective import Objective, Part
from slm.train.objective.sampled_softmax import Words, draw
from slm.train.objective.soft_targets import HeadRows, SoftTargets

TEACHER_KL = "teacher_kl"


class Teacher(Protocol):
    """What gives soft targets."""

    def targets(self, batch: Batch, words: Words | None = None) -> SoftTargets:
        """Those of the batch's positions, among ``words`` where they are given; valid until the next call."""
        ...


class DistillObjective(Objective):
    """The mean over scored tokens of cross-entropy and divergence from a teacher."""

    figures = (TEACHER_KL,)

    def __init__(
        self, config: DistillConfig, teacher: Teacher, *, sampled: int = 0, n_ids: int = 0, teacher_digest: str = ""
    ) -> None:
        """``sampled``: of how many words of the ``n_ids`` both models' logits are computed; 0: of all.
        ``teacher_digest``: identifies the teacher's weights; empty where it needs no name."""
        self.teacher_digest = teacher_digest
        self._config, self._teacher, self._sampled, self._n_ids = config, teacher, sampled, n_ids

    def gradients(self, backend: Backend, batch: Batch, scale: float) -> Part:
        count = count_scored(batch.targets)
        if not count:
            return Part(0.0, 0, {TEACHER_KL: 0.0})
        words = draw(batch.targets, self._n_ids, self._sampled)
        places = batch.targets if words is None else words.places(batch.targets)
        head = _SoftHead(self._config.alpha, self._teacher.targets(batch, words), places.flatten(), scale, words)
        backend.head_gradients(batch.ids, places, head, batch.starts)
        alpha = self._config.alpha
        return Part((1 - alpha) * head.nats + alpha * head.kl, count, {TEACHER_KL: head.kl})


class _SoftHead:
    """A micro-batch at the head. ``nats`` and ``kl`` are sums over its scored tokens."""

    def __init__(self, alpha: float, soft: SoftTargets, targets_N: Tensor, scale: float, words: Words | None) -> None:
        self._alpha, self._soft, self._targets_N, self._scale = alpha, soft, targets_N, scale
        self._words = words
        self.nats = self.kl = 0.0

    def over_logits(self, losses: Callable[[], Tensor]) -> HeadPass:
        if self._words is None:
            return HeadPass(self._scale, self._soften)
        return HeadPass(self._scale, self._soften, words=self._words.ids, offsets=self._words.offsets)

    def _soften(self, dlogits_RV: Tensor, losses_R: Tensor, rows: slice) -> None:
        self.nats += losses_R.double().sum().item()
        at = HeadRows(rows, dlogits_RV, losses_R, self._targets_N[rows], self._scale)
        self.kl += self._soft.correct(at, self._scale * self._alpha)
