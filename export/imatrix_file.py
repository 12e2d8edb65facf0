"""Importance matrices in files: llama.cpp's GGUF and its older ``.dat``, read, merged and looked at.

The GGUF holds sums of squares and the rows that were summed. The ``.dat`` (before 2025; ``llama-imatrix
--output-format dat`` still writes it) holds, little-endian: the number of entries (i32); per entry the name (i32
length, bytes), the calls (i32), the number of values (i32) and f32 values, each the mean square times the calls; then,
where the writer knew them, the calls in all (i32) and the data set's name (i32 length, bytes).
"""

import math
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slm.data.errors import UserError
from slm.export.imatrix import ImportanceMatrix
from slm.llama.gguf_check import GgufTensor, read_header

_CALL_ROWS = 512
"""Rows that one call of a ``.dat`` stands for when it is merged: llama-imatrix's default window. (A power of two: the
means stay the same to the bit.)"""
_MOST_ENTRIES = 100_000


def read_imatrix(path: Path) -> ImportanceMatrix:
    """The importance matrix in a file of either format. UserError, in one line, where it holds none."""
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
        matrix = _read_gguf(path) if magic == b"GGUF" else _read_dat(path, path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give an importance matrix as calibration.files=[FILE]"
        ) from error
    for name, sums in matrix.sums.items():
        if not np.isfinite(sums).all() or (sums < 0).any():
            raise UserError(f"{path} is no importance matrix: {name} contains negative or non-finite values")
    return matrix


def merge(matrices: Sequence[ImportanceMatrix]) -> ImportanceMatrix:
    """Sums and counts added: what one pass over all the texts would have given. UserError where widths differ."""
    first, *others = matrices
    if not others:
        return first
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for matrix in matrices:
        for name, each in matrix.sums.items():
            if name in sums and sums[name].shape != each.shape:
                raise UserError(
                    f"the importance matrices are of different models: {name} has {sums[name].size} columns in one and "
                    f"{each.size} in another; give matrices of one model"
                )
            sums[name] = sums[name] + each if name in sums else each
            counts[name] = counts.get(name, 0) + matrix.count(name)
    return ImportanceMatrix(
        sums=sums,
        counts=counts,
        n_rows=sum(matrix.n_rows for matrix in matrices),
        chunk_size=first.chunk_size,
        n_chunks=sum(matrix.n_chunks for matrix in matrices),
        datasets=list(dict.fromkeys(name for matrix in matrices for name in matrix.datasets)),
    )


def check_names(matrix: ImportanceMatrix, tensors: Iterable[GgufTensor]) -> None:
    """UserError unless the matrix is one of the model that has these tensors."""
    widths = {tensor.name: tensor.shape[0] for tensor in tensors}
    known = [name for name in matrix.sums if name in widths]
    if not known:
        raise UserError(
            f"the importance matrix of {matrix.dataset} is of another model: none of its {len(matrix.sums)} matrices "
            "is in this one"
        )
    for name in known:
        if matrix.sums[name].size != widths[name]:
            raise UserError(
                f"the importance matrix of {matrix.dataset} is of another model: {name} has "
                f"{matrix.sums[name].size} columns there and {widths[name]} here"
            )


def statistics(matrix: ImportanceMatrix) -> list[dict[str, Any]]:
    """One record per matrix, by name.

    ``mean``: mean square of the inputs, over all columns; ``largest``: of the largest column; ``effective``: the share
    of columns that count, exp(entropy) of the columns' shares divided by their number (1: all alike); ``dead``: the
    share of columns that are always 0.
    """
    found = []
    for name, means in sorted(matrix.means().items()):
        values = means.astype(np.float64)
        total = float(values.sum())
        shares = values[values > 0] / total if total > 0 else np.ones(1)
        found.append(
            {
                "tensor": name,
                "columns": int(values.size),
                "rows": matrix.count(name),
                "mean": float(values.mean()),
                "largest": float(values.max()),
                "effective": float(math.exp(-(shares * np.log(shares)).sum()) / values.size),
                "dead": float((values == 0).mean()),
            }
        )
    return found


def statistics_line(matrix: ImportanceMatrix) -> str:
    """The statistics in one line: what importance there is to be gained from."""
    each = statistics(matrix)
    least = min(each, key=lambda row: row["effective"])
    effective = float(np.median([row["effective"] for row in each]))
    dead = [row["tensor"] for row in each if row["dead"] > 0]
    return (
        f"importance matrix: {len(each)} matrices over {matrix.n_rows:,} positions; in the median {effective:.0%} of a "
        f"matrix's columns count (least: {least['tensor']}, {least['effective']:.0%})"
        + (f"; columns that are always 0 in {len(dead)}" if dead else "")
    )


def _read_gguf(path: Path) -> ImportanceMatrix:
    import gguf

    header = read_header(path)  # checks every length against the file's before a reader trusts one
    if header.metadata.get("general.type") != "imatrix":
        raise UserError(f"{path} is a GGUF file but no importance matrix; give one as calibration.files=[FILE]")
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    sums, counts = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(".in_sum2"):
            continue
        stem = name.removesuffix(".in_sum2")
        count = tensors.get(f"{stem}.counts")
        if count is None or tensor.tensor_type != 0 or count.tensor_type != 0:
            raise UserError(f"{path} is damaged: {stem} has no f32 sums and counts; make it again")
        if count.data.size != 1:
            raise UserError(f"{path} is of a mixture of experts ({stem}), which no model here is")
        sums[stem] = tensor.data.astype(np.float64).ravel()
        counts[stem] = round(float(count.data.ravel()[0]))
    if not sums:
        raise UserError(f"{path} is an importance matrix without any data; make it again")
    field = reader.fields.get("imatrix.datasets")
    return ImportanceMatrix(
        sums=sums,
        counts=counts,
        n_rows=max(counts.values()),
        chunk_size=int(header.metadata.get("imatrix.chunk_size", 0)),
        n_chunks=int(header.metadata.get("imatrix.chunk_count", 0)),
        datasets=[str(name) for name in field.contents()] if field else [path.name],
    )


def _read_dat(path: Path, raw: bytes) -> ImportanceMatrix:
    at = 0

    def take(n_bytes: int) -> bytes:
        nonlocal at
        if not 0 <= n_bytes <= len(raw) - at:
            raise UserError(f"{path} is no importance matrix: it ends, or is damaged, at byte {at} of {len(raw)}")
        at += n_bytes
        return raw[at - n_bytes : at]

    def number() -> int:
        return int(struct.unpack("<i", take(4))[0])

    n_entries = number()
    if not 1 <= n_entries <= _MOST_ENTRIES:
        raise UserError(f"{path} is no importance matrix: neither GGUF nor llama.cpp's older .dat")
    sums, counts = {}, {}
    for _ in range(n_entries):
        name = take(number()).decode("utf-8", errors="replace")
        calls, n_values = number(), number()
        values = np.frombuffer(take(4 * n_values), "<f4").astype(np.float64)
        # Without calls the values are the means themselves.
        counts[name] = max(calls, 1) * _CALL_ROWS
        sums[name] = values * _CALL_ROWS
    n_chunks = number() if at < len(raw) else max(counts.values()) // _CALL_ROWS
    dataset = take(number()).decode("utf-8", errors="replace") if at < len(raw) else path.name
    return ImportanceMatrix(
        sums=sums,
        counts=counts,
        n_rows=max(counts.values()),
        chunk_size=_CALL_ROWS,
        n_chunks=n_chunks,
        datasets=[dataset],
    )
