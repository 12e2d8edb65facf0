"""Trained tokenizers: reproducible, as large as the text allows, trained on no more than their sample."""

import pytest

from slm.data.config import TokenizerConfig
from slm.data.errors import UserError
from slm.data.tales.story import story
from slm.data.tokenizers import sample
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import EOT
from tests.helpers.tokenizers import stories


def test_bpe_is_the_same_every_time_and_learns_the_text(bpe):
    again = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=1024), stories)
    assert again.files == bpe.files
    assert bpe.fingerprint == again.fingerprint
    assert (bpe.vocab_size, bpe.eot_id) == (1024, 0)
    text = story(1, 1)
    assert len(bpe.encode(text)) < len(text) / 3
    assert bpe.encode(f"a{EOT}b")[0] != bpe.eot_id


def test_bpe_of_little_text_is_smaller_than_asked():
    tiny = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=5000), lambda: iter(["abc abc abc"]))
    assert 257 <= tiny.vocab_size < 270
    assert tiny.decode(tiny.encode("any 🦙 text")) == "any 🦙 text"


def test_bpe_reads_no_more_than_its_sample():
    read = []

    def documents():
        for index in range(1000):
            read.append(index)
            yield "word " * 200

    make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300, sample_bytes=10_000), documents)
    assert len(read) <= 11


def test_bpe_of_nothing_is_refused():
    with pytest.raises(UserError, match="no text to train a tokenizer on"):
        make_tokenizer(TokenizerConfig(kind="bpe"), lambda: iter(()))


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
@pytest.mark.parametrize("split", ["gpt2", "digits", "code"])
def test_a_long_document_is_learned_from_in_pieces_with_the_same_words(kind, split, monkeypatch):
    odd = ["a\n b!\nc 12 3\t4", "x  y\r\nz", "\n\nI'll   go. \n", "\u4e00\u4e8c \u4e09\u3000q", "} \n{\n\n\n if\n"]
    text = "".join(story(1, each) + odd[each % len(odd)] for each in range(12))
    config = TokenizerConfig(kind=kind, vocab_size=700, split=split)
    made = {}
    for size in (1 << 30, 50):
        monkeypatch.setattr(sample, "PIECE", size)
        pieces = list(sample.Sample([text], 10**9))
        assert "".join(pieces) == text
        assert (len(pieces) == 1) == (size == 1 << 30)
        made[size] = make_tokenizer(config, lambda: iter([text])).files
    assert made[50] == made[1 << 30]
