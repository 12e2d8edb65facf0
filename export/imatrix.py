"""The importance of each input column of each matrix: the mean square of what arrives there.

Quantization then spends its precision where it matters. Measured in f32 on the checkpoint, by PyTorch with forward
hooks or by the training kernels, over the same windows and with the same sums as llama.cpp's own llama-imatrix, and
kept in its file format:
``general.type = "imatrix"``, ``imatrix.datasets``, ``imatrix.chunk_count``, ``imatrix.chunk_size``, and for every
matrix ``<name>.in_sum2`` (sums of squares) and ``<name>.counts`` (rows summed), both f32.

Shape suffixes: B windows, T positions, D input columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slm.data.errors import UserError
from slm.kernels.column_squares import ColumnSquares, column_squares
from slm.kernels.native import Kernels
from slm.llama.blocks.names import gguf_name
from slm.model.transformer import LanguageModel


@dataclass(kw_only=True)
class ImportanceMatrix:
    """Sums over calibration text, by GGUF tensor name."""

    sums: dict[str, np.ndarray]
    """f64 [D]: sum of squares of each input column."""
    n_rows: int
    """Token positions summed."""
    chunk_size: int
    """Tokens per window."""
    n_chunks: int
    datasets: list[str]
    """Where the texts came from."""
    counts: dict[str, int] | None = None
    """Rows summed per matrix; None: ``n_rows`` for all."""

    @property
    def dataset(self) -> str:
        """Where the texts came from, in one line."""
        return ", ".join(self.datasets)

    def count(self, name: str) -> int:
        """Rows summed for a matrix."""
        return self.n_rows if self.counts is None else self.counts[name]

    def means(self) -> dict[str, np.ndarray]:
        """f32 [D] per tensor: what quantization is given, rounded as a reader of the written file would round it."""
        return {
            name: sums.astype(np.float32) / np.float32(self.count(name))
            if self.count(name)
            else np.ones(sums.shape, np.float32)
            for name, sums in self.sums.items()
        }

    def write(self, path: Path) -> None:
        """Write llama.cpp's imatrix GGUF to ``path`` (not atomic)."""
        import gguf

        writer = gguf.GGUFWriter(path, arch="")  # an empty name leaves general.architecture out
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", self.datasets)
        writer.add_uint32("imatrix.chunk_count", self.n_chunks)
        writer.add_uint32("imatrix.chunk_size", self.chunk_size)
        for name, sums in sorted(self.sums.items()):
            writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
            writer.add_tensor(f"{name}.counts", np.array([self.count(name)], dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Sums over some windows, from a pass that had another purpose."""

    squares: ColumnSquares
    inputs: np.ndarray
    """Token ids [B, T] of these windows."""

    def left(self, windows_BT: np.ndarray) -> np.ndarray | None:
        """``windows_BT`` without these windows; None unless each of these is among them once."""
        if windows_BT.shape[1] != self.inputs.shape[1]:
            return None
        done = (windows_BT[:, None] == self.inputs[None]).all(axis=2)
        return windows_BT[~done.any(axis=1)] if done.sum() == len(self.inputs) == done.any(axis=1).sum() else None


def collect(
    model: LanguageModel,
    windows: np.ndarray,
    *,
    dataset: str,
    output: bool = False,
    progress: Callable[[int], None] | None = None,
    kernels: Kernels | None = None,
    begun: Begun | None = None,
) -> ImportanceMatrix:
    """Run ``windows`` (int32 [n, T] token ids) through the model and sum squares of every matrix's input, over those of
    ``begun``, too: windows that another pass has seen (``Begun.left``).

    ``output`` adds the output projection. ``progress`` is called with the number of windows done since
    its last call. ``kernels``: in f32, to compute with instead of PyTorch. UserError where an activation is not finite.
    """
    squares = begun.squares if begun else None
    found = column_squares(model, windows, output=output, progress=progress, kernels=kernels, begun=squares)
    # With tied embeddings the head is called token_embd; llama.cpp looks the name up as it is.
    sums = {gguf_name(name): total_D for name, total_D in found.items()}
    for name, total_D in sums.items():
        if not torch.isfinite(total_D).all():
            raise UserError(
                f"the input of {name} is not finite on the calibration text: this checkpoint is broken; "
                "export an earlier one (run=RUN/checkpoints/step-...)"
            )
    n_chunks = len(windows) + (len(begun.inputs) if begun else 0)
    return ImportanceMatrix(
        sums={name: total_D.numpy().copy() for name, total_D in sums.items()},
        n_rows=n_chunks * windows.shape[1],
        chunk_size=windows.shape[1],
        n_chunks=n_chunks,
        datasets=[dataset],
    )
