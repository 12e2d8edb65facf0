"""What every matrix costs in every type it may have: the added loss, estimated and then corrected by measurement.

Tested in tests/export/auto/test_planner.py.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from slm.evaluate.progress import progress_bar
from slm.export.auto.candidates import candidates, is_slow, reference_types
from slm.export.auto.divergence import Divergence
from slm.export.auto.sensitivity import Weighting, estimate, sensitivities
from slm.export.gguf.tensors import gguf_name
from slm.llama.blocks.codec import row_bytes
from slm.llama.blocks.rounding import rounded
from slm.model.transformer import LanguageModel

ROWS, SLOW_ROWS = 128, 16
"""Rows of a matrix that are rounded to measure its error, and those for types that are rounded slowly."""
WINDOW = 256
"""Tokens of one window."""
_FORWARD_FLOPS = 4e11
"""FLOP of one measurement, from which its tokens follow by the model's size."""
_LEAST_LOSS = 1e-12


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One matrix and its options, by rising size."""

    name: str
    """GGUF's."""
    parameter: str
    """Hugging Face's."""
    group: str
    """Matrices of one role in a third of the layers: ``ffn_down 1/3``."""
    shape: tuple[int, int]
    """Rows, columns."""
    kinds: list[str]
    loss: np.ndarray
    """f64 per kind: nats per token that it adds."""

    @property
    def n_weights(self) -> int:
        return self.shape[0] * self.shape[1]

    def n_bytes(self, kind: str) -> int:
        """Bytes of the matrix in a file, without padding."""
        return self.shape[0] * row_bytes(kind, self.shape[1])


@dataclass(kw_only=True)
class Options:
    """Every matrix, and what was measured to get there."""

    matrices: list[Matrix]
    divergence: Divergence
    checks: list[dict[str, Any]] = field(default_factory=list)
    """Groups rounded to a reference type: estimated and measured divergence."""

    def round(self, kinds: Mapping[str, str], round_matrix: Callable[[Matrix, str], np.ndarray]) -> float:
        """The measured divergence where matrices (by GGUF's name) are stored in these types."""
        return self.divergence.of(
            {each.parameter: round_matrix(each, kinds[each.name]) for each in self.matrices if each.name in kinds}
        )


def n_windows(model: LanguageModel, window: int) -> int:
    """How many windows are measured on: 2,048 tokens, fewer of a large model."""
    tokens = min(2_048, int(_FORWARD_FLOPS / (2 * model.config.n_params)))
    return max(2, tokens // window)


def measure_options(
    model: LanguageModel,
    windows_BT: np.ndarray,
    token_counts_V: np.ndarray,
    importance: Mapping[str, np.ndarray],
    n_threads: int,
) -> Options:
    """The options of all matrices of ``model``. ``importance``: of columns, by GGUF's name, where there is one."""
    with progress_bar("sensitivity", len(windows_BT), "windows") as progress:
        weightings = sensitivities(model, windows_BT, token_counts_V, progress)
    weights = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    divergence = Divergence(model, windows_BT)
    matrices = []
    kinds = {
        name: candidates(weights[name].shape[1], has_importance=gguf_name(name) in importance) for name in weightings
    }
    with progress_bar("rounding errors", sum(map(len, kinds.values())), "matrices and types") as progress:
        for name, weighting in weightings.items():
            columns_D = importance.get(gguf_name(name))
            losses = []
            for kind in kinds[name]:
                losses.append(_estimate(weights[name], weighting, kind, columns_D, n_threads))
                if progress:
                    progress(1)
            matrices.append(
                Matrix(
                    name=gguf_name(name),
                    parameter=name,
                    group=_group(gguf_name(name), model.config.n_layers),
                    shape=(len(weights[name]), int(weights[name].shape[1])),
                    kinds=kinds[name],
                    loss=np.maximum(np.array(losses), _LEAST_LOSS),
                )
            )
    options = Options(matrices=matrices, divergence=divergence)
    options.matrices = _corrected(options, partial(round_matrix, weights, importance, n_threads))
    return options


def round_matrix(
    weights: Mapping[str, np.ndarray], importance: Mapping[str, np.ndarray], n_threads: int, matrix: Matrix, kind: str
) -> np.ndarray:
    """A whole matrix as it is stored in the type."""
    return rounded(weights[matrix.parameter], kind, importance.get(matrix.name), n_threads)


def _estimate(
    weight_OD: np.ndarray, weighting: list[Weighting], kind: str, columns_D: np.ndarray | None, n_threads: int
) -> float:
    n_rows = SLOW_ROWS if is_slow(kind) else ROWS
    return estimate(weight_OD, weighting, lambda rows_OD: rounded(rows_OD, kind, columns_D, n_threads), n_rows)


def _corrected(options: Options, round_one: Callable[[Matrix, str], np.ndarray]) -> list[Matrix]:
    """The matrices with losses that agree with what their groups measure at the reference types."""
    groups: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in options.matrices:
        groups[matrix.group].append(matrix)
    plan = [(name, kind) for name, group in groups.items() for kind in reference_types(group[0].shape[1])]
    factors: dict[str, dict[str, float]] = defaultdict(dict)
    with progress_bar("measured sensitivity", len(plan), "groups and types") as progress:
        for name, kind in plan:
            group = groups[name]
            measured = options.divergence.of({each.parameter: round_one(each, kind) for each in group})
            estimated = float(sum(each.loss[each.kinds.index(kind)] for each in group))
            factors[name][kind] = max(measured, _LEAST_LOSS) / estimated
            options.checks.append({"group": name, "type": kind, "estimated": estimated, "measured": measured})
            if progress:
                progress(1)
    return [_scaled(each, factors[each.group]) for each in options.matrices]


def _scaled(matrix: Matrix, factors: Mapping[str, float]) -> Matrix:
    """Losses times the factor of the reference type, between two of them by the logarithm of the loss."""
    if not factors:
        return matrix
    logs = np.log(matrix.loss)
    at = [(float(logs[matrix.kinds.index(kind)]), float(np.log(factor))) for kind, factor in factors.items()]
    at.sort()
    correction = np.interp(logs, [x for x, _ in at], [y for _, y in at])
    loss = np.exp(logs + correction)
    return Matrix(
        name=matrix.name,
        parameter=matrix.parameter,
        group=matrix.group,
        shape=matrix.shape,
        kinds=matrix.kinds,
        loss=loss,
    )


def _group(name: str, n_layers: int) -> str:
    parts = name.split(".")
    if parts[0] != "blk":
        return parts[0]
    thirds = min(3, n_layers)
    return f"{'.'.join(parts[2:-1])} {int(parts[1]) * thirds // n_layers + 1}/{thirds}"
