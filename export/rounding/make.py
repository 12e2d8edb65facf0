"""A quantized file with matrices rounded again with compensation, where that is measured better.

Tested in tests/export/rounding/test_layers.py.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm.data.errors import UserError
from slm.evaluate.progress import progress_bar
from slm.export.auto.divergence import Divergence
from slm.export.config import CalibrationConfig
from slm.export.gguf.tensors import in_gguf_order
from slm.export.imatrix import ImportanceMatrix
from slm.export.rounding.layers import (
    HELD_OUT,
    RoundedMatrix,
    activations_bytes,
    is_held_out,
    moments_bytes,
    round_layers,
)
from slm.export.source import Source, calibration_windows
from slm.export.texts import Text
from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.rounding import dequantize_rows, rounded
from slm.llama.gguf_check import read_header

METADATA: dict[str, str | float] = {"slm.rounding": "gptq where measured better"}
"""What a file says that was made so."""
MEASURE = (
    "layer output error on held-out calibration windows, a part of the output's sum of squares; then the KL divergence "
    "of the whole file from the checkpoint on these windows, nats per position"
)


def round_again(
    source: Source,
    path: Path,
    text: Text,
    options: CalibrationConfig,
    imatrix: ImportanceMatrix | None,
    threads: int,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Replace blocks of the file at ``path`` (staged, llama.cpp's own rounding) by compensated ones of the same types.

    A matrix keeps them where its output's error on held-out windows is smaller, and the file where its KL divergence
    there is. Returns what the export's record says. UserError where the text is too short.
    """
    windows, stream = calibration_windows(source, text, options)
    windows_BT = np.stack([window.inputs(stream) for window in windows])
    if len(windows_BT) < 2:
        raise UserError(
            f"rounding=gptq needs at least 2 chunks of calibration text, to hold one out; {text.origin} has 1: give "
            "more text (calibration.text) or a smaller calibration.n_ctx"
        )
    types = {tensor.name: tensor.type for tensor in read_header(path).tensors}
    importance = imatrix.means() if imatrix else {}
    held_B = is_held_out(len(windows_BT))
    needed = moments_bytes(source.model) + activations_bytes(source.model, windows_BT.size)
    log(
        f"gptq: {len(windows_BT)} chunks of {windows_BT.shape[1]} tokens of {text.origin}, {int(held_B.sum())} of them "
        f"held out; {needed / 1e6:,.0f} MB for second moments and activations"
    )
    n_matrices = 7 * source.model.config.n_layers
    with progress_bar("gptq", n_matrices, "matrices") as progress:
        found = round_layers(source.model, windows_BT, types, importance, n_threads=threads, progress=progress)
    log(f"gptq: KL of both roundings on {int(held_B.sum())} chunks")
    divergence = Divergence(source.model, windows_BT[held_B])
    nearest = _llama_values(source, types, importance, threads)
    kl_nearest = divergence.of(nearest)
    kl_gptq = divergence.of(nearest | _values(found, threads))
    kept = kl_gptq < kl_nearest
    if kept:
        write_blocks(source, path, {name: each.blocks for name, each in found.items() if each.kept})
    log(_summary(found, kl_nearest, kl_gptq))
    return {
        "method": "gptq",
        "kept": kept,
        "measure": MEASURE,
        "kl_nearest": kl_nearest,
        "kl_gptq": kl_gptq,
        "chunks": len(windows_BT),
        "held_out": int(held_B.sum()),
        "matrices": {gguf_name(name): each.record() for name, each in found.items()},
    }


def write_blocks(source: Source, path: Path, blocks: Mapping[str, np.ndarray]) -> None:
    """Write blocks (uint8 [rows, bytes], by Hugging Face's names) over those of the same tensors in a file."""
    header = read_header(path)
    places = {tensor.name: tensor for tensor in header.tensors}
    with open(path, "r+b") as file:
        for name, rows in blocks.items():
            tensor = places[gguf_name(name)]
            stored = in_gguf_order(source.model.config, name, torch.from_numpy(rows)).contiguous().numpy()
            assert stored.nbytes == tensor.n_bytes, f"{name}: {stored.nbytes} bytes for {tensor.n_bytes}"
            file.seek(header.data_offset + tensor.offset)
            file.write(stored.tobytes())


def _llama_values(
    source: Source, types: Mapping[str, str], importance: Mapping[str, np.ndarray], threads: int
) -> dict[str, np.ndarray]:
    """Every matrix as llama.cpp rounds it."""
    arch = source.model.config.arch
    weights = {name: tensor for name, tensor in source.model.state_dict().items() if gguf_name(name, arch) in types}
    return {
        name: rounded(
            tensor.detach().float().contiguous().numpy(), kind, importance.get(gguf_name(name, arch)), threads
        )
        for name, tensor in weights.items()
        if (kind := types[gguf_name(name, arch)]) != "f32"
    }


def _values(found: Mapping[str, RoundedMatrix], threads: int) -> dict[str, np.ndarray]:
    return {
        name: dequantize_rows(each.blocks, each.kind, each.n_columns, threads)
        for name, each in found.items()
        if each.kept
    }


def _summary(found: Mapping[str, RoundedMatrix], kl_nearest: float, kl_gptq: float) -> str:
    kept = [each for each in found.values() if each.kept]
    ratios = [max(each.gptq_error, 1e-30) / max(each.nearest_error, 1e-30) for each in found.values()]
    change = float(np.exp(np.mean(np.log(ratios)))) - 1 if ratios else 0.0
    verdict = "kept" if kl_gptq < kl_nearest else "not better: llama.cpp's own rounding stays"
    return (
        f"gptq: better for {len(kept)} of {len(found)} matrices, output error {change:+.0%} (geometric mean); KL "
        f"{kl_gptq:.3g} against {kl_nearest:.3g} nats on held-out text ({verdict}; one chunk of {HELD_OUT} is held out)"
    )
