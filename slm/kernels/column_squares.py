"""What arrives at each matrix's columns: sums of squares, by which rounding is weighted, and of all products.

By PyTorch with forward hooks or by the training kernels. Export's importance matrix takes the squares from here,
quantization-aware training the products.

Tested in tests/export/test_imatrix.py, tests/train/qat/test_fake_quant.py.

Shape suffixes: B windows, T positions, D input columns.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slm.kernels.fused import Fused
from slm.kernels.native import Kernels
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel

_TOKENS = 2_048
"""Rows that go through the kernels together: weights are packed anew for each such group."""
_Run = Callable[[Tensor], Tensor]
"""From ids [B, T] to the model's hidden states."""
_Add = Callable[[list[Tensor], Tensor], None]
"""Takes some matrices' weights and the input that they share."""


class ColumnSquares:
    """Sums of squares of every matrix's input columns, over all passes that are ``watched``."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._names, self._reached = model, matrix_names(model), set[str]()
        self.sums = {
            name: torch.zeros(model.get_parameter(name).shape[1], dtype=torch.float64) for name in self._names.values()
        }
        """By Hugging Face's name of the matrix: f64 [D]."""

    @contextmanager
    def watched(self, fused: Fused | None) -> Iterator[None]:
        """Inside, every pass counts: by ``fused``, or by PyTorch where that is None."""
        with _torch_observed(self._model, self.add) if fused is None else fused.observed(self.add):
            yield

    @torch.no_grad()
    def add(self, weights: list[Tensor], x: Tensor) -> None:
        """Count the input ``x`` of some matrices."""
        squares_D = _sum_of_squares(x)
        for each in weights:
            self._reached.add(self._names[id(each)])
            self.sums[self._names[id(each)]].add_(squares_D)

    def check(self) -> None:
        """Every matrix was reached."""
        assert self._reached == set(self.sums), f"never reached: {sorted(set(self.sums) - self._reached)}"


@torch.inference_mode()
def column_squares(
    model: LanguageModel,
    windows: np.ndarray,
    *,
    output: bool = False,
    progress: Callable[[int], None] | None = None,
    kernels: Kernels | None = None,
    begun: ColumnSquares | None = None,
) -> dict[str, Tensor]:
    """Run ``windows`` (int32 [n, T] token ids) through the model and sum the squares of every matrix's input columns.

    By Hugging Face's name of the matrix: f64 [D]. ``output`` adds the head (with tied embeddings: the embedding).
    ``progress`` is called with the number of windows done since its last call. ``kernels``: in f32, to compute with
    instead of PyTorch. ``begun``: sums of other windows, which are added to.
    """
    squares = begun or ColumnSquares(model)
    output_sum_D = torch.zeros(model.config.d_model, dtype=torch.float64)
    for n_done, x in _passes(model, windows, squares.add, kernels):
        if output:
            output_sum_D += _sum_of_squares(x)
        if progress:
            progress(n_done)
    squares.check()
    sums = dict(squares.sums)
    if output:
        sums["model.embed_tokens.weight" if model.config.tie_embeddings else "lm_head.weight"] = output_sum_D
    return sums


@torch.no_grad()
def column_products(model: LanguageModel, windows: np.ndarray, kernels: Kernels | None = None) -> dict[str, Tensor]:
    """Run ``windows`` (int32 [n, T] token ids) through the model and sum the products of every two input columns.

    By Hugging Face's name of the matrix: f32 [D, D], one tensor for the matrices that read the same input. ``kernels``:
    to compute with instead of PyTorch, in f32 or bf16.
    """
    names = matrix_names(model)
    sums: dict[str, Tensor] = {}

    def add(weights: list[Tensor], x: Tensor) -> None:
        x_ND = x.float().flatten(0, -2)
        total_DD = sums.get(names[id(weights[0])])
        if total_DD is None:
            total_DD = torch.zeros(x_ND.shape[1], x_ND.shape[1])
            sums.update({names[id(each)]: total_DD for each in weights})
        total_DD.addmm_(x_ND.T, x_ND)

    for _ in _passes(model, windows, add, kernels):
        pass
    return sums


def products_bytes(config: ModelConfig) -> int:
    """Memory that ``column_products`` takes for each layer."""
    inputs = (config.d_model, config.n_heads * config.head_dim, config.d_model, config.ffn_dim)
    return 4 * sum(width**2 for width in inputs)


def _passes(
    model: LanguageModel, windows: np.ndarray, add: _Add, kernels: Kernels | None
) -> Iterator[tuple[int, Tensor]]:
    """(windows of a pass, their hidden states), pass by pass; ``add`` gets the inputs of the layers' matrices."""
    n_together = max(1, (1 if kernels is None else _TOKENS) // windows.shape[1])
    with _torch_pass(model, add) if kernels is None else _kernel_pass(model, kernels, add) as run:
        for start in range(0, len(windows), n_together):
            some_BT = windows[start : start + n_together]
            yield len(some_BT), run(torch.from_numpy(some_BT.astype(np.int64)))


def matrix_names(model: LanguageModel) -> dict[int, str]:
    """Hugging Face's names of the layers' matrices, by the parameters' ``id``."""
    groups = [group for layer in model.model.layer_list() for group in layer.input_groups()]
    wanted = {id(each.weight) for group in groups for each in group}
    return {id(parameter): name for name, parameter in model.named_parameters() if id(parameter) in wanted}


@contextmanager
def _torch_pass(model: LanguageModel, add: _Add) -> Iterator[_Run]:
    """The hidden states of ids [B, T] by PyTorch; ``add`` gets the inputs of the layers' matrices."""
    with _torch_observed(model, add):
        yield model.hidden_states


@contextmanager
def _torch_observed(model: LanguageModel, add: _Add) -> Iterator[None]:
    with ExitStack() as hooks:
        for layer in model.model.layer_list():
            for group in layer.input_groups():
                weights: list[Tensor] = [each.weight for each in group]
                hooks.enter_context(group[0].register_forward_pre_hook(partial(_hook, add, weights)))
        yield


def _hook(add: _Add, weights: list[Tensor], _: nn.Module, inputs: tuple[Any, ...]) -> None:
    add(weights, inputs[0])


@contextmanager
def _kernel_pass(model: LanguageModel, kernels: Kernels, add: _Add) -> Iterator[_Run]:
    """The same by the training kernels."""
    fused = Fused(model, kernels, recompute="layer", keep_packed=False)
    with fused.observed(add):
        yield fused.hidden_states


def _sum_of_squares(x: Tensor) -> Tensor:
    return x.float().square().flatten(0, -2).sum(0, dtype=torch.float64)
