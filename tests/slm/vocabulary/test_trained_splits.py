"""Tokenizers trained here, of both kinds and with each ``tokenizer.split``: what they cut, and the same ids in the
exported file."""

import json
import random

import pytest
import tokenizers

from slm.data.config import TokenizerConfig
from slm.data.tokenizers.make import load_tokenizer, make_tokenizer
from slm.data.tokenizers.tokenizer import EOT, Tokenizer
from slm.data.tokenizers.train_characters import can_be_token, of_pieces
from slm.data.tokenizers.train_unigram import of_pieces as of_scores
from slm.llama.model import Model
from slm.vocabulary.exportable import failures
from tests.helpers.tokenizers import PIECES, auto, stories

CODE = "def total(items, start=1999):\n    for i in range(12345):\n        self.value += items[i]\n\n    return 1\n"
NAMES = {"gpt2": "gpt-2", "digits": "smollm", "code": "qwen2"}
REPETITIVE = (
    *"abn_=-<|>0x41tendofuk",
    *("an", "na", "ana", "anana", "nan", "aa", "aaa", "aaaa", "aaaaaa", "ab", "ba", "aba", "bab", "ababa", "abababab"),
    *("▁▁", "▁▁▁", "▁▁▁▁", "==", "===", "0x", "<0x", "1>", "41>", "nk", "nk>", "<u"),
)
"""Tokens that neighbours can make in several ways, and parts of names."""
BITS = [
    *("a", "b", "aa", "an", "ana", "na", "ba", "ab", "▁", "=", "-", " ", "  ", "\n", "€", "🦙", "1", "23"),
    *("<0x", "<0x4", "41>", "<|endof", "text|>", "<unk>"),
]


def texts(count: int) -> list[str]:
    """Stories, code with changed numbers, and odd characters, in turn."""
    rng, found = random.Random(3), list(stories(50))
    kinds = (
        lambda: rng.choice(found),
        lambda: CODE.replace("12345", str(rng.getrandbits(40))),
        lambda: "".join(rng.choices(PIECES, k=rng.randint(1, 12))),
        lambda: "".join(chr(rng.choice((rng.randrange(32, 0x500), rng.randrange(0xE000, 0x1FAFF)))) for _ in range(20)),
    )
    return [kinds[number % len(kinds)]() for number in range(count)]


@pytest.fixture(
    scope="module",
    params=[(kind, split) for kind in ("bpe", "sentencepiece", "unigram") for split in NAMES],
    ids="-".join,
)
def made(request) -> tuple[str, str, Tokenizer]:
    kind, split = request.param
    config = TokenizerConfig(kind=kind, vocab_size=900, split=split)
    return kind, split, make_tokenizer(config, lambda: iter([*[CODE] * 50, *stories(300)]))


def test_500_texts_have_the_same_ids_in_llama_cpp_and_transformers(made, tmp_path):
    kind, split, tokenizer = made
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 960}))
    assert failures(tmp_path, 960, "trained", tmp_path / "model.gguf") == []
    theirs, again = auto(tmp_path), load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    with Model(tmp_path / "model.gguf", vocab_only=True) as llama:
        pre = NAMES[split] if kind == "bpe" else "default"
        assert llama.metadata()["tokenizer.ggml.pre"].startswith(pre)
        for text in texts(500):
            ids = tokenizer.encode(text)
            if kind != "unigram" or tokenizer.unknown_id not in ids:  # the others have every byte
                assert tokenizer.decode(ids) == (text if kind == "bpe" else text.replace("▁", " "))
            assert llama.tokenize(text, add_special=False, parse_special=False) == ids, text
            if EOT not in text and "<unk>" not in text:  # which transformers reads as tokens
                assert theirs.encode(text, add_special_tokens=False) == ids, text


CUT = {
    "gpt2": ["for", " i", " in", " range", "(", "12345", "):", "\n       ", " self", ".", "value"],
    "digits": ["for", " i", " in", " range", "(", *"12345", "):", "\n       ", " self", ".", "value"],
    "code": ["for", " i", " in", " range", "(", *"12345", "):\n", "       ", " self", ".value"],
}


@pytest.mark.parametrize("split", NAMES)
def test_what_is_cut(split):
    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300, split=split), lambda: iter([CODE]))
    backend = tokenizers.Tokenizer.from_str(tokenizer.files["tokenizer.json"].decode())
    text = "for i in range(12345):\n        self.value"
    assert [text[begin:end] for _, (begin, end) in backend.pre_tokenizer.pre_tokenize_str(text)] == CUT[split]


def test_each_has_a_name_of_its_own(made):
    kind, split, tokenizer = made
    assert tokenizer.name == (f"{kind}-900" if split == "gpt2" else f"{kind}-{split}-900")
    if kind == "bpe":  # without a split it is as it always was
        assert (tokenizer.spec["pre_tokenizer"]["type"] == "ByteLevel") == (split == "gpt2")


def test_repetitions_and_pieces_of_names_have_the_same_ids_in_llama_cpp(tmp_path):
    """llama.cpp joins whatever two neighbours make a token, and so do the merges that are listed."""
    pieces = [piece for piece in ("▁", *REPETITIVE) if can_be_token(piece)]
    assert {"<0x", "41>", "nk>"} == {*REPETITIVE} - {*pieces}
    tokenizer = Tokenizer(of_pieces(pieces), name="repetitive")
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 512}))
    assert failures(tmp_path, 512, "trained", tmp_path / "model.gguf") == []
    rng = random.Random(1)
    with Model(tmp_path / "model.gguf", vocab_only=True) as llama:
        for _ in range(1500):
            text = "".join(rng.choices(BITS, k=rng.randint(2, 30)))
            ids = tokenizer.encode(text)
            assert llama.tokenize(text, add_special=False, parse_special=False) == ids, text
            assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_byte_fallback_spells_what_the_sample_never_had():
    config = TokenizerConfig(kind="sentencepiece", vocab_size=400)
    tokenizer = make_tokenizer(config, lambda: iter(["only plain letters here, nothing else"] * 20))
    for text in ("🦙 Ж 日本\x00\u0301", " leading", "two  spaces ", "line\n\nline\t"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("🦙") == [tokenizer.spec["model"]["vocab"][f"<0x{byte:02X}>"] for byte in "🦙".encode()]
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("Ж 🦙"))) == "Ж 🦙".encode()


def test_a_unigram_tokenizer_has_the_same_ids_in_llama_cpp_where_ways_are_equally_probable(tmp_path):
    """Exact sums decide alike, also of ways with the same sum and of unknown characters."""
    rng = random.Random(2)
    scores = {piece: -rng.randint(1, 12) / 4 for piece in REPETITIVE if "<" not in piece and "▁" not in piece[1:]}
    tokenizer = Tokenizer(of_scores(scores), name="repetitive")
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 128}))
    assert failures(tmp_path, 128, "trained", tmp_path / "model.gguf") == []
    with Model(tmp_path / "model.gguf", vocab_only=True) as llama:
        for _ in range(1500):
            text = "".join(rng.choices(BITS, k=rng.randint(2, 30)))
            assert llama.tokenize(text, add_special=False, parse_special=False) == tokenizer.encode(text), text


def test_a_unigram_tokenizer_has_the_samples_characters_and_says_what_it_lacks():
    config = TokenizerConfig(kind="unigram", vocab_size=400, split="digits")
    sample = ["Größe 1 и вес 23: <b>naïve</b> — 日本\n    so\tthen\u3000here"] * 20
    tokenizer, again = (make_tokenizer(config, lambda: iter(sample)) for _ in range(2))
    assert tokenizer.files == again.files
    assert tokenizer.decode(tokenizer.encode(sample[0])) == sample[0]
    assert tokenizer.encode("🦙🦙") == [tokenizer.unknown_id]
    assert all(tokenizer.decode(tokenizer.encode(each)) == each for each in map(chr, range(32, 127)))
    assert not any("<" in piece[1:] or "23" in piece for piece, _ in tokenizer.spec["model"]["vocab"][2:])
    small = make_tokenizer(
        TokenizerConfig(kind="unigram", vocab_size=200), lambda: iter(["".join(map(chr, range(33, 900)))])
    )
    assert small.vocab_size <= 200
