"""Quantization of a GGUF file by llama.cpp's own ``llama_model_quantize``."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np

from slm.data.errors import UserError, nearest
from slm.llama.errors import LlamaError
from slm.llama.gguf_check import ggml_type_id, read_header
from slm.llama.log import clear_log, first_error, log_lines
from slm.machine.crash_guard import doing
from slm.machine.hardware import n_threads as default_threads

IGNORE_IMATRIX = ("q8_0",)
"""Types with the same file with an importance matrix and without (ggml's ``quantize_q8_0`` reads none)."""
_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


def quant_types() -> dict[str, int]:
    """Lower-case name -> llama_ftype, for every type llama.cpp's quantize tool offers, aliases included."""
    prefix = "LLAMA_FTYPE_MOSTLY_"
    types = {"f32": C.LLAMA_FTYPE_ALL_F32}
    for name in dir(C):
        if name.startswith(prefix):
            types[name.removeprefix(prefix).lower()] = getattr(C, name)
    # Readable but not writable: llama_model_quantize has no default tensor type for it.
    types.pop("nvfp4", None)
    types |= {alias: types[name] for alias, name in _ALIASES.items()}
    return dict(sorted(types.items()))


def quantize(
    src: str | Path,
    dst: str | Path,
    type_name: str,
    *,
    imatrix: Mapping[str, np.ndarray] | None = None,
    tensor_types: Mapping[str, str] | None = None,
    metadata: Mapping[str, str | float] | None = None,
    output_type: str | None = None,
    token_embedding_type: str | None = None,
    pure: bool = False,
    n_threads: int | None = None,
    allow_requantize: bool = False,
) -> list[str]:
    """Quantizes a GGUF file into another with ``llama_model_quantize``; returns llama.cpp's log lines.

    ``imatrix``: tensor name -> float32 [row length], the importance of each input column. ``tensor_types``:
    regular expression over tensor names -> ggml type. ``metadata``: added to the file's (texts of at most 127 bytes,
    and f32). ``pure``: every matrix gets the same type, no mixture.
    Raises ``UserError`` for an unknown type or equal paths, ``LlamaError`` with llama.cpp's reason when it
    fails; a partial ``dst`` is then removed. Not atomic: callers write to a temporary name and rename.
    """
    src, dst = Path(src), Path(dst)
    types = quant_types()
    name = type_name.lower()
    if name not in types:
        raise UserError(f"unknown quantization type {type_name!r}; {nearest(name, list(types))}".rstrip("; "))
    if dst.exists() and src.exists() and os.path.samefile(src, dst):
        raise UserError(f"the output would overwrite the input {src}; give another output path")
    read_header(src)
    params = C.llama_model_quantize_default_params()
    params.ftype = types[name]
    params.nthread = n_threads or default_threads()
    params.pure = pure
    params.allow_requantize = allow_requantize
    if output_type is not None:
        params.output_tensor_type = ggml_type_id(output_type)
    if token_embedding_type is not None:
        params.token_embedding_type = ggml_type_id(token_embedding_type)
    # What the structs point to must outlive the call.
    entries, rows = _imatrix_entries(imatrix or {})
    if imatrix:
        params.imatrix = ctypes.cast(entries, ctypes.POINTER(C.llama_model_imatrix_data))
    values = _metadata_values(metadata or {})
    if metadata:
        params.kv_overrides = ctypes.cast(values, ctypes.POINTER(C.llama_model_kv_override))
    overrides = _type_overrides(tensor_types or {})
    if tensor_types:
        params.tt_overrides = ctypes.cast(overrides, ctypes.POINTER(C.llama_model_tensor_override))
    clear_log()
    doing(f"quantizing {src.name} to {name}")
    status = C.llama_model_quantize(os.fsencode(src), os.fsencode(dst), ctypes.byref(params))
    del entries, rows, values, overrides
    if status != 0:
        with contextlib.suppress(FileNotFoundError):
            dst.unlink()
        raise LlamaError(f"llama.cpp cannot quantize {src} to {name}: {first_error()}")
    return log_lines()


def _imatrix_entries(imatrix: Mapping[str, np.ndarray]) -> tuple[ctypes.Array[Any], list[np.ndarray]]:
    """llama.cpp's array, which ends in an empty entry, and the rows that it points to."""
    entries = (C.llama_model_imatrix_data * (len(imatrix) + 1))()
    rows: list[np.ndarray] = []
    for entry, (tensor, values) in zip(entries, imatrix.items(), strict=False):
        row = np.ascontiguousarray(values, dtype=np.float32).ravel()
        if not np.isfinite(row).all():
            raise LlamaError(f"the importance matrix of {tensor} holds values that are not finite")
        rows.append(row)
        entry.name = tensor.encode()
        entry.data = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = row.size
    return entries, rows


def _metadata_values(metadata: Mapping[str, str | float]) -> ctypes.Array[Any]:
    """llama.cpp's array, which ends in an entry with an empty key."""
    entries = (C.llama_model_kv_override * (len(metadata) + 1))()
    for entry, (key, value) in zip(entries, metadata.items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, str):
            entry.tag, entry.value.val_str = C.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
        else:
            entry.tag, entry.value.val_f64 = C.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
    return entries


def _type_overrides(tensor_types: Mapping[str, str]) -> ctypes.Array[Any]:
    """llama.cpp's array, which ends in an empty entry."""
    overrides = (C.llama_model_tensor_override * (len(tensor_types) + 1))()
    for override, (pattern, kind) in zip(overrides, tensor_types.items(), strict=False):
        override.pattern = pattern.encode()
        override.type = ggml_type_id(kind)
    return overrides
