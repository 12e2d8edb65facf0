"""What a run counts for the calibration of its head, and the calibration at its end.

Tested in tests/train/calibration/test_calibrated_run.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from data.stream import marks
from slm.model.cross_entropy import IGNORED
from slm.model.transformer import LanguageModel
from train.calibration.head import Calibration, calibrate
from train.distributed.ranks import Ranks
from train.objective.batch import split

COUNTS = "calibration.counts"
"""In a checkpoint's optimizer state: how often each word was a target so far, int64 [V]."""
HEAD = "lm_head.weight"
TRIAL_POSITIONS = 256
POSITIONS = 2_048
"""Held-out positions that a calibration is fitted to. They are spread over the validation blocks."""


class HeadCalibration:
    """Counts a run's targets, and calibrates its head from them. ``on``: whether the run's head is calibrated."""

    def __init__(self, *, on: bool, words: int) -> None:
        self.on = on
        self._counts = np.zeros(words, np.int64)
        self._trial: float | None = None

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
        counts = sum(ranks.gather_to_main(self._counts))
        return {COUNTS: torch.from_numpy(np.asarray(counts))} if ranks.main else {}

    def load(self, tensors: dict[str, Tensor], ranks: Ranks) -> None:
        """Go on from a checkpoint. Those of a version that did not count let the run end without a calibration."""
        if not self.on:
            return
        self.on = ranks.broadcast_from_main(lambda: COUNTS in tensors)
        found = tensors.get(COUNTS)
        self._counts[:] = 0 if found is None else found.numpy()

    def __call__(self, model: LanguageModel, blocks_NT1: np.ndarray, readings: int, ranks: Ranks) -> Calibration | None:
        """The calibration by these held-out blocks, the same on every rank; None where it would win nothing."""
        every_rank = ranks.gather_to_main(self._counts)
        return ranks.broadcast_from_main(
            lambda: self._calibration(model, blocks_NT1, torch.from_numpy(np.sum(every_rank, 0)), readings)
        )

    def seconds(self, model: LanguageModel, blocks_NT1: np.ndarray) -> float:
        """About how long the calibration will take, from a trial of a small part of it."""
        return self._seconds_of(model, blocks_NT1) if self.on else 0.0

    def _seconds_of(self, model: LanguageModel, blocks_NT1: np.ndarray) -> float:
        if self._trial is None:
            some = torch.full((len(self._counts),), 1)
            began = perf_counter()
            states, targets = _states(model, blocks_NT1, TRIAL_POSITIONS)
            calibrate(model.head_weight_VD.detach(), states, targets, some)
            self._trial = (perf_counter() - began) * POSITIONS / TRIAL_POSITIONS
        return self._trial

    def _calibration(
        self, model: LanguageModel, blocks_NT1: np.ndarray, counts_V: Tensor, readings: int
    ) -> Calibration | None:
        states, targets = _states(model, blocks_NT1, POSITIONS)
        return calibrate(model.head_weight_VD.detach(), states, targets, counts_V, readings)


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
