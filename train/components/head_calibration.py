"""``train.calibrate_head``: at the end of a run its head becomes as sure as held-out text says.

The run keeps some of its training text for that and does not train on it. Validation text is what heads are compared
on, so none is fitted to it.

Tested in tests/train/calibration/test_calibrated_run.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from slm.data.sources.mixture import latest_epoch
from slm.data.stream import marks
from slm.model.cross_entropy import IGNORED
from slm.model.transformer import LanguageModel
from slm.train.calibration.head import Calibration, calibrate
from slm.train.components.component import Component, Content
from slm.train.objective.batch import split
from slm.train.parts import Parts

COUNTS = "calibration.counts"
"""In a checkpoint's optimizer state: how often each word was a target so far, int64 [V]."""
HEAD = "lm_head.weight"
TRAINED = f"{HEAD}.trained"
"""There, too: the head from which training goes on, where ``model.safetensors`` holds the calibrated one."""
TRIAL_POSITIONS = 256
POSITIONS = 2_048
"""Positions that a calibration is fitted to, of text that the run does not train on."""


def blocks_needed(seq_len: int) -> int:
    """Sequences that have as many positions."""
    return -(-POSITIONS // seq_len)


class HeadCalibration(Component):
    """Counts a run's targets, and calibrates its head from them. It does nothing where no text is kept for it."""

    def attach(self, run: Parts) -> None:
        super().attach(run)
        self._blocks = run.kept_blocks
        self._counts = np.zeros(run.tokenizer.vocab_size, np.int64)
        self._seconds = 0.0
        self._calibrated: Tensor | None = None

    def reading(self, batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for block in batches:
            self._counts += np.bincount(marks.ids_of(block[:, 1:]).ravel(), minlength=len(self._counts))
            yield block

    def changes_at_end(self) -> bool:
        return len(self._blocks) > 0 and self.run.fraction_done() >= 1

    def at_end(self) -> bool:
        if not len(self._blocks):
            return False
        run, readings = self.run, 1 + latest_epoch(self.run.loader.state_dict())
        counts = self._of_all()
        found = run.ranks.broadcast_from_main(lambda: self._fit(POSITIONS, counts, readings))
        if found is None:
            return False
        self._calibrated = found.head
        line = (
            f"the head is calibrated (train.calibrate_head): {found.before:.4f} -> {found.after:.4f} nats per token on "
            f"{found.tokens:,} tokens that are kept from training"
        )
        run.log.event("calibrated", run.state.step, line, before=found.before, after=found.after, tokens=found.tokens)
        return True

    def closing_seconds(self) -> float:
        """From a trial of a small part of it."""
        if len(self._blocks) and not self._seconds:
            _states(self.run.model, self._blocks, TRIAL_POSITIONS)  # compiles, where layers are compiled; only once
            began = perf_counter()
            self._fit(TRIAL_POSITIONS, torch.ones(len(self._counts), dtype=torch.int64))
            self._seconds = (perf_counter() - began) * POSITIONS / TRIAL_POSITIONS
        return self._seconds

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self._calibrated is None:
            yield
            return
        head = self.run.model.get_parameter(HEAD)
        trained, head.data = head.data, self._calibrated
        self.run.backend.weights_changed()
        try:
            yield
        finally:
            head.data = trained
            self.run.backend.weights_changed()

    def owns(self, name: str) -> bool:
        return name in (COUNTS, TRAINED)

    def shared(self) -> list[Tensor]:
        return [] if self._calibrated is None else [self._calibrated]

    def save(self, content: Content) -> None:
        content.tensors[COUNTS] = self._of_all()
        if self._calibrated is not None:
            content.tensors[TRAINED], content.weights[HEAD] = content.weights[HEAD], self._calibrated

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._calibrated = None
        # Those of all ranks together: they go on with rank 0.
        self._counts[:] = tensors[COUNTS].numpy() if COUNTS in tensors and self.run.ranks.main else 0
        if TRAINED in tensors:
            self.run.model.get_parameter(HEAD).copy_(tensors[TRAINED])

    def _fit(self, positions: int, counts_V: Tensor, readings: int = 1) -> Calibration | None:
        states_ND, targets_N = _states(self.run.model, self._blocks, positions)
        return calibrate(self.run.model.head_weight_VD.detach(), states_ND, targets_N, counts_V, readings)

    def _of_all(self) -> Tensor:
        """A copy of the counts, on rank 0 those of all ranks together."""
        return torch.from_numpy(np.sum(self.run.ranks.gather_to_main(self._counts), axis=0))


@torch.no_grad()
def _states(model: LanguageModel, blocks_NT1: np.ndarray, positions: int) -> tuple[Tensor, Tensor]:
    """Final states [N, D], f32, and targets [N] of about this many positions, from blocks spread over all."""
    length = blocks_NT1.shape[1] - 1
    wanted = min(len(blocks_NT1), -(-positions // length))
    states, targets = [], []
    for at in np.linspace(0, len(blocks_NT1) - 1, wanted).round().astype(int):
        batch = split(blocks_NT1[at : at + 1])
        scored = batch.targets != IGNORED
        states.append(model.hidden_states(batch.ids, starts_BT=batch.starts)[scored].float())
        targets.append(batch.targets[scored])
    return torch.cat(states)[:positions], torch.cat(targets)[:positions]
