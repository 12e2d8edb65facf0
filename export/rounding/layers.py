"""All linear layers of a model rounded in turn, each on the inputs that it gets from the rounded ones before it.

The calibration windows go through the model one block of the transformer at a time. A block runs twice: first as it is,
while the products of the inputs of its linear layers are summed up, then rounded, for the inputs of the next block. So
only one block's sums are in memory. A part of the windows is held out: on it the error of each layer's output is
measured, and the layer keeps the compensated blocks only where their error is smaller than that of llama.cpp's
rounding.

Shape suffixes: B windows, T positions, D input columns.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slm.data.errors import UserError
from slm.kernels.column_squares import matrix_names, products_bytes
from slm.llama.blocks.compensated import output_error, round_compensated
from slm.llama.blocks.grids import KINDS
from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.rounding import dequantize_rows, quantize_rows, rounded
from slm.model.layers.layer import Layer
from slm.model.transformer import LanguageModel, local_starts, no_rotation, rope_tables

HELD_OUT = 4
"""One of this many windows is held out."""
_TOKENS = 2_048
"""Tokens of the windows that go through a block together."""


@dataclass(frozen=True, kw_only=True)
class RoundedMatrix:
    """One matrix after its turn."""

    kind: str
    blocks: np.ndarray
    """uint8 [rows, bytes]: what is kept."""
    n_columns: int
    """Columns of the matrix."""
    kept: bool
    """Whether that is the compensated rounding."""
    nearest_error: float
    """Squared error of the output on held-out windows with llama.cpp's rounding, relative to the output's sum of
    squares."""
    gptq_error: float
    """The same with compensated rounding."""

    def record(self) -> dict[str, Any]:
        """For the export's record."""
        return {
            "type": self.kind,
            "kept": self.kept,
            "nearest_error": self.nearest_error,
            "gptq_error": self.gptq_error,
        }


def is_held_out(n_windows: int) -> np.ndarray:
    """bool: which windows only measure; the last of every ``HELD_OUT``, at least one."""
    held = np.arange(n_windows) % HELD_OUT == HELD_OUT - 1
    held[-1] |= not held.any()
    return held


def moments_bytes(model: LanguageModel) -> int:
    """Memory that the sums of one block's inputs take, used and held-out windows."""
    return 2 * products_bytes(model.config)


def activations_bytes(model: LanguageModel, n_tokens: int) -> int:
    """Memory that the hidden states of the windows take."""
    return 4 * n_tokens * model.config.d_model


@torch.inference_mode()
def round_layers(
    model: LanguageModel,
    windows_BT: np.ndarray,
    types: Mapping[str, str],
    importance: Mapping[str, np.ndarray],
    *,
    n_threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> dict[str, RoundedMatrix]:
    """The blocks' linear layers, by Hugging Face's names. The model's weights are as before afterwards.

    ``windows_BT``: int32 ids. ``types``: ggml type of each tensor by GGUF's name. ``importance``: of columns, by the
    same names, where llama.cpp's rounding has one. ``progress`` is called with the number of matrices done.
    """
    ids_BT = torch.from_numpy(windows_BT.astype(np.int64))
    held_B = torch.from_numpy(is_held_out(len(ids_BT)))
    x_BTD = _embedding(model, types, importance, n_threads)[ids_BT]
    if model.config.embedding_scale != 1.0:
        x_BTD = x_BTD * model.config.embedding_scale
    together = max(1, _TOKENS // ids_BT.shape[1])
    names = matrix_names(model)
    found: dict[str, RoundedMatrix] = {}
    for index, layer in enumerate(model.model.layer_list()):
        run = _runner(model, index, layer)
        with _summed(layer) as (sums, sets):
            for part_BTD, part_B in zip(x_BTD.split(together), held_B.split(together), strict=True):
                for side in (False, True):
                    if (part_B == side).any():
                        sets["held"] = side
                        run(part_BTD[part_B == side])
        originals: list[tuple[Tensor, Tensor]] = []
        for group, (moments_DD, held_DD) in zip(layer.input_groups(), sums, strict=True):
            if not (torch.isfinite(moments_DD).all() and torch.isfinite(held_DD).all()):
                raise UserError(
                    f"the input of {names[id(group[0].weight)]} is not finite on the calibration text: this checkpoint "
                    "is broken; export an earlier one (run=RUN/checkpoints/step-...)"
                )
            for linear in group:
                parameter = linear.weight
                name = names[id(parameter)]
                originals.append((parameter, parameter.data))
                kind = types[gguf_name(name)]
                columns_D = importance.get(gguf_name(name))
                matrix = _round(parameter, moments_DD, held_DD, kind, columns_D, n_threads)
                if matrix is not None:
                    found[name] = matrix
                    values_OD = dequantize_rows(matrix.blocks, kind, parameter.shape[1], n_threads)
                else:
                    values_OD = rounded(_f32(parameter), kind, columns_D, n_threads)
                parameter.data = torch.from_numpy(values_OD)
                if progress:
                    progress(1)
        x_BTD = torch.cat([run(part_BTD) for part_BTD in x_BTD.split(together)])
        for parameter, data in originals:
            parameter.data = data
    return found


def _round(
    parameter: Tensor,
    moments_DD: Tensor,
    held_DD: Tensor,
    kind: str,
    columns_D: np.ndarray | None,
    n_threads: int,
) -> RoundedMatrix | None:
    """None for a type without blocks that can be chosen here."""
    if kind not in KINDS:
        return None
    weight_OD = _f32(parameter)
    total = float(((torch.from_numpy(weight_OD) @ held_DD) * torch.from_numpy(weight_OD)).sum(dtype=torch.float64))
    nearest = quantize_rows(weight_OD, kind, columns_D, n_threads)
    compensated = round_compensated(weight_OD, moments_DD, kind, importance=columns_D is not None, n_threads=n_threads)
    nearest_error, gptq_error = (
        output_error(weight_OD, blocks, kind, held_DD, n_threads) / (total or 1.0) for blocks in (nearest, compensated)
    )
    kept = gptq_error < nearest_error
    return RoundedMatrix(
        kind=kind,
        blocks=compensated if kept else nearest,
        n_columns=weight_OD.shape[1],
        kept=kept,
        nearest_error=nearest_error,
        gptq_error=gptq_error,
    )


@contextmanager
def _summed(layer: Layer) -> Iterator[tuple[list[tuple[Tensor, Tensor]], dict[str, bool]]]:
    """Inside, runs of ``layer`` add the products of inputs to (used, held-out) sums, one pair for each of its
    ``input_groups``. The switch ``held`` of the second value says which."""
    sums: list[tuple[Tensor, Tensor]] = []
    switch = {"held": False}
    handles = []

    def watch(linear: nn.Linear) -> None:
        width = linear.in_features
        pair = torch.zeros(width, width), torch.zeros(width, width)
        sums.append(pair)

        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x_ND = inputs[0].float().flatten(0, -2)
            pair[switch["held"]].addmm_(x_ND.T, x_ND)

        handles.append(linear.register_forward_pre_hook(hook))

    for group in layer.input_groups():
        watch(group[0])
    try:
        yield sums, switch
    finally:
        for handle in handles:
            handle.remove()


def _runner(model: LanguageModel, index: int, layer: Layer) -> Callable[[Tensor], Tensor]:
    """The layer as a function of its input [B, T, D]: with its own positions and its own window."""
    local = model.config.is_local(index)

    def run(x_BTD: Tensor) -> Tensor:
        cos_TE, sin_TE = rope_tables(model.config, 0, x_BTD.shape[1], local=local)
        if not model.config.has_rope(index):
            cos_TE, sin_TE = no_rotation(cos_TE)
        starts_BT = local_starts(model.config, x_BTD.shape[:2]) if local else None
        return layer.forward(x_BTD, cos_TE, sin_TE, None, starts_BT)

    return run


def _embedding(
    model: LanguageModel, types: Mapping[str, str], importance: Mapping[str, np.ndarray], n_threads: int
) -> Tensor:
    weight_VD = _f32(model.model.embed_tokens.weight)
    kind = types["token_embd.weight"]
    return torch.from_numpy(rounded(weight_VD, kind, importance.get("token_embd.weight"), n_threads))


def _f32(parameter: Tensor) -> np.ndarray:
    return parameter.detach().float().contiguous().numpy()
