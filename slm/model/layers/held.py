"""Frozen weights that are held in another form than f32, and are made when a product is to read them.

Where a parameter's weights are held so, its own values are one NaN that takes the place of all: whoever reads them past
this module sees it at once.

Shape suffixes: O output rows, I input columns, N positions.

Tested in tests/train/lora/test_held_base.py.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm.model.snapshot import Computed

ROWS = 512
"""Rows that are made at a time: with their values they fit the caches. A multiple of every kernel's width."""


_scratch = np.empty(0, np.float32)


class Held(Protocol):
    """A matrix [O, I] in some form that takes less memory than f32."""

    shape: tuple[int, int]

    def rows(self, some: slice | np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """f32 [rows, I]: those of a slice, or of these ids; in ``out`` where it is given."""


def hold(module: nn.Linear | nn.Embedding, held: Held) -> None:
    """From now on the module computes with ``held``, which no gradient changes."""
    module.weight = nn.Parameter(torch.full((1, 1), torch.nan).expand(held.shape), requires_grad=False)
    module.weight.slm_held = held  # type: ignore[attr-defined]
    forward = partial(_linear, module) if isinstance(module, nn.Linear) else partial(_embedding, module)
    module.forward = forward  # type: ignore[method-assign]


def held_of(weight: Tensor) -> Held | None:
    return getattr(weight, "slm_held", None)


def whole(weight: Tensor) -> Tensor:
    """The weight's values: itself, or what it holds in f32."""
    held = held_of(weight)
    return weight if held is None else torch.from_numpy(held.rows(slice(None)))


def parts(weight: Tensor, some: slice = slice(None)) -> Iterator[tuple[int, Tensor]]:
    """(place among them, rows) of ``some`` of the weight's rows: all at once where they are there, else a few at a
    time, each written over the ones before."""
    global _scratch
    if (held := held_of(weight)) is None:
        yield 0, weight[some]
        return
    first, stop, _ = some.indices(held.shape[0])
    width = held.shape[1]
    if len(_scratch) < ROWS * width:
        _scratch = np.empty(ROWS * width, np.float32)
    for start in range(first, stop, ROWS):
        count = min(ROWS, stop - start)
        out = _scratch[: count * width].reshape(count, width)
        yield start - first, torch.from_numpy(held.rows(slice(start, start + count), out))


def rows_of(table: Tensor, ids_N: Tensor) -> Tensor:
    """The rows [N, I] of a table that is held."""
    held = held_of(table)
    assert held is not None
    unique, places = np.unique(ids_N.numpy(), return_inverse=True)
    return torch.from_numpy(held.rows(unique)[places.reshape(-1)])


def computed(model: nn.Module) -> dict[str, Computed]:
    """The model's frozen weights, to be read when they are written."""
    found = {}
    for name, each in model.named_parameters():
        held = held_of(each)
        found[name] = Computed(tuple(each.shape), each.detach().numpy().__getitem__ if held is None else held.rows)
    return found


class Values(Mapping[str, Tensor]):
    """The weights of a model by name, in f32; those that are held are made each time they are asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())

    def __getitem__(self, name: str) -> Tensor:
        return whole(self._parameters[name]).detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def parameter(self, name: str) -> Tensor:
        """The parameter, without its values where these are held."""
        return self._parameters[name].detach() if held_of(self._parameters[name]) is None else self._parameters[name]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T [..., O] of x [..., I]. Of weights that are held some rows at a time are made, where no gradient is to go
    through them: all of a head of 150,000 tokens would be 0.6 GB."""
    if held_of(weight) is None or x.requires_grad:
        return F.linear(x, whole(weight))
    out = x.new_empty(*x.shape[:-1], len(weight))
    for start, rows in parts(weight):
        out[..., start : start + len(rows)] = F.linear(x, rows)
    return out


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    found = product(x, module.weight)
    return found if module.bias is None else found + module.bias


def _embedding(module: nn.Embedding, ids: Tensor) -> Tensor:
    return rows_of(module.weight, ids.reshape(-1)).view(*ids.shape, -1)
