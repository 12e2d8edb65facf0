"""tiktoken's encodings: converted with the same ids, and the errors where there is no such encoding or network."""

import json

import pytest
import tiktoken
from hypothesis import given

from slm.data.config import TokenizerConfig
from slm.data.errors import UserError
from slm.data.tokenizers import from_tiktoken as ours
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import EOT, Tokenizer
from tests.helpers.tokenizers import PIECES, any_text, many


def test_gpt2_is_gpt2(gpt2, shared_data, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
    reference = tiktoken.get_encoding("gpt2")
    text = (shared_data / "wikitext" / "wiki.test.raw").read_text()
    assert (gpt2.vocab_size, gpt2.eot_id, gpt2.name) == (50257, 50256, "gpt2")
    assert gpt2.encode(text[:300_000]) == reference.encode_ordinary(text[:300_000])
    assert gpt2.encode("Hello world") == [15496, 995]
    assert [gpt2.token_bytes(i) for i in range(50256)] == [reference.decode_single_token_bytes(i) for i in range(50256)]


@many
@given(text=any_text)
def test_gpt2_agrees_with_tiktoken_on_anything(gpt2, shared_data, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
        assert gpt2.encode(text) == tiktoken.get_encoding("gpt2").encode_ordinary(text)


def test_gpt2_under_transformers_own_class(gpt2, tmp_path):
    # llama.cpp's converter knows the pre-tokenizer by the ids of a text through AutoTokenizer.
    from transformers import AutoTokenizer

    gpt2.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "GPT2Tokenizer"}))
    text = "".join(PIECES).replace(EOT, "")
    assert AutoTokenizer.from_pretrained(tmp_path).encode(text) == gpt2.encode(text)


CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


@pytest.fixture(scope="session")
def like_cl100k(bpe):
    """A tiktoken encoding with cl100k_base's pattern and gaps in its ids, on a small vocabulary made here."""
    spec = json.loads(bpe.files["tokenizer.json"])
    ordinary = sorted((id, token) for token, id in spec["model"]["vocab"].items() if token != EOT)
    ranks = {bpe.token_bytes(id): rank for rank, (id, _) in enumerate(ordinary)}
    count = len(ranks)
    special = {EOT: count + 1, "<|fim_prefix|>": count + 2, "<|endofprompt|>": count + 20}
    encoding = tiktoken.Encoding("like", pat_str=CL100K, mergeable_ranks=ranks, special_tokens=special)
    return encoding, Tokenizer(ours.convert_encoding(encoding), name="like", eot_token=EOT)


@many
@given(text=any_text)
def test_other_tiktoken_patterns_are_converted_exactly(like_cl100k, text):
    encoding, tokenizer = like_cl100k
    assert tokenizer.encode(text) == encoding.encode_ordinary(text)


def test_ids_that_an_encoding_leaves_out_stand_for_nothing(like_cl100k):
    encoding, tokenizer = like_cl100k
    assert tokenizer.vocab_size == encoding.n_vocab
    assert tokenizer.eot_id == encoding.eot_token
    assert [tokenizer.token_bytes(i) for i in range(tokenizer.eot_id, encoding.n_vocab)] == [b""] * 20


def test_unknown_encoding():
    with pytest.raises(UserError, match="no encoding 'gtp2'; did you mean 'gpt2'"):
        make_tokenizer(TokenizerConfig(kind="tiktoken", name="gtp2"), lambda: iter(()))


def test_without_network_the_host_and_a_way_on_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    with pytest.raises(UserError) as caught:
        make_tokenizer(TokenizerConfig(kind="tiktoken", name="p50k_base"), lambda: iter(()))
    for word in (ours.HOST, "TIKTOKEN_CACHE_DIR", "tokenizer=bpe", "p50k_base"):
        assert word in str(caught.value)
    assert tiktoken.load.read_file.__module__ == "tiktoken.load"  # put back
