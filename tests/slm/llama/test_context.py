import numpy as np
import pytest

from slm.llama.context import Batch, Context
from slm.llama.errors import KvCacheFull, LlamaError


def test_token_out_of_range_is_an_error_not_an_abort(model, context):
    for bad in (-1, model.n_vocab, 2**31 - 1):
        with pytest.raises(LlamaError, match="vocabulary"):
            model.token_to_piece(bad)
        with pytest.raises(LlamaError, match="vocabulary"):
            model.is_eog(bad)
    batch = Batch(4)
    batch.add(model.n_vocab, 0, 0, True)
    with pytest.raises(LlamaError, match="vocabulary"):
        context.decode(batch)


def test_decode_in_chunks_equals_decode_at_once(model, context):
    ids = model.tokenize("once upon a time the bird said hello", add_special=False, parse_special=False)
    batch = Batch(64, 3)
    batch.extend(ids, 0, 0, True, every=True)
    context.decode(batch)
    at_once = context.logits_all(len(ids))
    assert at_once.shape == (len(ids), model.n_vocab)
    assert at_once.dtype == np.float32
    for pos, token in enumerate(ids):
        batch.clear()
        i = batch.add(token, pos, 1, True)
        context.decode(batch)
        np.testing.assert_allclose(context.logits(i), at_once[pos], atol=1e-2)
    assert context.seq_pos_max(1) == len(ids) - 1


def test_sequences_do_not_see_each_other_and_seq_cp_shares(model, context):
    ids = model.tokenize("the little bird", add_special=False, parse_special=False)
    other = model.tokenize("red boat", add_special=False, parse_special=False)
    batch = Batch(64, 3)
    alone = batch.extend(ids, 0, 0, True)
    context.decode(batch)
    expected = context.logits(alone)
    context.clear()
    batch.clear()
    mixed = batch.extend(ids, 0, 0, True)
    batch.extend(other, 0, 1, True)
    context.decode(batch)
    np.testing.assert_allclose(context.logits(mixed), expected, atol=1e-2)

    context.seq_cp(0, 2, 0, len(ids) - 1)
    batch.clear()
    i = batch.add(ids[-1], len(ids) - 1, 2, True)
    context.decode(batch)
    np.testing.assert_allclose(context.logits(i), expected, atol=1e-2)
    assert context.seq_rm(2, 0, -1)
    assert context.seq_pos_max(2) == -1


def test_full_cache_is_recoverable(model, context):
    batch = Batch(64, 3)
    for chunk in range(4):
        batch.clear()
        batch.extend([5] * 64, 64 * chunk, 0, True)
        context.decode(batch)
    batch.clear()
    batch.add(5, 0, 1, True)
    with pytest.raises(KvCacheFull):
        context.decode(batch)
    context.seq_rm(0)
    context.decode(batch)


def test_batch_over_n_batch_and_bad_positions(model, context):
    batch = Batch(128)
    batch.extend([1] * 65, 0, 0, True)
    with pytest.raises(LlamaError, match="65 tokens"):
        context.decode(batch)
    batch.clear()
    batch.add(1, 40, 0, True)
    batch.add(1, 3, 0, True)
    with pytest.raises(LlamaError, match="llama_decode returned -1"):
        context.decode(batch)
    with pytest.raises(AssertionError):
        context.seq_rm(-1)


def test_embeddings_are_there_when_asked_for(model):
    ids = model.tokenize("the old fox", add_special=False, parse_special=False)
    with Context(model, n_ctx=256, n_threads=1, embeddings=True) as context:
        batch = Batch(64)
        batch.extend(ids, 0, 0, True, every=True)
        context.decode(batch)
        rows = context.embeddings_all(len(ids))
    assert rows.shape == (len(ids), model.n_embd)
    # The output norm's weight is 1 here: every row has a mean square of 1.
    np.testing.assert_allclose(np.square(rows).mean(axis=1), 1, rtol=1e-3)
