"""What a run counts for the calibration of its head, and the calibration at its end.

Tested in tests/train/calibration/test_calibrated_run.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from slm.data.stream import marks
from slm.model.cross_entropy import IGNORED
from slm.model.transformer import LanguageModel
from slm.train.calibration.head import Calibration, calibrate
from slm.train.distributed.ranks import Ranks
from slm.train.objective.batch import split

COUNTS = "calibration.counts"
"""In a checkpoint's optimizer state: how often each word was a target so far, int64 [V]."""
HEAD = "lm_head.weight"
TRIAL_POSITIONS = 256
POSITIONS = 2_048
"""Positions that a calibration is fitted to, of text that the run does not train on."""


def blocks_needed(seq_len: int) -> int:
    """Sequences that have as many positions."""
    return -(-POSITIONS // seq_len)


class HeadCalibration:
    """Counts a run's targets, and calibrates its head from them.

    ``blocks_NT1``: training text that is kept for it and not trained on. Validation text is what heads are compared
    on, so none is fitted to it. Without blocks the run's head is not calibrated.
    """

    def __init__(self, blocks_NT1: np.ndarray, *, words: int) -> None:
        self.on = len(blocks_NT1) > 0
        self._blocks = blocks_NT1
        self._counts = np.zeros(words, np.int64)
        self._seconds = 0.0

    def counting(self, batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The blocks [B, T + 1], whose targets are counted."""
        for block in batches:
            if self.on:
                self._counts += np.bincount(marks.ids_of(block[:, 1:]).ravel(), minlength=len(self._counts))
            yield block

    def tensors(self, ranks: Ranks) -> dict[str, Tensor]:
        """For a checkpoint, on rank 0: the counts of all ranks together."""
        if not self.on:
            return {}
        counts = self._of_all(ranks)
        return {COUNTS: counts} if ranks.main else {}

    def load(self, tensors: dict[str, Tensor], ranks: Ranks) -> None:
        """Go on from a checkpoint. Those of a version that did not count let the run end without a calibration."""
        if not self.on:
            return
        self.on = ranks.broadcast_from_main(lambda: COUNTS in tensors)
        found = tensors.get(COUNTS)
        self._counts[:] = 0 if found is None else found.numpy()

    def __call__(self, model: LanguageModel, readings: int, ranks: Ranks) -> Calibration | None:
        """The calibration, the same on every rank; None where it would win nothing."""
        counts = self._of_all(ranks)
        return ranks.broadcast_from_main(lambda: _calibration(model, self._blocks, POSITIONS, counts, readings))

    def seconds(self, model: LanguageModel) -> float:
        """About how long the calibration will take, from a trial of a small part of it."""
        if self.on and not self._seconds:
            _states(model, self._blocks, TRIAL_POSITIONS)  # compiles, where layers are compiled; that happens once
            began = perf_counter()
            _calibration(model, self._blocks, TRIAL_POSITIONS, torch.ones(len(self._counts), dtype=torch.int64))
            self._seconds = (perf_counter() - began) * POSITIONS / TRIAL_POSITIONS
        return self._seconds

    def _of_all(self, ranks: Ranks) -> Tensor:
        """A copy of the counts, on rank 0 those of all ranks together."""
        return torch.from_numpy(np.sum(ranks.gather_to_main(self._counts), axis=0))


def _calibration(
    model: LanguageModel, blocks_NT1: np.ndarray, positions: int, counts_V: Tensor, readings: int = 1
) -> Calibration | None:
    states_ND, targets_N = _states(model, blocks_NT1, positions)
    return calibrate(model.head_weight_VD.detach(), states_ND, targets_N, counts_V, readings)


@torch.no_grad()
def _states(model: LanguageModel, blocks_NT1: np.ndarray, positions: int) -> tuple[Tensor, Tensor]:
    """Final states [N, D], f32, and targets [N] of about so many positions, from blocks spread over all."""
    length = blocks_NT1.shape[1] - 1
    wanted = min(len(blocks_NT1), -(-positions // length))
    states, targets = [], []
    for at in np.linspace(0, len(blocks_NT1) - 1, wanted).round().astype(int):
        batch = split(blocks_NT1[at : at + 1])
        scored = batch.targets != IGNORED
        states.append(model.hidden_states(batch.ids, starts_BT=batch.starts)[scored].float())
        targets.append(batch.targets[scored])
    return torch.cat(states)[:positions], torch.cat(targets)[:positions]
