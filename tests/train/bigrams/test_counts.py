"""Pairs of neighbours are counted as a Counter counts them."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from slm.train.bigrams import counts
from slm.train.bigrams.counts import count_bigrams


def batches(n: int) -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.integers(0, 9, (4, 17)).astype(np.int32) for _ in range(n)]


@pytest.mark.parametrize("at_once", [1, 100, 10**9])
def test_every_pair_of_every_row_is_counted_in_order(monkeypatch, at_once):
    monkeypatch.setattr(counts, "AT_ONCE", at_once)
    found = count_bigrams(batches(5), 9, 10**9)
    expected = Counter(pair for batch in batches(5) for row in batch.tolist() for pair in pairwise(row))
    pairs = zip(found.first.tolist(), found.second.tolist(), strict=True)
    assert dict(zip(pairs, found.count.tolist(), strict=True)) == expected
    assert found.tokens == 5 * 4 * 16
    codes = found.first * 9 + found.second
    assert (codes.diff() > 0).all()


def test_occurrences_are_the_sums_of_rows_and_columns():
    found = count_bigrams(batches(5), 9, 10**9)
    first, second = found.occurrences()
    ids = np.concatenate(batches(5))
    assert first.tolist() == np.bincount(ids[:, :-1].ravel(), minlength=9).tolist()
    assert second.tolist() == np.bincount(ids[:, 1:].ravel(), minlength=9).tolist()


def test_it_stops_at_the_limit_without_reading_on():
    read = []
    found = count_bigrams((read.append(1) or batch for batch in batches(5)), 9, 100)
    assert found.tokens == 100
    assert len(read) == 2


def test_no_text_gives_no_pairs():
    assert count_bigrams([], 9, 100).tokens == 0
