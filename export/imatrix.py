"""The importance of each input column of each matrix: the mean square of what arrives there.

Quantization then spends its precision where it matters. Measured in f32 on the checkpoint, by PyTorch with forward
hooks or by the training kernels, over the same windows and with the same sums as llama.cpp's own llama-imatrix, and
kept in its file format:
``general.type = "imatrix"``, ``imatrix.datasets``, ``imatrix.chunk_count``, ``imatrix.chunk_size``, and for every
matrix ``<name>.in_sum2`` (sums of squares) and ``<name>.counts`` (rows summed), both f32.

Shape suffixes: B windows, T positions, D input columns.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data.errors import UserError
from slm.kernels.choice import open_kernels
from slm.kernels.fused import Fused, unsupported
from slm.kernels.library import Kernels
from slm.llama.blocks.names import gguf_name
from slm.model.transformer import LanguageModel

SHARED_INPUTS = {
    "self_attn.q_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""The matrix that is hooked -> the matrices that read the same input."""
_TOKENS = 2_048
"""That go through the kernels together: weights are packed anew for each such group."""
_WORTH_FLOPS = 2e12
"""Of a pass from which on the kernels are used: some 10 s of PyTorch on two cores."""
_Run = Callable[[Tensor], Tensor]
"""From ids [B, T] to the model's hidden states."""
_Add = Callable[[list[Tensor], Tensor], None]
"""Takes some matrices' weights and the input that they share."""


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
    progress: Callable[[int], None] | None = None,
    kernels: Kernels | None = None,
) -> ImportanceMatrix:
    """Run ``windows`` (int32 [n, T] token ids) through the model and sum squares of every matrix's input.

    ``output`` adds the output projection. ``progress`` is called with the number of windows done since
    its last call. ``kernels``: in f32, to compute with instead of PyTorch. UserError where an activation is not finite.
    """
    names = {id(model.get_parameter(name)): gguf_name(name) for name in _matrices(model)}
    sums = {
        name: torch.zeros(model.get_parameter(parameter).shape[1], dtype=torch.float64)
        for parameter, name in zip(_matrices(model), names.values(), strict=True)
    }
    output_sum_D = torch.zeros(model.config.d_model, dtype=torch.float64)
    reached: set[str] = set()

    def add(weights: list[Tensor], x: Tensor) -> None:
        squares_D = _sum_of_squares(x)
        for each in weights:
            reached.add(names[id(each)])
            sums[names[id(each)]].add_(squares_D)

    n_together = max(1, (1 if kernels is None else _TOKENS) // windows.shape[1])
    with _torch_pass(model, add) if kernels is None else _kernel_pass(model, kernels, add) as run:
        for start in range(0, len(windows), n_together):
            some_BT = windows[start : start + n_together]
            x = run(torch.from_numpy(some_BT.astype(np.int64)))
            if output:
                output_sum_D += _sum_of_squares(x)
            if progress:
                progress(len(some_BT))
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
        n_rows=windows.size,
        chunk_size=windows.shape[1],
        n_chunks=len(windows),
        datasets=[dataset],
    )


def quick_kernels(model: LanguageModel, n_tokens: int) -> Kernels | None:
    """The f32 training kernels, where they can run the model and the pass is long enough to make loading (and perhaps
    building) them worth it."""
    if 2 * model.config.n_params * n_tokens < _WORTH_FLOPS:
        return None
    kernels, _ = open_kernels("auto", "f32")
    return kernels if kernels is not None and unsupported(model, kernels) is None else None


def _matrices(model: LanguageModel) -> list[str]:
    """Hugging Face's names of the layers' matrices."""
    return [
        f"model.layers.{index}.{each}.weight"
        for index in range(model.config.n_layers)
        for shared in SHARED_INPUTS.values()
        for each in shared
    ]


@contextmanager
def _torch_pass(model: LanguageModel, add: _Add) -> Iterator[_Run]:
    """The hidden states of ids [B, T] by PyTorch; ``add`` gets the inputs of the layers' matrices."""
    with ExitStack() as hooks:
        for layer in model.model.layers:
            for hooked, shared in SHARED_INPUTS.items():
                weights: list[Tensor] = [layer.get_submodule(each).get_parameter("weight") for each in shared]
                hook = partial(_hook, add, weights)
                hooks.enter_context(layer.get_submodule(hooked).register_forward_pre_hook(hook))
        yield model.hidden_states


def _hook(add: _Add, weights: list[Tensor], _: nn.Module, inputs: tuple[Any, ...]) -> None:
    add(weights, inputs[0])


@contextmanager
def _kernel_pass(model: LanguageModel, kernels: Kernels, add: _Add) -> Iterator[_Run]:
    """The same by the training kernels."""
    fused = Fused(model, kernels, recompute="layer", keep_packed=False)
    yield partial(fused.observed_hidden_states, observe=add)


def _sum_of_squares(x: Tensor) -> Tensor:
    return x.float().square().flatten(0, -2).sum(0, dtype=torch.float64)
