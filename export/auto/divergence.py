"""How far a model's predictions move when some of its matrices are stored in other types.

Shape suffixes: B windows, T positions, D model width, V vocabulary, N compared positions.

Tested in tests/export/auto/test_planner.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slm.model.transformer import LanguageModel

LOGITS = 32_000_000
"""Most reference logits that are kept (4 bytes each)."""
_ROWS = 128


class Divergence:
    """The unquantized model's predictions on some windows, and the comparison of changed weights with them."""

    def __init__(self, model: LanguageModel, windows_BT: np.ndarray) -> None:
        """``windows_BT``: int32 token ids. Where all positions' predictions would take too much memory, every this many
        are compared."""
        self.model = model
        self.ids_BT = torch.from_numpy(windows_BT.astype(np.int64))
        step = -(-windows_BT.size * model.config.vocab_size // LOGITS)
        self.picked = torch.arange(step - 1, windows_BT.size, step)
        with torch.inference_mode():
            self.log_p_NV = torch.cat(list(self._log_probabilities()))

    @property
    def n_positions(self) -> int:
        """Positions compared."""
        return len(self.picked)

    def of(self, weights: Mapping[str, np.ndarray]) -> float:
        """The mean KL divergence of the model with these ``weights`` (by Hugging Face's names) from the model as it is,
        nats per position."""
        total, row = 0.0, 0
        with torch.inference_mode(), replaced(self.model, weights):
            for log_q_NV in self._log_probabilities():
                log_p_NV = self.log_p_NV[row : row + len(log_q_NV)].double()
                total += float((log_p_NV.exp() * (log_p_NV - log_q_NV.double())).sum())
                row += len(log_q_NV)
        return max(total / row, 0.0)

    def _log_probabilities(self) -> Iterator[Tensor]:
        x_BTD = torch.cat([self.model.hidden_states(part) for part in self.ids_BT.split(8)])
        for part_ND in x_BTD.flatten(0, 1)[self.picked].split(_ROWS):
            yield F.log_softmax(self.model.logits(part_ND).float(), dim=-1)


@contextmanager
def replaced(model: LanguageModel, weights: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Inside, the model's parameters of these names have these values."""
    before = {}
    for name, values in weights.items():
        parameter = model.get_parameter(name)
        before[name] = parameter.data
        parameter.data = torch.from_numpy(values).to(parameter.dtype)
    try:
        yield
    finally:
        for name, data in before.items():
            model.get_parameter(name).data = data
