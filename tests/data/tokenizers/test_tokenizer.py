"""Tokenizers: what we save is what transformers loads, with the same ids, whatever the text and the source."""

import pickle

import numpy as np
from hypothesis import given

from slm.data.tokenizers.tokenizer import EOT
from tests.helpers.tokenizers import any_text, ids_of, many


@many
@given(text=any_text)
def test_transformers_gives_the_same_ids(pair, text):
    tokenizer, hf, loaded = pair
    ids = tokenizer.encode(text)
    assert ids == ids_of(hf, text)
    assert ids == loaded.encode(text) == tokenizer.encode_batch([text, "x"])[0]
    assert tokenizer.decode(ids) == text == hf.decode(ids, clean_up_tokenization_spaces=False)
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()
    assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())
    assert tokenizer.eot_id not in ids


def test_transformers_keeps_the_rest(pair):
    tokenizer, hf, loaded = pair
    assert len(hf) == tokenizer.vocab_size == loaded.vocab_size
    assert hf.eos_token_id == hf.bos_token_id == tokenizer.eot_id == loaded.eot_id
    assert hf.decode(tokenizer.encode(" a , b . don 't")) == " a , b . don 't"  # no clean-up
    assert hf("hi")["input_ids"] == tokenizer.encode("hi")  # no BOS is added
    assert hf.encode(EOT) == [tokenizer.eot_id]  # where special tokens are meant, they are found


def test_they_travel_to_other_processes(pair):
    tokenizer, _, _ = pair
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("Once upon a time 🦙") == tokenizer.encode("Once upon a time 🦙")
    assert (copy.eot_id, copy.name, copy.fingerprint) == (tokenizer.eot_id, tokenizer.name, tokenizer.fingerprint)


def test_odd_input(bpe):
    assert bpe.encode("") == []
    assert bpe.decode([]) == ""
    assert bpe.decode(bpe.encode("a\ud800b")) == "a\ufffdb"
    assert bpe.encode_batch(["a\ud800b", "c"]) == [bpe.encode("a\ufffdb"), bpe.encode("c")]
    assert bpe.decode([bpe.eot_id, *bpe.encode("x"), bpe.eot_id]) == "x"
    assert "\ufffd" in bpe.decode(bpe.encode("🦙")[:1])
    assert bpe.byte_lengths().dtype == np.int32
    assert bpe.byte_lengths()[bpe.eot_id] == 0
