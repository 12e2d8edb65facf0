"""Training on the values that a quantized file will hold, with straight-through gradients.

The master weights are what the optimizer updates. After each update they are quantized as llama.cpp does it, and the
model's parameters are the values that the blocks stand for until the next update: forward and backward pass of every
backend see these and know nothing of it. Their gradient is applied to the masters as it is (Bengio, Léonard and
Courville 2013). Rounding is weighted by the inputs that a column meets, as export does it with an importance matrix,
and makes up for its errors, as export's ``rounding=gptq`` does.

Shape suffixes: O output rows, D input columns, C bytes of a row's blocks.
"""

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor

from slm.llama.blocks.grids import KINDS
from slm.llama.gguf_check import GGML_TYPES
from slm.model.quantized import QuantizedWeights
from slm.model.transformer import LanguageModel
from slm.train.qat.matrix import TURNS, Quantized, compensate

FILE_TYPES = {"q4_k": "q4_k_m", "q3_k": "q3_k_m"}
"""``train.qat`` -> the type of file, where they differ."""
ROUNDS = 12
"""Roundings with compensation of each matrix until the end of the run."""
SOME_TURNS = 16
"""Steps between two roundings of a matrix where the run's length in steps is not known."""
LEAST = 1e-4
"""Least weight of a column, as a share of the mean over a matrix's columns, so that no block has weight zero."""
UNQUANTIZED = ".unquantized"
"""Suffix in a checkpoint's optimizer state: the unquantized weight. ``model.safetensors`` holds its quantized
values."""
BLOCKS = ".blocks."
"""Suffix of the quantized blocks with which training resumes; the block type's name follows."""
IMPORTANCE = ".importance"
"""Suffix of the weights of a matrix's rounding errors by column. Absent where rounding is unweighted."""
COMPENSATION = ".compensation"
"""Suffix of int64 [2]: which of the tensors below a matrix has, and the steps between two of its roundings. Absent
where rounding does not compensate for errors."""
FACTOR, ORDER = ".factor", ".order"
"""There, too, by number, each for all matrices that share it: ``factor`` and ``order`` of a ``Compensation``."""
ROUNDED_ONCE = ("q4_0", "iq4_nl", "q4_k")
"""Types of ``train.qat`` with weights that may be rounded at the end of a run without training on rounded ones."""
UNWEIGHTED = ("q8_0", "tq2_0")
"""Types that are rounded without weights."""


class FakeQuant:
    """The quantization of one model's weights during training. It begins off.

    ``kind``: ``train.qat``; None: it stays off. ``share``: the last part of the run, in which it is on.
    ``compensated``: whether rounding makes up for its errors, where moments are given and the type's blocks can be
    chosen. ``least_steps``: with fewer of the run's steps left, four bits wait for its end. It costs 4 bytes a weight,
    the size of the blocks and, compensated, 4 bytes times the square of each input's width.
    """

    def __init__(
        self,
        model: LanguageModel,
        kind: str | None = None,
        share: float = 0.0,
        n_threads: int = 1,
        *,
        compensated: bool = True,
        least_steps: int = 0,
    ) -> None:
        self.file_type = None if kind is None else FILE_TYPES.get(kind, kind)
        self._may_round_once, self._least_steps = kind in ROUNDED_ONCE, least_steps
        self._model, self._share, self._n_threads, self._compensated = model, share, n_threads, compensated
        self._parameters = dict(model.named_parameters())
        self._matrices: dict[str, Quantized] = {}
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

    @property
    def rounds_once(self) -> bool:
        """Whether the weights may be rounded at the end of the run, without training on rounded ones."""
        return self._may_round_once and self._least_steps > 0 and not self.on

    def waits(self, steps_left: float | None) -> bool:
        """Whether so few steps are left that the weights are rounded once instead, at the end of the run."""
        return self._may_round_once and steps_left is not None and steps_left < self._least_steps

    @torch.no_grad()
    def begin(self, moments: Mapping[str, Tensor] | None = None, steps_left: float | None = None) -> None:
        """Quantize all weights; the parameters are the quantized ones from here on.

        ``moments``: by parameter, f32 [D, D], the mean products of its columns' inputs; the same tensor for matrices
        with the same input. ``steps_left``: of the run.
        """
        from slm.llama.blocks.compensated import Compensation, compensation

        moments = moments or {}
        turns = SOME_TURNS if steps_left is None else max(1, math.ceil(steps_left / ROUNDS))
        made: dict[tuple[int, int], Compensation] = {}
        self._prepare()
        for name, each in self._matrices.items():
            moments_DD = moments.get(name)
            if self.weighted:
                n_columns = each.master.shape[1]
                squares_D = torch.ones(n_columns) if moments_DD is None else moments_DD.diagonal().clone()
                each.importance = squares_D.clamp_(min=LEAST * float(squares_D.mean()))
            if self._compensated and self.weighted and moments_DD is not None and each.kind in KINDS:
                key = id(moments_DD), GGML_TYPES[each.kind][1]
                if key not in made:
                    made[key] = compensation(moments_DD, each.kind)
                each.compensation, each.turns, each.number = made[key], turns, list(made).index(key)
        self._quantize([(each, slice(None)) for each in self._matrices.values()])
        self._show_rounded()

    def _prepare(self) -> None:
        """The matrices that the type quantizes, with nothing in their blocks yet."""
        from slm.llama.blocks import codec
        from slm.llama.blocks.tensor_types import tensor_types

        assert self.file_type is not None
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        self._pool = self._pool or ThreadPoolExecutor(self._n_threads)
        for name, kind in tensor_types(self._model.config, shapes, self.file_type).items():
            if kind == "f32":
                continue
            master_OD = self._parameters[name].data
            blocks_OC = torch.empty(len(master_OD), codec.row_bytes(kind, master_OD.shape[1]), dtype=torch.uint8)
            self._matrices[name] = Quantized(
                kind=kind,
                master=master_OD,
                rounded=torch.empty_like(master_OD),
                blocks=blocks_OC,
                turns=TURNS.get(kind, 1),
            )

    @torch.no_grad()
    def trial_seconds(self) -> float:
        """About how long ``begin`` takes after its moments are measured: one matrix is rounded as it would be, and what
        comes out is thrown away."""
        from slm.llama.blocks import codec
        from slm.llama.blocks.compensated import compensation
        from slm.llama.blocks.tensor_types import tensor_types

        assert self.file_type is not None
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        kinds = {name: k for name, k in tensor_types(self._model.config, shapes, self.file_type).items() if k != "f32"}
        layers = [name for name in kinds if ".layers." in name]
        name = min(layers or kinds, key=lambda each: self._parameters[each].numel())
        master_OD, kind = self._parameters[name].detach(), kinds[name]
        self._pool = self._pool or ThreadPoolExecutor(self._n_threads)
        began = perf_counter()
        trial = Quantized(
            kind=kind,
            master=master_OD,
            rounded=torch.empty_like(master_OD),
            blocks=torch.empty(len(master_OD), codec.row_bytes(kind, master_OD.shape[1]), dtype=torch.uint8),
        )
        if self.weighted:
            trial.importance = torch.ones(master_OD.shape[1])
            if self._compensated and kind in KINDS:
                trial.compensation = compensation(torch.eye(master_OD.shape[1]), kind)
        self._quantize([(trial, slice(None))])
        weights = sum(self._parameters[each].numel() for each in kinds)
        return (perf_counter() - began) * weights / master_OD.numel()

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
        """Quantize the updated master weights, which are in place. ``step`` decides which of them."""
        if not self.on:
            return
        due = ((each, each.due(step)) for each in self._matrices.values())
        self._quantize([(each, rows) for each, rows in due if rows is not None])
        self._show_rounded()

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Within it the parameters are the master weights. They must not change."""
        self.show_masters()
        try:
            yield
        finally:
            self._show_rounded()

    # Checkpoints.

    def checkpoint(
        self, weights: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], QuantizedWeights | None]:
        """What a checkpoint holds of unquantized ``weights``, which are the masters.

        The model's tensors, what is to be added to the optimizer's, and the blocks of the former; None where it is off.
        """
        if self.file_type is None or not self.on:
            return weights, {}, None
        saved = dict(weights)
        more: dict[str, Tensor] = {}
        blocks: dict[str, Tensor] = {}
        for name, each in self._matrices.items():
            saved[name], blocks[name] = each.rounded, each.blocks
            more[name + UNQUANTIZED] = weights[name]
            more[f"{name}{BLOCKS}{each.kind}"] = each.blocks
            if each.importance is not None:
                more[name + IMPORTANCE] = each.importance
        more |= self._compensations()
        return saved, more, QuantizedWeights(file_type=self.file_type, types=self.types, blocks=blocks)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The model holds a checkpoint's ``model.safetensors``, ``tensors`` is its optimizer state.

        Afterwards the model holds what it would without quantization. ``resume`` follows when the masters are in place.
        """
        assert not self.on
        self._found = {name: tensor for name, tensor in tensors.items() if is_state(name)}
        for name, parameter in self._parameters.items():
            if (key := name + UNQUANTIZED) in tensors:
                parameter.copy_(tensors[key])

    @torch.no_grad()
    def resume(self) -> None:
        """Begin again where the loaded checkpoint was quantized, with its blocks where the types are the same."""
        if not self._found or self.file_type is None:
            return
        self._prepare()
        self._restore_compensations()
        for name, each in self._matrices.items():
            each.importance = self._found.get(name + IMPORTANCE)
        missing = [each for name, each in self._matrices.items() if not self._restore_blocks(name)]
        self._quantize([(each, slice(None)) for each in missing])
        self._found = {}
        self._show_rounded()

    def tensors(self) -> list[Tensor]:
        """The blocks, of which rank 0's hold for all."""
        return [each.blocks for each in self._matrices.values()]

    def resynced(self) -> None:
        """The blocks were overwritten: the parameters' quantized values are theirs."""
        for each in self._matrices.values():
            each.values_of_blocks()

    def _compensations(self) -> dict[str, Tensor]:
        """For a checkpoint: each compensation once, and which one a matrix has."""
        kept: dict[str, Tensor] = {}
        for name, each in self._matrices.items():
            if each.compensation is not None:
                kept[f"{each.number}{FACTOR}"] = each.compensation.factor
                kept[f"{each.number}{ORDER}"] = torch.from_numpy(each.compensation.order)
                kept[name + COMPENSATION] = torch.tensor([each.number, each.turns])
        return kept

    def _restore_compensations(self) -> None:
        from slm.llama.blocks.compensated import Compensation

        made: dict[int, Compensation] = {}
        for name, each in self._matrices.items():
            if (
                not self._compensated
                or each.kind not in KINDS
                or (found := self._found.get(name + COMPENSATION)) is None
            ):
                continue
            number, turns = found.tolist()
            width = GGML_TYPES[each.kind][1]
            if number not in made:
                order_D, factor_DD = self._found[f"{number}{ORDER}"].numpy(), self._found[f"{number}{FACTOR}"]
                made[number] = Compensation(width=width, order=order_D, factor=factor_DD)
            if made[number].width == width:
                each.compensation, each.turns, each.number = made[number], turns, number

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

    def _quantize(self, work: list[tuple[Quantized, slice]]) -> None:
        from slm.llama.blocks import codec

        compensate([each for each, _ in work if each.compensation is not None], self._n_threads)
        work = [(each, rows) for each, rows in work if each.compensation is None]
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
    return name.endswith((UNQUANTIZED, IMPORTANCE, COMPENSATION, FACTOR, ORDER)) or BLOCKS in name
