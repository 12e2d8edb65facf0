"""The two engines that score windows: a checkpoint in torch and a GGUF file in llama.cpp.

Shape suffixes: B windows, T positions, D model width, V vocabulary, N scored tokens.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slm.data.errors import UserError
from slm.evaluate.perplexity import Progress, Window, nll_of
from slm.machine.crash_guard import doing
from slm.machine.hardware import compute_threads

if TYPE_CHECKING:
    import torch

    from slm.kernels.fused import Fused
    from slm.kernels.native import Kernels
    from slm.llama.context import Batch, Context
    from slm.model.transformer import LanguageModel

BATCH_TOKENS = 2_048
"""Most tokens that go through a model at once (llama-perplexity's default). More need more memory and are no faster."""
WORTH_KERNELS = 5e11
"""Least FLOP of a pass that uses the kernels: about 5 s of PyTorch on two cores with AVX2."""


class TorchScorer:
    """Scores a checkpoint, f32, in this process."""

    engine = "torch"

    def __init__(
        self,
        model: "LanguageModel",
        tokenize: Callable[[str], list[int]],
        *,
        name: str,
        bos: int | None,
        document_start: int | None,
        document_end: int | None = None,
        logits_budget: int = 16_000_000,
    ) -> None:
        """``logits_budget``: most logits held at once (4 bytes each)."""
        self.model, self._tokenize, self.name = model, tokenize, name
        self.bos, self.document_start, self.document_end = bos, document_start, document_end
        self.max_context = model.config.seq_len
        self.logits_budget = logits_budget
        self.fused: Fused | None = None
        """The training kernels in f32, where ``logits`` and ``nll`` compute with them."""

    def of(self, model: "LanguageModel") -> "TorchScorer":
        """The same scorer of another model with this vocabulary."""
        found = copy.copy(self)
        found.model = model.eval()
        if self.fused is not None:
            found.use(self.fused.kernels)
        return found

    def use(self, kernels: "Kernels") -> None:
        """Compute ``logits`` and ``nll`` with these kernels, in f32, instead of PyTorch. They must be usable."""
        from slm.kernels.fused import Fused

        self.fused = Fused(self.model, kernels, recompute="layer", keep_packed=False)

    def tokenize(self, text: str) -> np.ndarray:
        return np.array(self._tokenize(text), np.int32)

    def logits(self, windows: Sequence[Window], stream: np.ndarray) -> Iterator[tuple[Window, np.ndarray]]:
        import torch
        import torch.nn.functional as F

        head_VD = self.model.head_weight_VD
        for window in windows:
            with torch.inference_mode():  # not while the caller has its turn
                x_TD = self._hidden([window], stream)[0]
                logits = self.model.capped(F.linear(x_TD[window.first : window.last], head_VD))
            yield window, logits.float().numpy()

    def ragged_logits(self, windows: Sequence[Window], stream: np.ndarray) -> Iterator[tuple[Window, np.ndarray]]:
        """``logits`` of windows of any lengths, several at a time: shorter ones are padded at their end, which no
        position before sees. Fastest where the windows are sorted by length."""
        import torch
        import torch.nn.functional as F

        head_VD = self.model.head_weight_VD
        for group in _ragged_groups(windows, most_tokens=BATCH_TOKENS):
            ids_BT = np.zeros((len(group), max(map(_length, group))), np.int64)
            for row_T, window in zip(ids_BT, group, strict=True):
                row_T[: _length(window)] = window.inputs(stream)
            with torch.inference_mode():
                # A cache keeps these shapes from layers that training compiles for one shape.
                x_BTD = self.model.hidden_states(torch.from_numpy(ids_BT), self.model.new_cache())
            for row, window in enumerate(group):
                with torch.inference_mode():  # not while the caller has its turn
                    logits = self.model.capped(F.linear(x_BTD[row, window.first : window.last], head_VD))
                yield window, logits.float().numpy()

    def nll(self, windows: Sequence[Window], stream: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Negative log-likelihoods of the windows' targets; by the kernels in f32 where there is enough to score."""
        import torch

        from slm.model.cross_entropy import IGNORED

        if self.fused is None and (kernels := quick_kernels(self.model, sum(map(_length, windows)))):
            self.use(kernels)
        found = []
        with torch.inference_mode():
            for group in _groups(windows, most_tokens=BATCH_TOKENS):
                targets_BN = torch.from_numpy(np.stack([window.targets(stream) for window in group]).astype(np.int64))
                first, last = group[0].first, group[0].last
                if self.fused is None:
                    found += self._nll(self._hidden(group, stream)[:, first:last], targets_BN)
                else:
                    ids_BT = _inputs(group, stream)
                    targets_BT = torch.full_like(ids_BT, IGNORED)
                    targets_BT[:, first:last] = targets_BN
                    found.append(self.fused.losses(ids_BT, targets_BT)[:, first:last].flatten())
                if progress:
                    progress(sum(map(_length, group)))
            return torch.cat(found).double().numpy()

    def _nll(self, x_BND: "torch.Tensor", targets_BN: "torch.Tensor") -> "list[torch.Tensor]":
        """The losses of normed hidden states by PyTorch, some logits at a time."""
        import torch.nn.functional as F

        rows = max(1, self.logits_budget // self.model.config.vocab_size)
        parts = zip(x_BND.flatten(0, 1).split(rows), targets_BN.flatten().split(rows), strict=True)
        head_VD = self.model.head_weight_VD
        return [
            F.cross_entropy(self.model.capped(F.linear(x_RD, head_VD).float()), targets_R, reduction="none")
            for x_RD, targets_R in parts
        ]

    def _hidden(self, group: Sequence[Window], stream: np.ndarray) -> "torch.Tensor":
        ids_BT = _inputs(group, stream)
        if self.fused is None:
            return self.model.hidden_states(ids_BT)
        return self.fused.hidden_states(ids_BT).view(*ids_BT.shape, -1)  # the next pass writes over it


def quick_kernels(model: "LanguageModel", n_tokens: int) -> "Kernels | None":
    """The f32 training kernels, where they can run the model and the pass is long enough to make loading (and perhaps
    building) them worth it."""
    if 2 * model.config.n_params * n_tokens < WORTH_KERNELS:
        return None
    from slm.kernels.choice import open_kernels
    from slm.kernels.fused import usable

    kernels, _ = open_kernels("auto", "f32", bits=32)
    return usable(model, kernels)


def checkpoint_scorer(checkpoint: Path, threads: int | None = None) -> TorchScorer:
    """A scorer of a checkpoint directory, f32."""
    import torch

    from slm.data.tokenizers.make import load_tokenizer
    from slm.model.checkpoint import load_model
    from slm.model.special_tokens import read_special_tokens

    torch.set_num_threads(threads or compute_threads())
    model = load_model(checkpoint)
    tokens = read_special_tokens(checkpoint, model.config.vocab_size)
    return TorchScorer(
        model,
        load_tokenizer(checkpoint).encode,
        name=checkpoint.name,
        bos=tokens.bos_added,
        document_start=tokens.document_start,
        document_end=tokens.ids.get("eos"),
    )


class GGUFScorer:
    """Scores a GGUF with llama.cpp. Close it (or use ``with``) before opening many.

    Windows are run several at a time, laid out as llama-perplexity lays them out, so that figures agree with its own
    to about 1e-7: sums in f32 depend on what else is in the batch.
    """

    engine = "llama.cpp"
    logits_budget = 32 * 2**20
    """Most logits of one batch (4 bytes each); fewer windows go together where the vocabulary is large."""

    def __init__(
        self,
        path: Path,
        *,
        context: int,
        n_threads: int | None = None,
        exact: bool = False,
        adapter: Path | None = None,
    ) -> None:
        """``context``: the longest window that will be asked for. ``exact`` keeps keys and values in f32 and leaves
        flash attention out, for the closest comparison; the default is what llama.cpp's own tools and servers do.
        ``adapter``: a LoRA adapter's file, with which the model is scored."""
        from slm.llama.adapter import Adapter
        from slm.llama.errors import LlamaError
        from slm.llama.model import Model

        self.path, self.name, self.exact, self.n_threads = path, path.name, exact, n_threads
        doing(f"loading {path.name}")
        try:
            self.llama = Model(path)
        except LlamaError as error:
            raise UserError(str(error)) from error
        self._adapter = Adapter(self.llama, adapter) if adapter is not None else None
        self.max_context = min(context, self.llama.n_ctx_train)
        self.bos = self.llama.bos if self.llama.add_bos and self.llama.bos >= 0 else None
        self.document_start = next((token for token in (self.llama.bos, self.llama.eos) if token >= 0), None)
        self.document_end = self.llama.eos if self.llama.eos >= 0 else None
        self._context: Context | None = None
        self._length = 0

    def tokenize(self, text: str) -> np.ndarray:
        return np.array(self.llama.tokenize(text, add_special=False, parse_special=False), np.int32)

    def logits(self, windows: Sequence[Window], stream: np.ndarray) -> Iterator[tuple[Window, np.ndarray]]:
        if not windows:
            return
        context, batch = self._context_for(max(window.stop - window.start for window in windows))
        for group in _groups(windows, most_windows=context.n_seq_max):
            yield from self._decoded(context, batch, group, stream)

    def ragged_logits(self, windows: Sequence[Window], stream: np.ndarray) -> Iterator[tuple[Window, np.ndarray]]:
        """``logits`` of windows of any lengths, several at a time. Fastest where the windows are sorted by length."""
        left = list(windows)
        while left:
            # One context for all windows up to a power of two: making one takes as long as a few batches.
            length = min(self.max_context, max(64, 1 << (_length(left[0]) - 1).bit_length()))
            here = next((i for i, each in enumerate(left) if _length(each) > length), len(left))
            context, batch = self._context_for(length)
            for group in _ragged_groups(left[:here], most_windows=context.n_seq_max):
                yield from self._decoded(context, batch, group, stream)
            left = left[here:]

    def _decoded(
        self, context: "Context", batch: "Batch", group: Sequence[Window], stream: np.ndarray
    ) -> Iterator[tuple[Window, np.ndarray]]:
        """The logits of windows that go through the model together, each its own sequence."""
        context.clear()
        batch.clear()
        for sequence, window in enumerate(group):
            for position, token in enumerate(window.inputs(stream).tolist()):
                batch.add(token, position, sequence, window.first <= position < window.last)
        context.decode(batch)
        start = 0
        for window in group:
            logits_NV = np.empty((window.last - window.first, self.llama.n_vocab), np.float32)
            for row, position in enumerate(range(window.first, window.last)):
                logits_NV[row] = context.logits(start + position)
            yield window, logits_NV
            start += _length(window)

    def nll(self, windows: Sequence[Window], stream: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        found = []
        for window, logits_NV in self.logits(windows, stream):
            found.append(nll_of(logits_NV, window.targets(stream)))
            if progress:
                progress(window.stop - window.start)
        return np.concatenate(found)

    def _context_for(self, length: int) -> "tuple[Context, Batch]":
        """A context for windows of ``length``, as many at once as a batch holds, each with its own cells."""
        from slm.llama.context import Batch, Context

        # A vocabulary of 150,000 would need over a gigabyte for the logits of a whole batch.
        tokens = min(BATCH_TOKENS, self.logits_budget // self.llama.n_vocab)
        n_windows = min(max(1, tokens // length), 64)
        if self._context is None or self._length != length:
            if self._context is not None:
                self._context.close()
            self._length = length
            self._context = Context(
                self.llama,
                n_ctx=n_windows * length,
                n_batch=n_windows * length,
                n_seq_max=n_windows,
                n_threads=self.n_threads,
                kv_unified=False,
                flash_attn=False if self.exact else None,
                kv_type="f32" if self.exact else "f16",
                adapter=self._adapter,
            )
        return self._context, Batch(n_windows * length, n_windows)

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
        self.llama.close()

    def __enter__(self) -> "GGUFScorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _groups(
    windows: Sequence[Window], *, most_windows: int | None = None, most_tokens: int | None = None
) -> Iterator[list[Window]]:
    """Runs of successive windows of one shape, so that they go through the model together."""
    group: list[Window] = []
    for window in windows:
        if group:
            length = group[0].stop - group[0].start
            full = len(group) == most_windows or (most_tokens and (len(group) + 1) * length > most_tokens)
            if full or _shape(window) != _shape(group[0]):
                yield group
                group = []
        group.append(window)
    if group:
        yield group


def _ragged_groups(
    windows: Sequence[Window], *, most_windows: int | None = None, most_tokens: int | None = None
) -> Iterator[list[Window]]:
    """Successive windows of any shapes, with as many tokens at most as they would have padded to the longest."""
    group: list[Window] = []
    longest = 0
    for window in windows:
        longest = max(longest, _length(window))
        if group and (len(group) == most_windows or (most_tokens and (len(group) + 1) * longest > most_tokens)):
            yield group
            group, longest = [], _length(window)
        group.append(window)
    if group:
        yield group


def _inputs(group: Sequence[Window], stream: np.ndarray) -> "torch.Tensor":
    """int64 [B, T]: the input tokens of windows of one length."""
    import torch

    return torch.from_numpy(np.stack([window.inputs(stream) for window in group]).astype(np.int64))


def _length(window: Window) -> int:
    return window.stop - window.start


def _shape(window: Window) -> tuple[int, int, int]:
    return _length(window), window.first, window.last
