import json
import os
import re
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from slm.data.errors import UserError
from slm.data.tokenizers.splits import GPT2, GPT4O, LLAMA3, QWEN2, QWEN35, SPLITS, TEKKEN, WHOLE_WORDS
from slm.data.tokenizers.splits import section as written
from slm.vocabulary.fingerprints import FINGERPRINTS
from slm.vocabulary.pretokenizer import SPELLINGS, by_structure, identify

EMPTY = {"type": "BPE", "vocab": {}, "merges": []}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PATTERNS = {LLAMA3: "llama-bpe", QWEN2: "qwen2", QWEN35: "qwen35", TEKKEN: "tekken", GPT4O: "gpt-4o", GPT2: "gpt-2"}
PATTERNS |= dict.fromkeys(SPELLINGS, "gpt-2")


def section(pre_tokenizer) -> dict:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    return json.loads(tokenizer.to_str())["pre_tokenizer"]


def split_then_bytes(regex: str, behavior: str = "isolated", invert: bool = False) -> dict:
    return section(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), behavior, invert), BYTES]))


def test_gpt2_and_smollm():
    assert by_structure(section(pre_tokenizers.ByteLevel(add_prefix_space=False))) == "gpt-2"
    digits = pre_tokenizers.Digits(individual_digits=True)
    both = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    assert by_structure(section(both)) == "smollm"


@pytest.mark.parametrize(("regex", "name"), PATTERNS.items())
def test_known_patterns(regex, name):
    assert by_structure(split_then_bytes(regex)) == name
    assert by_structure(split_then_bytes(regex, "removed", True)) == name


def test_whether_words_are_looked_up_whole_tells_names_of_one_split_apart():
    llama3 = split_then_bytes(LLAMA3)
    assert by_structure(llama3, whole_words=True) == "llama-bpe"
    assert by_structure(llama3, whole_words=False) == "smaug-bpe"
    assert identify({"pre_tokenizer": llama3, "model": {"ignore_merges": False}}, [1, 2, 3]) == "smaug-bpe"


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_what_is_written_for_a_name_is_known_again(name):
    made = {"pre_tokenizer": written(name)}
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": EMPTY, **made}))
    assert tokenizer.pre_tokenizer is not None
    found = by_structure(made["pre_tokenizer"], whole_words=name in WHOLE_WORDS)
    assert SPLITS[found] == SPLITS[name]
    assert (found in WHOLE_WORDS) == (name in WHOLE_WORDS)


def test_possessive_quantifiers_are_the_same_split():
    assert by_structure(split_then_bytes(LLAMA3.replace(r"\p{L}+", r"\p{L}++"))) == "llama-bpe"


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        section(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        section(pre_tokenizers.Whitespace()),
        split_then_bytes(r"\w+|\W+"),
        split_then_bytes(LLAMA3, "removed"),
        section(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel()])),
    ],
)
def test_others_are_not_guessed(pre_tokenizer):
    assert by_structure(pre_tokenizer) is None


def test_unknown_is_a_user_error_that_shows_it():
    with pytest.raises(UserError, match=r"Split\(.*pre=NAME"):
        identify({"pre_tokenizer": split_then_bytes(r"\w+|\W+")}, [1, 2, 3])


def test_the_converters_list_of_vocabularies_is_ours():
    """Needs llama.cpp's source tree: SLM_LLAMA_CPP names it (llama-cpp-python's source package holds one)."""
    source = os.environ.get("SLM_LLAMA_CPP")
    if not source:
        pytest.skip("SLM_LLAMA_CPP does not name a llama.cpp source tree (with convert_hf_to_gguf.py)")
    converter = (Path(source) / "conversion" / "base.py").read_text(encoding="utf-8")
    theirs = dict(re.findall(r'if chkhsh == "(\w{64})":(?:\s*#[^\n]*)*\s*res = "([^"]+)"', converter))
    not_byte_level = {"bert-bge", "bert-bge-large", "jina-v2-en"}  # WordPiece, of models that do not generate
    assert len(theirs) > 50
    assert {each: name for each, name in theirs.items() if name not in not_byte_level} == FINGERPRINTS
