"""The proof that ends an export: each file against the checkpoint, in token ids, logits and perplexity.

A file that fails a gate is not published. Every file must give the checkpoint's token ids, as a server sends them, and
finite logits. An unquantized file must also give its logits and perplexity within ``TOLERANCES``. What quantization
costs is measured and reported, but no gate: perplexity, and the mean Kullback-Leibler divergence of the file's
predictions from the checkpoint's.

Shape suffixes: N positions, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from slm.evaluate.perplexity import Score, Scorer, Window, chunked_plan, nll_of, reduce, relative_change
from slm.evaluate.scorers import GGUFScorer, TorchScorer
from slm.llama.adapter_file import adapter_header
from slm.llama.model import Model
from slm.machine.crash_guard import doing
from slm.vocabulary.same_ids import plain_strings, token_failures

T = TypeVar("T")

ADAPTER_TYPE = "lora"
"""The type of an adapter's file in the records of exports."""
TEXT_PIECE, TEXT_PIECES = 2_000, 100
"""The ids of pieces of the run's own text are compared: characters per piece, and most pieces."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far an unquantized file may be from the checkpoint."""

    logits: float
    """Largest difference of a logit, as a part of the checkpoint's root-mean-square logit (at least 1)."""
    kl: float
    """Mean Kullback-Leibler divergence, nats."""
    perplexity: float
    """Relative difference of perplexity."""


TOLERANCES = {
    "f32": Tolerance(logits=1e-3, kl=1e-6, perplexity=1e-4),
    "f16": Tolerance(logits=5e-2, kl=2e-4, perplexity=5e-3),
    "bf16": Tolerance(logits=2.5e-1, kl=4e-3, perplexity=2e-2),
}
"""As docs/formats.md states them. The worst shape of tests/export/test_pipeline.py has 3.3e-2, 4.5e-5 and 3.2e-3 in
f16, and 1.8e-1, 2.2e-3 and 1.2e-2 in bf16. Random weights make these shapes more sensitive than trained ones."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One file next to the checkpoint."""

    file: str
    type: str
    size_mb: float
    """File length, 10^6 bytes."""
    bits_per_weight: float
    perplexity: float
    stderr: float
    perplexity_change: float
    """Relative to the checkpoint's, over all predictions of the windows."""
    perplexity_change_stderr: float
    """One standard error of that, from the tokens' differences."""
    tokens: int
    """Tokens the perplexity was measured on."""
    predictions: int
    """Tokens that its change was measured on: those of the windows' first halves, too."""
    kl: float
    """Mean Kullback-Leibler divergence from the checkpoint, nats per position."""
    max_abs: float
    """Largest difference of a logit."""
    same_top: float
    """Part of positions where the likeliest token is the same."""
    strings: int
    """Number of strings with compared token ids."""
    failures: list[str]
    """Gates that failed; empty for a good file."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Proof:
    """The checkpoint's side of every comparison, computed once."""

    def __init__(
        self,
        checkpoint: TorchScorer,
        encode: Callable[[str], list[int]],
        text: str,
        *,
        n_ctx: int,
        chunks: int,
        kl_tokens: int,
        nfc: bool = False,
        unlike: Sequence[str] = (),
        n_threads: int | None = None,
        more: Callable[[Model], list[str]] = lambda llama: [],
    ) -> None:
        """``encode``: the checkpoint's ids of a text, with what its tokenizer writes around it. ``nfc``: compare token
        ids on NFC text only (the tokenizer normalizes, llama.cpp does not). ``unlike``: tokens that llama.cpp reads
        otherwise in a plain text; strings that spell one are left out. ``more``: further checks of a file, as messages
        about what failed."""
        self.more = more
        self.checkpoint, self.n_threads = checkpoint, n_threads
        pieces = [text[start : start + TEXT_PIECE] for start in range(0, len(text), TEXT_PIECE)][:TEXT_PIECES]
        self.strings = plain_strings(pieces, nfc=nfc, unlike=unlike)
        self.ids = [encode(each) for each in self.strings]
        ids = checkpoint.tokenize(text[: 8 * n_ctx * chunks * 4])
        n_ctx = min(n_ctx, checkpoint.max_context, max((len(ids) + (checkpoint.bos is not None)) // 2, 4))
        self.stream, plan = chunked_plan(checkpoint, ids, n_ctx)
        plan = plan[:: max(1, len(plan) // chunks)][:chunks]  # from all over the text: one passage may be an easy one
        self.n_ctx = n_ctx
        self.windows = [replace(each, first=0, last=each.stop - each.start - 1) for each in plan]
        """All predictions of them are compared. The perplexity is llama.cpp's, of their second halves."""
        self._n_each, self._late = self.windows[0].last, plan[0].first
        whole = self.windows[: max(1, kl_tokens // n_ctx)]
        self.whole = [replace(window, first=0, last=window.stop - window.start) for window in whole]
        """The first windows. All positions of them are compared."""
        self.nll_N, self.logits = self._run(checkpoint, self.windows, list)
        """f64 [N] of all windows' targets, and f32 [N, V] per window of ``whole``."""
        self.score = self._score(self.nll_N)

    def _score(self, nll_N: np.ndarray) -> Score:
        """llama.cpp's perplexity of some windows."""
        return reduce(nll_N.reshape(-1, self._n_each)[:, self._late :].ravel())

    def _run(
        self, scorer: Scorer, windows: Sequence[Window], receive: Callable[[Iterator[np.ndarray]], T]
    ) -> tuple[np.ndarray, T]:
        """f64 [N] negative log-likelihoods over ``windows``, and what ``receive`` makes of the first ones' logits."""
        found = []

        def first() -> Iterator[np.ndarray]:
            whole = scorer.logits(self.whole[: len(windows)], self.stream)
            for (_, logits_NV), window in zip(whole, windows, strict=False):
                found.append(nll_of(logits_NV[window.first : window.last], window.targets(self.stream)))
                yield logits_NV

        received = receive(first())
        if rest := windows[len(found) :]:
            found.append(scorer.nll(rest, self.stream))
        return np.concatenate(found), received

    def compare(
        self, path: Path, file_type: str, *, adapter: Path | None = None, chunks: int | None = None
    ) -> Comparison:
        """Run the GGUF at ``path``, with an ``adapter`` on it where one is given, and compare it with the checkpoint.

        With an adapter the record is about the adapter's file. ``chunks``: the most chunks for the perplexity.
        """
        windows = self.windows[:chunks]
        reference_N = self.nll_N[: len(windows) * self._n_each]
        # A quantized file's figures come from a server, which computes them in less time.
        exact = file_type in TOLERANCES
        with GGUFScorer(path, context=self.n_ctx, n_threads=self.n_threads, exact=exact, adapter=adapter) as scorer:
            doing(f"comparing {(adapter or path).name} with its checkpoint")
            failures = token_failures(scorer.llama, self.strings, self.ids) + self.more(scorer.llama)
            if scorer.bos != self.checkpoint.bos:
                failures.append(
                    f"the file adds the token {scorer.bos} before a text, the checkpoint {self.checkpoint.bos}"
                )
            nll_N, difference = self._run(scorer, windows, lambda logits: compare_logits(self.logits[:chunks], logits))
            header = scorer.llama.header if adapter is None else adapter_header(adapter)
        score = self._score(nll_N)
        change, change_stderr = relative_change(nll_N, reference_N)
        if not np.isfinite(nll_N).all() or not difference.finite:
            failures.append("its logits are not finite")
        elif file_type in TOLERANCES:
            failures += logit_failures(difference, change, self._tolerance(file_type))
        return Comparison(
            file=(adapter or path).name,
            type=file_type if adapter is None else ADAPTER_TYPE,
            size_mb=header.size_bytes / 1e6,
            bits_per_weight=header.bits_per_weight,
            perplexity=score.perplexity,
            stderr=score.stderr,
            perplexity_change=change,
            perplexity_change_stderr=change_stderr,
            tokens=score.tokens,
            predictions=len(nll_N),
            kl=difference.kl,
            max_abs=difference.max_abs,
            same_top=difference.same_top,
            strings=len(self.strings),
            failures=failures,
        )

    def _tolerance(self, file_type: str) -> Tolerance:
        """ggml looks GELU up in a table of f16, so a model with it is computed with f16's precision in f32, too."""
        table = self.checkpoint.model.config.traits.activation == "gelu_tanh"
        return TOLERANCES["f16" if table and file_type == "f32" else file_type]


@dataclass(frozen=True, kw_only=True)
class LogitDifference:
    """Two engines' predictions over the same positions."""

    max_abs: float
    rms: float
    """Root-mean-square of the reference logits."""
    kl: float
    """Mean KL(reference || other), nats."""
    same_top: float
    finite: bool


def compare_logits(
    reference: Iterable[np.ndarray], other: Iterable[np.ndarray], values: int = 2_000_000
) -> LogitDifference:
    """Compare f32 [N, V] logits window by window, rows of this many ``values`` at a time, in f64 on torch's threads."""
    max_abs = square = kl = same = 0.0
    n_positions = n_values = 0
    finite = True
    for all_NV, other_all_NV in zip(reference, other, strict=True):
        assert all_NV.shape == other_all_NV.shape
        rows = max(1, values // all_NV.shape[1])
        for start in range(0, len(all_NV), rows):
            a_NV = torch.from_numpy(all_NV[start : start + rows].astype(np.float64))
            b_NV = torch.from_numpy(other_all_NV[start : start + rows].astype(np.float64))
            finite = finite and bool(b_NV.isfinite().all())
            square += float(a_NV.square().sum())
            n_values += a_NV.numel()
            n_positions += len(a_NV)
            (top_a_N, at_a_N), (top_b_N, at_b_N) = a_NV.max(1), b_NV.max(1)
            same += int((at_a_N == at_b_N).sum())
            sum_b_N = (b_NV - top_b_N[:, None]).exp_().sum(1)
            difference_NV = b_NV.neg_().add_(a_NV)
            max_abs = max(max_abs, float(difference_NV.abs().max()))
            # With p the first one's probabilities: the sum of p (a - b), and what both are divided by.
            part_NV = a_NV.sub_(top_a_N[:, None]).exp_()
            sum_a_N = part_NV.sum(1)
            kl_N = part_NV.mul_(difference_NV).sum(1) / sum_a_N
            kl += float((kl_N + (top_b_N + sum_b_N.log()) - (top_a_N + sum_a_N.log())).sum())
    return LogitDifference(
        max_abs=max_abs,
        rms=float(np.sqrt(square / n_values)),
        kl=max(kl / n_positions, 0.0),
        same_top=same / n_positions,
        finite=finite,
    )


def logit_failures(difference: LogitDifference, perplexity_change: float, tolerance: Tolerance) -> list[str]:
    """A message for each tolerance that is exceeded."""
    failures = []
    allowed = tolerance.logits * max(1.0, difference.rms)
    if difference.max_abs > allowed:
        failures.append(f"a logit differs by {difference.max_abs:.3g} (at most {allowed:.3g})")
    if difference.kl > tolerance.kl:
        failures.append(f"the mean KL divergence is {difference.kl:.3g} nats (at most {tolerance.kl:g})")
    if not abs(perplexity_change) <= tolerance.perplexity:
        failures.append(f"the perplexity differs by {perplexity_change:+.3%} (at most {tolerance.perplexity:.2%})")
    return failures
