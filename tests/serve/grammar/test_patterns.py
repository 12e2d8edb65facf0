"""Patterns as ECMA writes them, against Python's ``re``, and the formats against jsonschema's own checks."""

import json
import random
import re

import jsonschema
import pytest

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import of_json, of_regex
from slm.serve.grammar.patterns import FORMATS, translated
from tests.helpers.fits import fits, written

PATTERNS = [
    "^[a-z]+$", "abc", "^a|b$", "^(a|b)$", r"^\d{3}-\d{2}$", r"\w+@\w+", "^[^0-9]{2,4}$", r"^[\]\[a-c]+$", "^[a&&b~]+$",
    r"^\/x\-y\.$", "^x{2,}y?$", r"^a+?b*?$", r"^(?:ab|cd){1,3}$", r"^(?<year>\d{4})$", r"^é\u00e9\x41$", "^{a}$",
    r"^[\w.+-]+$", r"^\S+ \S+$", "^$", r"^[a\-z]$", r"^[$^]$", r"^\$\^$", "^.{3}$", r"^[--/]{2}$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_they_mean_elsewhere(pattern):
    chance = random.Random(pattern)
    grammar = of_json({"type": "string", "pattern": pattern, "maxLength": 12}, strict=True).text
    theirs = re.compile(pattern.replace("(?<", "(?P<"), re.ASCII)
    for _ in range(6):
        text = written(grammar, chance)
        assert text is not None
        assert theirs.search(json.loads(text)), text
    for text in (
        "",
        "abc",
        "ab",
        "xb",
        "123-45",
        "a@b",
        "[]",
        "&&",
        "/x-y.",
        "xxy",
        "abcd",
        "2024",
        "éA",
        "{a}",
        "ééA",
    ):
        assert fits(grammar, json.dumps(text, ensure_ascii=False)) == bool(theirs.search(text)), text


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=x)", "ahead or behind"), ("a(?<!b)", "ahead or behind"), (r"(a)\1", "no equivalent"), ("[]", "empty"),
        ("[a", "no end"), (r"\u00", "does not name"), ("(?i)a", "group begins"), (r"\ud800", "does not name"),
    ],
)  # fmt: skip
def test_what_is_not_regular_is_refused(pattern, why):
    with pytest.raises(GrammarError, match=re.escape(why)):
        translated(pattern)


def test_pairs_of_surrogates_are_one_character():
    assert fits(of_regex(r"^\ud83d\ude42$").text, "🙂")


@pytest.mark.parametrize("name", FORMATS)
def test_texts_of_a_format_have_it(name):
    schema = {"type": "string", "format": name}
    grammar, chance = of_json(schema, strict=True).text, random.Random(name)
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for _ in range(4):
        text = written(grammar, chance)
        assert text is not None
        checker.validate(json.loads(text))
