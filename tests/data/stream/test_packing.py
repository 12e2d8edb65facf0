"""Packing: every token once, none invented, and a position that resumes at any block."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm.data.stream.packing import Packer, Tokenized, document_starts
from tests.helpers.documents import Listed


def encode(text):
    return [ord(character) for character in text]


EOT = 0


def packer(texts, seq_len):
    return Packer(Tokenized(Listed(texts), encode, eot_id=EOT), seq_len=seq_len)


documents = st.lists(
    st.text(st.characters(min_codepoint=1, max_codepoint=60000, exclude_categories=["Cs"])), max_size=12
)


@given(documents, st.integers(1, 9))
def test_blocks_are_the_stream_without_loss_or_padding(texts, seq_len):
    stream = [token for text in texts for token in [*encode(text), EOT]]
    blocks = list(packer(texts, seq_len))
    for block in blocks:
        assert block.dtype == np.int32
        assert block.shape == (seq_len + 1,)
    for block, following in itertools.pairwise(blocks):
        assert block[-1] == following[0]
    joined = [*blocks[0], *(token for block in blocks[1:] for token in block[1:])] if blocks else []
    assert joined == stream[: len(joined)]
    # What is left does not fill a block: a block needs one token that was there before and seq_len new ones.
    left = len(stream) - len(joined)
    assert left < seq_len + (0 if blocks else 1)


@given(documents.filter(any))
def test_a_document_follows_what_the_tokenizer_writes_before_a_text(texts):
    stream = Tokenized(Listed(texts), encode, eot_id=EOT, begins=(7, 8))
    assert [next(stream).tolist() for _ in texts] == [[7, 8, *encode(text), EOT] for text in texts]


@given(documents, st.integers(1, 9), st.data())
def test_resumes_at_any_block(texts, seq_len, data):
    whole = [block.tolist() for block in packer(texts, seq_len)]
    cut = data.draw(st.integers(0, len(whole)))
    first = packer(texts, seq_len)
    for _ in range(cut):
        next(first)
    state = json.loads(json.dumps(first.state_dict()))
    second = packer(texts, seq_len)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert [block.tolist() for block in second] == whole[cut:]


def test_the_state_does_not_grow_with_documents():
    one = packer(["x" * 100_000], 16)
    for _ in range(1000):
        next(one)
    assert one.state_dict() == {"documents": {"at": 0}, "offset": 16_000}


def test_an_empty_stream_has_no_block():
    with pytest.raises(StopIteration):
        next(packer([], 4))


@given(st.lists(st.lists(st.sampled_from([EOT, 1, 2]), min_size=7, max_size=7), min_size=1, max_size=4))
def test_document_starts(rows):
    ids_BT = np.array(rows, dtype=np.int32)
    starts_BT = document_starts(ids_BT, EOT)
    assert starts_BT.dtype == np.int32
    assert starts_BT.shape == ids_BT.shape
    for ids, starts in zip(rows, starts_BT.tolist(), strict=True):
        expected = 0
        for position, start in enumerate(starts):
            if position and ids[position - 1] == EOT:
                expected = position  # the token after the end of a document begins one
            assert start == expected


def test_document_starts_by_hand():
    assert document_starts(np.array([[5, EOT, 6, 7, EOT, EOT, 8]]), EOT).tolist() == [[0, 0, 2, 2, 2, 5, 6]]
