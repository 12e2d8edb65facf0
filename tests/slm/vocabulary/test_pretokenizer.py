import json

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from slm.data.errors import UserError
from slm.vocabulary.pretokenizer import SPLIT_PATTERNS, by_structure, identify

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = next(regex for regex, name in SPLIT_PATTERNS.items() if name == "llama-bpe")


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


@pytest.mark.parametrize(("regex", "name"), SPLIT_PATTERNS.items())
def test_known_patterns(regex, name):
    assert by_structure(split_then_bytes(regex)) == name
    assert by_structure(split_then_bytes(regex, "removed", True)) == name


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
