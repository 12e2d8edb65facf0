"""The law's level of other texts, against the runs that were made on them."""

import math
from pathlib import Path

import numpy as np
import pytest

from slm.train.predict import records
from slm.train.predict.law import TEXT_ERROR, TEXT_SPAN, fit, text_factor
from slm.train.predict.ngram import Level

RUNS = records.read(Path(records.__file__).with_name("texts.csv"))


def off(run: records.Record) -> float:
    """The prediction's relative error."""
    law = fit(records.load())
    alone = law.predict(run.n_matrix, run.bytes, run.unique_bytes, run.vocab_size)
    return alone * text_factor(run.level, run.bytes)[0] / run.bits_per_byte - 1


def test_each_text_has_about_the_level_that_is_predicted():
    errors = {(run.text, run.name, run.tokens): off(run) for run in RUNS}
    assert max(map(abs, errors.values())) < 0.11, errors
    of_texts = [
        math.sqrt(np.mean([value**2 for (text, *_), value in errors.items() if text == each]))
        for each in {run.text for run in RUNS} - {"books"}
    ]
    assert len(of_texts) == 5
    assert math.sqrt(np.mean(np.square(of_texts))) < 1.1 * TEXT_ERROR


def test_the_books_have_the_laws_own_level_at_any_length():
    assert text_factor(Level(), 1e6) == text_factor(Level(), 1e9) == (1.0, 0.0)


def test_odd_texts_have_a_level_that_is_a_number():
    """One letter throughout, and bytes at random: no loss of 0, none above 8 bits per byte."""
    for n_bytes in (1.0, 1e7, 1e12):
        assert 0 < text_factor(Level(0.0, 0.0), n_bytes)[0] < 0.2
    for n_bytes in (1.0, 1e7):
        assert text_factor(Level(3.9, 3.8), n_bytes)[0] * 2 < 8
    law = fit(records.load())  # books have fewer than two bits after so much text, and this is relative to them
    for n_bytes in (2.5e6, 1e7, 1e9, 1e12):
        assert law.predict(1e6, n_bytes) * text_factor(Level(3.9, 3.8), n_bytes)[0] < 8


def test_repetition_counts_late_and_not_beyond_the_runs():
    repeats = Level(remembering=0.9, forgetting=1.1)
    short, middle, long, longer = (text_factor(repeats, n_bytes)[0] for n_bytes in (3e6, 8e6, TEXT_SPAN[1], 1e12))
    assert short > middle > long == longer
    assert middle == pytest.approx(0.9, rel=0.01)
