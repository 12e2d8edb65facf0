"""Training on the values that a quantized file will hold, with straight-through gradients.

The master weights are what the optimizer updates. After each update they are quantized as llama.cpp does it, and the
model's parameters are the values that the blocks stand for until the next update: forward and backward pass of every
backend see these and know nothing of it. Their gradient is applied to the masters as it is (Bengio, Léonard and
Courville 2013). Rounding is weighted by the inputs that a column meets, as export does it with an importance matrix.

Shape suffixes: O output rows, D input columns, C bytes of a row's blocks.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from slm.model.quantized import QuantizedWeights
from slm.model.transformer import LanguageModel

FILE_TYPES = {"q4_k": "q4_k_m", "q3_k": "q3_k_m"}
"""``train.qat`` -> the type of file, where they differ."""
TURNS = {"iq4_nl": 32, "q4_k": 16, "q5_k": 16, "q6_k": 8, "q3_k": 4, "q4_0": 4}
"""Types for whose scales llama.cpp searches long: each step quantizes one of so many parts of a matrix anew. The rows
of the other parts keep their blocks."""
UNQUANTIZED = ".unquantized"
"""In a checkpoint's optimizer state: the weight of which ``model.safetensors`` holds the quantized values."""
BLOCKS = ".blocks."
"""There, too: the blocks that training goes on with; the type follows."""
IMPORTANCE = ".importance"
"""There, too: by what a matrix's rounding is weighted. Missing in older checkpoints, which go on without."""
UNWEIGHTED = ("q8_0", "tq2_0")
"""Types whose rounding nothing is weighted in."""


@dataclass(frozen=True, kw_only=True)
class _Quantized:
    """One quantized matrix. All three tensors keep their memory; one of the first two is the parameter's data."""

    kind: str
    master: Tensor
    rounded: Tensor
    blocks: Tensor
    importance: Tensor | None
    """f32 [D]: the mean square of what arrives at each column."""

    def values_of_blocks(self) -> None:
        """Make the rounded values those of the blocks."""
        from slm.llama.blocks import codec

        values_OD = codec.dequantize(self.kind, self.blocks.numpy(), self.master.shape[1])
        self.rounded.copy_(torch.from_numpy(values_OD))


class FakeQuant:
    """The quantization of one model's weights during training. It begins off.

    ``kind``: ``train.qat``; None: it stays off. ``share``: the last part of the run, in which it is on. It costs 4
    bytes a weight and the size of the blocks.
    """

    def __init__(self, model: LanguageModel, kind: str | None = None, share: float = 0.0, n_threads: int = 1) -> None:
        self.file_type = None if kind is None else FILE_TYPES.get(kind, kind)
        self._model, self._share, self._n_threads = model, share, n_threads
        self._parameters = dict(model.named_parameters())
        self._matrices: dict[str, _Quantized] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._found: dict[str, Tensor] = {}

    @property
    def on(self) -> bool:
        """Whether the model computes with quantized weights."""
        return bool(self._matrices)

    @property
    def weighted(self) -> bool:
        """Whether rounding to the type can be weighted by the columns' inputs."""
        return self.file_type is not None and self.file_type not in UNWEIGHTED

    @property
    def types(self) -> dict[str, str]:
        """Parameter name -> ggml type of what is quantized."""
        return {name: each.kind for name, each in self._matrices.items()}

    def due(self, fraction_done: float) -> bool:
        """Whether it is to begin."""
        return self.file_type is not None and not self.on and fraction_done >= 1 - self._share

    @torch.no_grad()
    def begin(self, importance: Mapping[str, Tensor] | None = None) -> None:
        """Quantize all weights; the parameters are the quantized ones from here on.

        ``importance``: by parameter, f32 [D], what the square of an error counts in each column.
        """
        from slm.llama.blocks import codec
        from slm.llama.blocks.tensor_types import tensor_types

        assert self.file_type is not None
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        types = tensor_types(self._model.config, shapes, self.file_type)
        self._pool = self._pool or ThreadPoolExecutor(self._n_threads)
        for name, kind in types.items():
            if kind == "f32":
                continue
            master_OD = self._parameters[name].data
            blocks_OC = torch.empty(len(master_OD), codec.row_bytes(kind, master_OD.shape[1]), dtype=torch.uint8)
            self._matrices[name] = _Quantized(
                kind=kind,
                master=master_OD,
                rounded=torch.empty_like(master_OD),
                blocks=blocks_OC,
                importance=self._found.get(name + IMPORTANCE) if importance is None else importance.get(name),
            )
        kept = {name for name in self._matrices if self._restore_blocks(name)}
        self._quantize([(each, slice(None)) for name, each in self._matrices.items() if name not in kept])
        self._found = {}
        self._show_rounded()

    def end(self) -> None:
        """The parameters are the masters again, for good."""
        self.show_masters()
        self._matrices = {}

    # Around an update.

    def show_masters(self) -> None:
        """The parameters are the master weights: before an update."""
        for name, each in self._matrices.items():
            self._parameters[name].data = each.master

    def after_update(self, step: int) -> None:
        """Quantize the updated master weights, which are in place. ``step`` decides whose turn it is."""
        if not self.on:
            return
        work = []
        for each in self._matrices.values():
            turns, n_rows = TURNS.get(each.kind, 1), len(each.master)
            turn = step % turns
            work.append((each, slice(n_rows * turn // turns, n_rows * (turn + 1) // turns)))
        self._quantize(work)
        self._show_rounded()

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Within it the parameters are the master weights. They must not change."""
        self.show_masters()
        try:
            yield
        finally:
            self._show_rounded()

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Within it the parameters are their own quantized values: for an average of the masters that is in place."""
        before = {name: self._parameters[name].data for name in self._matrices}
        for name, tensor in before.items():
            self._parameters[name].data = self._round(name, tensor)[0]
        try:
            yield
        finally:
            for name, tensor in before.items():
                self._parameters[name].data = tensor

    # Checkpoints.

    def checkpoint(
        self, weights: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], QuantizedWeights | None]:
        """What a checkpoint holds of unquantized ``weights``, which are the masters or their average.

        The model's tensors, what is to be added to the optimizer's, and the blocks of the former; None where it is off.
        """
        if self.file_type is None or not self.on:
            return weights, {}, None
        saved = dict(weights)
        more: dict[str, Tensor] = {}
        blocks: dict[str, Tensor] = {}
        for name, each in self._matrices.items():
            unquantized = weights[name]
            if unquantized.data_ptr() == each.master.data_ptr():
                saved[name], blocks[name] = each.rounded, each.blocks
            else:
                saved[name], blocks[name] = self._round(name, unquantized)
            more[name + UNQUANTIZED] = unquantized
            more[f"{name}{BLOCKS}{each.kind}"] = each.blocks
            if each.importance is not None:
                more[name + IMPORTANCE] = each.importance
        return saved, more, QuantizedWeights(file_type=self.file_type, types=self.types, blocks=blocks)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """The model holds a checkpoint's ``model.safetensors``, ``tensors`` is its optimizer state.

        Afterwards the model holds what it would without quantization. ``resume`` follows when the masters are in place.
        """
        assert not self.on
        self._found = {name: tensor for name, tensor in tensors.items() if is_state(name)}
        for name, parameter in self._parameters.items():
            if (key := name + UNQUANTIZED) in tensors:
                parameter.copy_(tensors[key])

    def resume(self) -> None:
        """Begin again where the loaded checkpoint was quantized, with its blocks where the types are the same."""
        if self._found and self.file_type is not None:
            self.begin()

    def tensors(self) -> list[Tensor]:
        """The blocks, of which rank 0's hold for all."""
        return [each.blocks for each in self._matrices.values()]

    def resynced(self) -> None:
        """The blocks were overwritten: the parameters' quantized values are theirs."""
        for each in self._matrices.values():
            each.values_of_blocks()

    def _restore_blocks(self, name: str) -> bool:
        each = self._matrices[name]
        found = self._found.get(f"{name}{BLOCKS}{each.kind}")
        if found is None or found.shape != each.blocks.shape:
            return False
        each.blocks.copy_(found)
        each.values_of_blocks()
        return True

    def _show_rounded(self) -> None:
        for name, each in self._matrices.items():
            self._parameters[name].data = each.rounded

    def _round(self, name: str, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """The quantized values of another tensor of this parameter's shape, and their blocks."""
        each = self._matrices[name]
        own = _Quantized(
            kind=each.kind,
            master=tensor,
            rounded=torch.empty_like(tensor),
            blocks=torch.empty_like(each.blocks),
            importance=each.importance,
        )
        self._quantize([(own, slice(None))])
        return own.rounded, own.blocks

    def _quantize(self, work: list[tuple[_Quantized, slice]]) -> None:
        from slm.llama.blocks import codec

        if not work:
            return
        assert self._pool is not None
        matrices = [
            codec.Matrix(
                kind=each.kind,
                weights=each.master.detach().numpy(),
                blocks=each.blocks.numpy(),
                rounded=each.rounded.numpy(),
                rows=rows,
                importance=None if each.importance is None else each.importance.numpy(),
            )
            for each, rows in work
        ]
        codec.quantize(matrices, self._pool)


def is_state(name: str) -> bool:
    """Whether a tensor of a checkpoint's optimizer state is the quantization's."""
    return name.endswith((UNQUANTIZED, IMPORTANCE)) or BLOCKS in name
