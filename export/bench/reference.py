"""The reference's predictions, kept on the disk, and the comparison of every file with them.

Shape suffixes: N positions, V vocabulary.

Tested in tests/export/bench/test_sweep.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from slm.data.errors import UserError
from slm.evaluate.config import LONGEST_DEFAULT_CONTEXT
from slm.evaluate.perplexity import bits_per_byte, nll_of, reduce, relative_change, sliding_plan
from slm.evaluate.progress import progress_bar
from slm.evaluate.scorers import GGUFScorer
from slm.evaluate.text import Text, shorten
from slm.export.bench.config import SweepConfig, Variant
from slm.export.proof import compare_logits
from slm.report import change_text, perplexity_text


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """One file's figures."""

    type: str
    imatrix: bool
    size_mib: float
    """File length, 2^20 bytes."""
    bits_per_weight: float
    perplexity: float
    """Per token, sliding window."""
    stderr: float
    perplexity_change: float
    """Relative to the reference's."""
    perplexity_change_stderr: float
    """One standard error of that, from the tokens' differences."""
    bits_per_byte: float
    kl: float
    """Mean Kullback-Leibler divergence from the reference, nats per position."""
    same_top: float
    """Part of positions where the likeliest token is the reference's."""
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    rounding: str = "nearest"
    rounding_kept: bool | None = None
    """For gptq: whether it measured better than llama.cpp's rounding, which the file has otherwise."""
    decode_bound_tok_s: float | None = None
    """What the memory allows: the measured rate of reading it over ``bytes_per_token``. A model that fits the
    processor's caches may be faster."""
    bytes_per_token: int | None = None
    """Bytes of weights that decoding a token reads; None where the file was not timed."""

    def summary(self, *, is_reference: bool) -> str:
        """The figures of quality in a few words."""
        size = f"{self.bits_per_weight:.2f} bits per weight, perplexity {perplexity_text(self.perplexity)}"
        return size + (
            " (the reference)"
            if is_reference
            else f" ({change_text(self.perplexity_change, self.perplexity_change_stderr)}), KL {self.kl:.2g} nats"
        )


class ReferenceComparison:
    """The reference's predictions, kept on the disk, and the comparison of every file with them."""

    def __init__(self, config: SweepConfig, path: Path, text: Text, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self.context = config.eval.context or LONGEST_DEFAULT_CONTEXT
        with GGUFScorer(path, context=self.context, n_threads=threads) as scorer:
            self.context = scorer.max_context  # the model's own where that is less
            content, ids = shorten(scorer, text.content.removesuffix("\n"), config.eval.max_tokens)
            self.n_bytes = len(content.encode("utf-8"))
            self.stream, self.windows = sliding_plan(scorer, ids, self.context)
        if not self.windows:
            raise UserError("the text is too short to score: it has no token to predict; give more text")
        self.n_scored = sum(window.last - window.first for window in self.windows)
        sizes = np.cumsum([window.last - window.first for window in self.windows])
        # Whole windows: as many as come nearest to kl_tokens without going over, at least one.
        self.n_compared_windows = max(1, int(np.searchsorted(sizes, config.eval.kl_tokens, side="right")))
        self.n_compared = int(sizes[self.n_compared_windows - 1])
        self.reference_N: np.ndarray | None = None
        """The reference's negative log-likelihoods, once it was compared (with itself)."""

    def _reference_logits(self) -> Iterator[np.ndarray]:
        return (
            np.load(self.folder / f"logits-{number}.npy", mmap_mode="r") for number in range(self.n_compared_windows)
        )

    def compare(self, path: Path, variant: Variant) -> FileResult:
        """One pass over the text; the first file is the reference and leaves its logits for the others."""
        nlls: list[np.ndarray] = []
        total = sum(window.stop - window.start for window in self.windows)
        with (
            GGUFScorer(path, context=self.context, n_threads=self.threads) as scorer,
            progress_bar(variant.label, total) as progress,
        ):

            def logits() -> Iterator[np.ndarray]:
                for window, logits_NV in scorer.logits(self.windows, self.stream):
                    nlls.append(nll_of(logits_NV, window.targets(self.stream)))
                    if progress:
                        progress(window.stop - window.start)
                    yield logits_NV

            remaining = logits()
            if self.reference_N is None:
                self._save_reference(islice(remaining, self.n_compared_windows))
                kl, same_top = 0.0, 1.0
            else:
                difference = compare_logits(self._reference_logits(), islice(remaining, self.n_compared_windows))
                kl, same_top = difference.kl, difference.same_top
            for _ in remaining:
                pass
            header = scorer.llama.header
        nll_N = np.concatenate(nlls)
        score = reduce(nll_N)
        self.reference_N = self.reference_N if self.reference_N is not None else nll_N
        change, change_stderr = relative_change(nll_N, self.reference_N)
        return FileResult(
            type=variant.kind,
            imatrix=variant.imatrix,
            rounding=variant.rounding,
            size_mib=path.stat().st_size / 2**20,
            bits_per_weight=header.bits_per_weight,
            perplexity=score.perplexity,
            stderr=score.stderr,
            perplexity_change=change,
            perplexity_change_stderr=change_stderr,
            bits_per_byte=bits_per_byte(score.nll, self.n_bytes),
            kl=kl,
            same_top=same_top,
        )

    def _save_reference(self, logits: Iterator[np.ndarray]) -> None:
        try:
            for number, logits_NV in enumerate(logits):
                np.save(self.folder / f"logits-{number}.npy", logits_NV)
        except OSError as error:
            raise UserError(
                f"the reference's predictions could not be written into {self.folder.parent} "
                f"({error.strerror or error}); free some space, or give fewer eval.kl_tokens or another out=DIR"
            ) from error
