"""Picks a token from a row of logits by a sampler chain, in C++ (pick.cpp): a tenth of the time that llama.cpp's chain
takes on the whole vocabulary, and the same pick.

It is built at first use, in half a second. Without a compiler ``available()`` is False, and llama.cpp's own chain
picks from the whole vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slm.machine import cpp_build

NOT_NUMBERS = -1
"""The row holds a NaN."""
NOTHING_FITS = -3
"""The picker's answer if a mask allows no possible token."""
LOOK_AT_ALL = -2
"""This chain, or this row, leaves too many candidates: llama.cpp has to pick from the whole vocabulary."""

_KINDS = {"greedy": 0, "top_k": 1, "top_p": 2, "min_p": 3, "temperature": 4}
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=c++17")


class _Chain(ctypes.Structure):
    _fields_ = (
        ("apply", ctypes.c_void_p),
        ("samplers", ctypes.c_void_p),
        ("n_samplers", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("parameter", ctypes.c_float),
        ("n_bias", ctypes.c_int32),
        ("bias_ids", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


def available() -> bool:
    """Whether the picker is built or can be built; builds it."""
    return _library() is not None


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(
            str(cpp_build.build([Path(__file__).with_name("pick.cpp")], _FLAGS, what="the token picker", openmp=False))
        )
    except (RuntimeError, OSError):
        return None
    library.slm_pick.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    library.slm_pick.restype = ctypes.c_int
    return library


def picker(
    samplers: list[tuple[str, float, int]],
    bias: tuple[np.ndarray, np.ndarray] | None,
    *,
    apply: Any,
    n_vocab: int,
) -> Callable[[int, int | None], int] | None:
    """A function from the address of a row of logits, float32 [n_vocab], and of a mask (uint32, a bit for each token;
    None: all are allowed) to a token's id, ``NOT_NUMBERS``, ``NOTHING_FITS`` or ``LOOK_AT_ALL``. None where the
    library is not there, or where the first sampler has to see every token.

    ``samplers``: name, parameter and address of each of llama.cpp's samplers, the bias left out; they must outlive
    the function. ``bias``: token ids and what is added to their logits. ``apply``: llama.cpp's llama_sampler_apply.
    """
    name, parameter, _ = samplers[0]
    # A drawn group of tokens stands for a draw only where nothing comes between.
    draws = name != "temperature" or (len(samplers) == 2 and samplers[1][0] == "dist")
    inside = parameter > 0 if name == "top_k" else 0 < parameter < 1 or name in ("greedy", "temperature")
    library = _library()
    if library is None or name not in _KINDS or not draws or not inside:
        return None
    addresses = (ctypes.c_void_p * len(samplers))(*[address for _, _, address in samplers])
    ids, added = bias if bias is not None else (np.zeros(0), np.zeros(0))
    ids, added = ids.astype(np.int32), added.astype(np.float32)
    chain = _Chain(
        apply=ctypes.cast(apply, ctypes.c_void_p).value,
        samplers=ctypes.addressof(addresses),
        n_samplers=len(samplers),
        kind=_KINDS[name],
        parameter=parameter,
        n_bias=len(ids),
        bias_ids=ids.ctypes.data,
        bias=added.ctypes.data,
    )
    function, at = library.slm_pick, ctypes.addressof(chain)
    kept = chain, addresses, ids, added

    def pick(row: int, mask: int | None = None, *, _kept: object = kept) -> int:
        return function(at, row, n_vocab, mask)

    return pick
