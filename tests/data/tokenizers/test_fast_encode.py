"""tiktoken in place of ``tokenizers``: the same ids, and only where that is certain."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm.data.config import TokenizerConfig
from slm.data.tales.story import story
from slm.data.tokenizers.fast_encode import make_encode, mergeable_ranks
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer


def trained(vocab_size, texts):
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=vocab_size), lambda: iter(texts))


@pytest.fixture(scope="module")
def tokenizer():
    mixed = ["aaa abab " * 50, "naïve Straße 日本語 🤖 12345 \n\n\t  x", "'s 're they've "]
    return trained(900, [*(story(0, index) for index in range(400)), *mixed * 5])


def fast(tokenizer):
    encode = make_encode(tokenizer)
    assert encode.__qualname__.endswith("encode"), "tokenizers does the work"
    return encode


@pytest.fixture(scope="module")
def encode(tokenizer):
    return fast(tokenizer)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.text("ab \n'st1é日", max_size=60)))
def test_the_same_ids_for_any_text(tokenizer, encode, text):
    assert list(encode(text)) == tokenizer.encode(text)


def test_the_same_ids_for_every_character(tokenizer, encode):
    """The classes of characters, which split a text into words, are each library's own."""
    # The planes between hold no characters, the last two private ones.
    codes = [*range(0xD800), *range(0xE000, 0x32000), *range(0xDFFFF, 0xE0200), *range(0xF0000, 0xF0010)]
    texts = [
        " ".join(f"a{chr(c)}b 1{chr(c)}2 {chr(c)}.{chr(c)}  {chr(c)}" for c in codes[at : at + 4000])
        for at in range(0, len(codes), 4000)
    ]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert list(encode(text)) == ids


@pytest.mark.parametrize("vocab_size", [257, 300, 2048])
def test_trained_vocabularies_qualify(vocab_size):
    tokenizer = trained(vocab_size, [story(1, index) for index in range(300)])
    encode = fast(tokenizer)
    for index in range(300, 400):
        assert list(encode(story(1, index))) == tokenizer.encode(story(1, index))


def test_special_and_broken_text(tokenizer, encode):
    for text in ("", "<|endoftext|>", "a<|endoftext|>b", "\ud800 half", " " * 5000, "a" * 5000, "\n\n\n x"):
        assert list(encode(text)) == tokenizer.encode(text), text[:20]


def test_a_list_of_merges_in_another_order_is_left_to_tokenizers():
    """Where tiktoken would answer something else, it is not asked."""
    vocab = {"<|endoftext|>": 0}
    plain = trained(257, ["abc"])
    vocab |= {token: id for token, id in json.loads(plain.files["tokenizer.json"])["model"]["vocab"].items() if id}
    vocab |= {"ab": 257, "bc": 258, "abc": 259}
    spec = json.loads(plain.files["tokenizer.json"])
    spec["model"]["vocab"] = vocab
    # "abc" is made of a + bc, but ab is merged first: from "abc" tokenizers never makes it, tiktoken would.
    spec["model"]["merges"] = [["a", "b"], ["b", "c"], ["a", "bc"]]
    files = plain.files | {"tokenizer.json": json.dumps(spec).encode()}
    odd = Tokenizer(files, name="odd")
    assert odd.encode("abc") == [257, vocab["c"]]
    assert mergeable_ranks(odd.spec, odd.special_ids) is None
    assert list(make_encode(odd)("abc")) == odd.encode("abc")


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": None},
    ],
)
def test_other_pipelines_are_left_to_tokenizers(tokenizer, change):
    assert mergeable_ranks(tokenizer.spec, tokenizer.special_ids) is not None
    assert mergeable_ranks(tokenizer.spec | change, tokenizer.special_ids) is None


def test_gpt2_on_books(shared_data, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
    gpt2 = make_tokenizer(TokenizerConfig(kind="tiktoken"), lambda: iter([]))
    encode = fast(gpt2)
    texts = pq.read_table(shared_data / "gutenberg" / "validation.parquet").column("text").to_pylist()
    texts += ["".join(random.Random(i).choices("ab' \n1é日", k=300)) for i in range(50)]
    for text, ids in zip(texts, gpt2.encode_batch(texts), strict=True):
        assert encode(text).tolist() == ids
