"""Tokenizers: what we save is what transformers loads, with the same ids, whatever the text and the source."""

import json
import pickle

import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.config import TokenizerConfig
from data.errors import UserError
from data.tales.story import story
from data.tokenizers import from_tiktoken as ours
from data.tokenizers.make import load_tokenizer, make_tokenizer
from data.tokenizers.tokenizer import EOT, Tokenizer

# Everything that pre-tokenizers disagree about, and arbitrary Unicode besides.
PIECES = [
    *(
        "the cat",
        " sat",
        "I'm",
        "we'LL",
        "don't",
        "  ",
        "    ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\x00",
        "\x0b",
        "\x1f",
        "\x7f",
    ),
    *(
        "\x85",
        "\xa0",
        "\u2009",
        "\u200b",
        "\u200d",
        "\u2028",
        "\u3000",
        "\ufeff",
        "\u180e",
        "é",
        "e\u0301",
        "ﬁ",
        "ß",
        "İ",
    ),
    *(
        "0",
        "7",
        "12",
        "345",
        "6789",
        "3.14",
        "1,000",
        "²",
        "½",
        "٣٤",
        "Ⅷ",
        "你好",
        "日本語",
        "한국어",
        "हिन्दी",
        "ไทย",
        "العربية",
    ),
    *(
        "🦙",
        "👩‍👩‍👧",
        "🇫🇷",
        "👍🏽",
        "_",
        "__init__",
        "#!",
        "...",
        "———",
        "“",
        "”",
        "<|endoftext|>",
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
    ),
    *("▁", "\ufffd", "\U0010ffff", "𝔘", "a\u0308\u0304", "Ω", "ǅ", "'", "''", "'s", "’s"),
]
any_text = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.text("ab 1\n", max_size=8))).map("".join)
many = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def auto(directory):
    """What transformers makes of a checkpoint directory, config.json included (it looks at the model type)."""
    from transformers import AutoTokenizer

    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return AutoTokenizer.from_pretrained(directory)


def ids_of(hf, text):
    # Like ours, and unlike transformers' default, text that spells a special token is text.
    return hf.encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.fixture(scope="session")
def gpt2(shared_data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
        return make_tokenizer(TokenizerConfig(kind="tiktoken", name="gpt2"), lambda: iter(()))


def stories(count=1500):
    return (story(0, index) for index in range(count))


@pytest.fixture(scope="session")
def bpe():
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=1024), stories)


@pytest.fixture(scope="session", params=["gpt2", "bpe"])
def pair(request, tmp_path_factory):
    tokenizer = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer.save(folder)
    return tokenizer, auto(folder), load_tokenizer(folder)


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
    """A tiktoken encoding with cl100k_base's pattern and gaps in its ids, on a small vocabulary of our own."""
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


def test_a_directory_from_elsewhere_is_saved_as_it_was(bpe, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    bpe.save(source)
    spec = json.loads((source / "tokenizer.json").read_text())
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": EOT,
    }
    (source / "tokenizer.json").write_text(json.dumps(spec))
    config = {"eos_token": {"content": EOT, "special": True}, "chat_template": "{{ messages }}", "add_bos_token": True}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "model.safetensors").write_bytes(b"weights")
    loaded = make_tokenizer(TokenizerConfig(kind="file", path=str(source)), stories)
    assert loaded.encode("Once upon a time there was a bear") == bpe.encode("Once upon a time there was a bear")
    loaded.save(target)
    assert sorted(path.name for path in target.iterdir()) == [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for path in target.iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()


def test_a_bare_tokenizer_json(bpe, tmp_path):
    path = tmp_path / "my.json"
    path.write_bytes(bpe.files["tokenizer.json"])
    loaded = load_tokenizer(path)
    assert loaded.eot_id == bpe.eot_id
    loaded.save(tmp_path / "out")
    text = "Once 12  \n x"
    assert ids_of(auto(tmp_path / "out"), text) == bpe.encode(text)


def rename_eot(bpe, name):
    return bpe.files["tokenizer.json"].replace(EOT.encode(), name.encode())


def test_the_end_of_text_token_can_be_named(bpe, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(rename_eot(bpe, "<|stop|>"))
    with pytest.raises(UserError, match=r"does not say .* set tokenizer.eot_token to one of <\|stop\|>"):
        load_tokenizer(path)
    assert load_tokenizer(path, eot_token="<|stop|>").eot_id == 0
    with pytest.raises(UserError, match=r"no token '<eos>': .* \(<\|stop\|>\)"):
        load_tokenizer(path, eot_token="<eos>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "added_tokens": []}', "WordLevel"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match="there is no tokenizer at"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"neither tokenizer.json nor tokenizer.model"):
        load_tokenizer(tmp_path)


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


def test_without_its_vocabulary_a_bpe_of_ones_own_text_can_serve(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("data.tokenizers.from_tiktoken._fetch", _refuse)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    config = TokenizerConfig(kind="tiktoken", name="p50k_base", fallback="bpe", vocab_size=300)
    said = []
    tokenizer = make_tokenizer(config, lambda: iter(["the cat sat on the mat and the cat ran"] * 50), said.append)
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    assert 257 < tokenizer.vocab_size <= 300
    assert "could not be reached" in said[0]
    assert "tokenizer.fallback=none" in said[0]


def _refuse(url: str) -> bytes:
    import requests

    raise requests.ConnectionError(url)
