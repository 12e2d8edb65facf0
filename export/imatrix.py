"""The importance of each input column of each matrix: the mean square of what arrives there.

Quantization then spends its precision where it matters. Measured with forward hooks on the checkpoint, over the
same windows and with the same sums as llama.cpp's own llama-imatrix, and kept in its file format:
``general.type = "imatrix"``, ``imatrix.datasets``, ``imatrix.chunk_count``, ``imatrix.chunk_size``, and for every
matrix ``<name>.in_sum2`` (sums of squares) and ``<name>.counts`` (rows summed), both f32.

Shape suffixes: B windows, T positions, D input columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data.errors import UserError
from slm.llama.blocks.names import gguf_name
from slm.model.transformer import LanguageModel

SHARED_INPUTS = {
    "self_attn.q_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""The matrix that is hooked -> the matrices that read the same input."""


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


@torch.inference_mode()
def collect(
    model: LanguageModel,
    windows: np.ndarray,
    *,
    dataset: str,
    output: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportanceMatrix:
    """Run ``windows`` (int32 [n, T] token ids) through the model and sum squares of every matrix's input.

    ``output`` adds the output projection. ``progress`` is called with (windows done, windows in all).
    UserError where an activation is not finite.
    """
    sums: dict[str, Tensor] = {}
    reached: set[str] = set()
    handles = []

    def watch(module: nn.Module, name: str, shared: list[str]) -> None:
        total_D = torch.zeros(module.get_parameter("weight").shape[1], dtype=torch.float64)
        for each in shared:
            sums[gguf_name(each + ".weight")] = total_D

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            reached.update(gguf_name(each + ".weight") for each in shared)
            total_D.add_(inputs[0].float().square().flatten(0, -2).sum(0, dtype=torch.float64))

        handles.append(module.register_forward_pre_hook(hook))

    for index, layer in enumerate(model.model.layers):
        for hooked, shared in SHARED_INPUTS.items():
            prefix = f"model.layers.{index}."
            watch(layer.get_submodule(hooked), prefix + hooked, [prefix + each for each in shared])
    output_sum_D = torch.zeros(model.config.d_model, dtype=torch.float64)
    n_rows = 0
    try:
        for done, window_T in enumerate(windows):
            x_BTD = model.hidden_states(torch.from_numpy(window_T.astype(np.int64))[None])
            if output:
                output_sum_D.add_(x_BTD.float().square().flatten(0, -2).sum(0, dtype=torch.float64))
            n_rows += len(window_T)
            if progress:
                progress(done + 1, len(windows))
    finally:
        for handle in handles:
            handle.remove()
    assert reached == set(sums), f"never reached: {sorted(set(sums) - reached)}"
    if output:
        # With tied embeddings the matrix is called token_embd; llama.cpp looks the name up as it is.
        sums["token_embd.weight" if model.config.tie_embeddings else "output.weight"] = output_sum_D
    for name, total_D in sums.items():
        if not torch.isfinite(total_D).all():
            raise UserError(
                f"the input of {name} is not finite on the calibration text: this checkpoint is broken; "
                "export an earlier one (run=RUN/checkpoints/step-...)"
            )
    return ImportanceMatrix(
        sums={name: total_D.numpy().copy() for name, total_D in sums.items()},
        n_rows=n_rows,
        chunk_size=windows.shape[1],
        n_chunks=len(windows),
        datasets=[dataset],
    )
