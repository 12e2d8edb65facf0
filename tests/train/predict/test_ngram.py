"""How predictable a text is, in seconds."""

import numpy as np
import pytest

from slm.train.predict import ngram

CHANCE = np.random.default_rng(1)
LETTERS = np.frombuffer(b"abcdefgh", np.uint8)


def test_letters_at_random_have_their_entropy():
    content = CHANCE.choice(LETTERS[:4], 200_000).tobytes()
    assert ngram.bits_per_byte([content])[0] == pytest.approx(2, abs=0.03)
    uneven = CHANCE.choice(LETTERS[:2], 200_000, p=[0.9, 0.1]).tobytes()
    entropy = -0.9 * np.log2(0.9) - 0.1 * np.log2(0.1)
    assert ngram.bits_per_byte([uneven])[0] == pytest.approx(entropy, abs=0.05)


def test_what_depends_on_the_bytes_before_is_learned():
    """Each letter is one of two, which the letter before decides."""
    steps = CHANCE.integers(1, 3, 200_000).cumsum() % 8
    assert ngram.bits_per_byte([LETTERS[steps].tobytes()])[0] == pytest.approx(1, abs=0.02)


def test_repetition_within_the_context_counts():
    """Passages of half the window come twice each, or once."""
    passages = CHANCE.choice(LETTERS, (200, ngram.WINDOW // 2))
    twice, once = np.repeat(passages[:100], 2, axis=0), passages
    (repeated, without), (fresh, _) = (ngram.bits_per_byte([each.tobytes()]) for each in (twice, once))
    assert repeated < min(fresh, without) - 1


def test_a_document_is_predicted_from_others():
    """Each document has its words, which come often: those of a new one are not known."""
    words = [[CHANCE.choice(LETTERS, 6).tobytes() for _ in range(20)] for _ in range(40)]
    documents = [b" ".join(CHANCE.choice(mine, 1_000)) for mine in words]
    everybodys = [word for mine in words for word in mine]
    mixed = [b" ".join(CHANCE.choice(everybodys, 1_000)) for _ in words]
    assert ngram.bits_per_byte(documents)[1] > ngram.bits_per_byte(mixed)[1] + 0.2


def test_one_document_is_cut_into_pieces():
    long = CHANCE.choice(LETTERS[:4], 200_000).tobytes()
    assert ngram.bits_per_byte([long])[1] == pytest.approx(2, abs=0.03)


def test_a_text_that_is_nearly_one_document_is_cut_too():
    long = CHANCE.choice(LETTERS[:4], 100_000).tobytes()
    assert ngram.bits_per_byte([b"", *[b"a"] * 20, long])[1] == pytest.approx(2, abs=0.05)


def test_a_short_text_is_taken_for_one_like_the_books():
    assert ngram.level(["a" * (ngram.LEAST_BYTES - 1)]) == ngram.Level()
    assert ngram.level(["a" * ngram.LEAST_BYTES]).remembering < 0.1
