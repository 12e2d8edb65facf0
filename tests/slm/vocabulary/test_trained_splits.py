"""Tokenizers trained here with each ``tokenizer.split``: what they cut, and the same ids in the exported file."""

import json
import random

import pytest
import tokenizers

from slm.data.config import TokenizerConfig
from slm.data.tokenizers.make import load_tokenizer, make_tokenizer
from slm.data.tokenizers.tokenizer import EOT, Tokenizer
from slm.llama.model import Model
from slm.vocabulary.exportable import failures
from tests.helpers.tokenizers import PIECES, auto, stories

CODE = "def total(items, start=1999):\n    for i in range(12345):\n        self.value += items[i]\n\n    return 1\n"
NAMES = {"gpt2": "gpt-2", "digits": "smollm", "code": "qwen2"}


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


@pytest.fixture(scope="module", params=NAMES)
def made(request, tmp_path_factory) -> tuple[str, Tokenizer]:
    config = TokenizerConfig(kind="bpe", vocab_size=900, split=request.param)
    tokenizer = make_tokenizer(config, lambda: iter([*[CODE] * 50, *stories(300)]))
    return request.param, tokenizer


def test_500_texts_have_the_same_ids_in_llama_cpp_and_transformers(made, tmp_path):
    split, tokenizer = made
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 960}))
    assert failures(tmp_path, 960, "trained", tmp_path / "model.gguf") == []
    theirs, again = auto(tmp_path), load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    with Model(tmp_path / "model.gguf", vocab_only=True) as llama:
        assert llama.metadata()["tokenizer.ggml.pre"].startswith(NAMES[split])
        for text in texts(500):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text  # every byte is there
            assert llama.tokenize(text, add_special=False, parse_special=False) == ids, text
            if EOT not in text:  # which transformers reads as the token
                assert theirs.encode(text, add_special_tokens=False) == ids, text


CUT = {
    "gpt2": ["for", " i", " in", " range", "(", "12345", "):", "\n       ", " self", ".", "value"],
    "digits": ["for", " i", " in", " range", "(", *"12345", "):", "\n       ", " self", ".", "value"],
    "code": ["for", " i", " in", " range", "(", *"12345", "):\n", "       ", " self", ".value"],
}


def test_what_is_cut(made):
    split, tokenizer = made
    backend = tokenizers.Tokenizer.from_str(tokenizer.files["tokenizer.json"].decode())
    text = "for i in range(12345):\n        self.value"
    assert [text[begin:end] for _, (begin, end) in backend.pre_tokenizer.pre_tokenize_str(text)] == CUT[split]


def test_gpt2s_is_as_it_was_and_the_others_have_names_of_their_own(made):
    split, tokenizer = made
    assert tokenizer.name == ("bpe-900" if split == "gpt2" else f"bpe-{split}-900")
    step = json.loads(tokenizer.files["tokenizer.json"])["pre_tokenizer"]
    assert (step["type"] == "ByteLevel") == (split == "gpt2")
