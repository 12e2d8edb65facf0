"""Bits per byte of a model directory on documents: every token once, in contiguous windows, end-of-text included.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

from collections.abc import Sequence
from pathlib import Path

from slm.evaluate.perplexity import bits_per_byte, contiguous_plan
from slm.evaluate.scorers import checkpoint_scorer


def score(model: Path, documents: Sequence[str], window: int) -> float:
    """All nats over all UTF-8 bytes of ``documents``, each after the token that starts one, in bits."""
    scorer = checkpoint_scorer(model)
    stream, windows = contiguous_plan(scorer, [scorer.tokenize(each) for each in documents], window)
    nats = float(scorer.nll(windows, stream).sum())
    return bits_per_byte(nats, sum(len(each.encode()) for each in documents))
