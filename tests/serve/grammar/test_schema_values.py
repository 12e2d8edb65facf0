"""Numbers within bounds and strings of a pattern or format: what the grammar takes is what the schema allows.

``jsonschema``, which knows nothing of grammars, is the reference.
"""

import json
import random
import re
import string
from decimal import Decimal

import jsonschema
import pytest

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.messages import Delta, Failure, Generate, SamplingParams
from slm.serve.grammar.json_schema import schema_grammar
from slm.serve.grammar.patterns import FORMATS
from slm.serve.grammar.tree import GrammarError
from tests.helpers.gbnf_match import Matcher


def matcher(schema):
    return Matcher(schema_grammar(schema))


def allowed(schema: dict, number: Decimal) -> bool:
    """Exactly; ``jsonschema`` computes ``multipleOf`` with doubles."""
    checks = {
        "minimum": lambda limit: number >= limit,
        "maximum": lambda limit: number <= limit,
        "exclusiveMinimum": lambda limit: number > limit,
        "exclusiveMaximum": lambda limit: number < limit,
        "multipleOf": lambda unit: number % unit == 0,
    }
    whole = schema["type"] != "integer" or number == int(number)
    return whole and all(check(Decimal(str(schema[key]))) for key, check in checks.items() if key in schema)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_random_bounds(kind, seed):
    rng = random.Random(f"{kind} {seed}")
    n_schemas = 0
    while n_schemas < 12:
        schema = {"type": kind}
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if rng.random() < 0.4:
                whole = rng.choice([0, rng.randint(-20, 20), rng.randint(-2000, 2000)])
                schema[key] = whole if kind == "integer" else whole + rng.choice([0, 0.5, 0.25, 0.9, 0.125])
        if kind == "integer" and rng.random() < 0.5:
            schema["multipleOf"] = rng.choice([2, 3, 7, 10, 25, 400])
        try:
            matches = matcher(schema)
        except GrammarError as error:
            if "no number fits" in str(error):
                continue
            raise
        n_schemas += 1
        limits = [Decimal(str(value)) for key, value in schema.items() if key not in ("type", "multipleOf")] or [0]
        for _ in range(60):
            near = rng.choice(limits) + Decimal(rng.randint(-400, 400)) / rng.choice([1, 10, 100])
            number = (
                int(near) * (schema.get("multipleOf", 1) if rng.random() < 0.5 else 1) if kind == "integer" else near
            )
            text = f"{number:f}" if isinstance(number, Decimal) else str(number)
            assert matches(text) == allowed(schema, Decimal(text)), (schema, text)


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"type": "integer", "minimum": 18, "maximum": 130}, ["18", "99", "130"], ["17", "131", "018", "-20", "18.0"]),
        ({"type": "integer", "exclusiveMinimum": 0}, ["1", "9999999999999999"], ["0", "-1"]),
        ({"type": "integer", "exclusiveMaximum": -5}, ["-6", "-100"], ["-5", "5", "0", "6"]),
        ({"type": "integer", "multipleOf": 5, "minimum": 7}, ["10", "995"], ["5", "7", "11"]),
        ({"type": "integer", "multipleOf": 1000}, ["0", "-3000", "12000"], ["100", "0000", "1500"]),
        ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "1", "0.5", "1.000", "0.999999"], ["1.01", "-0.1", "2"]),
        (
            {"type": "number", "exclusiveMinimum": 0.25, "maximum": 0.75},
            ["0.2501", "0.75", "0.7500"],
            ["0.25", "0.751"],
        ),
        ({"type": "number", "maximum": -0.5}, ["-0.5", "-0.51", "-3"], ["-0.4", "0.5", "0"]),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["1.25", "0.1", "7"], ["1.255", "-1"]),
        ({"type": "number", "multipleOf": 2}, ["4", "-2"], ["3", "4.5"]),
        ({"minimum": 3}, ["3", "4.5"], ["2"]),
        ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2", "3.5"]),
        ({"type": "number", "exclusiveMaximum": 1e3}, ["999.9", "-1000000"], ["1000", "1000.0"]),
    ],
)
def test_numbers_by_hand(schema, fits, does_not):
    matches = matcher(schema)
    assert [text for text in fits if not matches(text)] == []
    assert [text for text in does_not if matches(text)] == []
    for text in fits:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "pattern",
    [
        "^[A-Z]{2}-[0-9]{3}$",
        "^a",
        "b$",
        "abc",
        "^(red|green|blue)?$",
        r"^\d{3}[.\-]?\w+$",
        "^[^a-z]{1,3}$",
        r'^"\\\s$',
        "^a.c$",
        "^x|y$",
        "^(?:ab)+?c*$",
        r"^[\w.-]+@[\w-]+\.[a-z]{2,}$",
        r"^\S\D\W$",
        "^é[ü-ý]?$",
        r"^\u0041\x42\t$",
        "",
    ],
)
def test_patterns_match_what_the_regular_expression_matches(pattern):
    matches = matcher({"type": "string", "pattern": pattern})
    rng = random.Random(pattern)
    alphabet = 'abcxyABC019 -._@"\\\t\u00e9\u00fc\u00fd/|' + string.ascii_lowercase[:4]
    samples = [
        "",
        "abc",
        "ab",
        "AB-123",
        "AB\t",
        "xy",
        "y",
        "red",
        "purple",
        "ababcc",
        "a.b@c.de",
        '"\\ ',
        "éü",
        "a\nc",
    ]
    samples += ["123.ab", "123ab", "Aa1", "A1-", "a c", "012-x_"]
    samples += ["".join(rng.choices(alphabet, k=rng.randint(0, 6))) for _ in range(400)]
    n_matched = 0
    for text in samples:
        # JSON has no other way to write these characters in this grammar.
        expected = re.search(pattern, text, re.ASCII) is not None and "\n" not in text[-1:]
        # In Python "$" also matches before a line's end, and JSON Schema's does not.
        assert matches(json.dumps(text, ensure_ascii=False)) == expected, (pattern, text)
        n_matched += expected
    assert n_matched


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"pattern": "(?!a)"}, "looking ahead"),
        ({"pattern": "(a"}, "a bracket is not closed"),
        ({"pattern": "a)"}, "a bracket is closed"),
        ({"pattern": "[a"}, "a [ is not closed"),
        ({"pattern": "[z-a]"}, "comes before its first"),
        ({"pattern": r"\bword"}, r"\b is not supported"),
        ({"pattern": r"(a)\1"}, r"\1 is not supported"),
        ({"pattern": r"\p{L}"}, r"\p is not supported"),
        ({"pattern": "a^"}, "^ is supported at the beginning"),
        ({"pattern": "(a$)"}, "$ is supported at the beginning or the end"),
        ({"pattern": "a{3,2}"}, "smaller than its first"),
        ({"pattern": "a{5000}"}, "up to 1000"),
        ({"pattern": "*"}, "nothing to repeat"),
        ({"pattern": "^[]$"}, "no character"),
        ({"pattern": "(a*)*"}, "may be empty"),
        ({"pattern": "(" * 40}, "nested"),
        ({"pattern": 3}, "pattern must be a string"),
        ({"format": "colour"}, "supported are date, time, date-time"),
        ({"format": "date", "pattern": "^2"}, "next to"),
        ({"pattern": "^a+$", "maxLength": 5}, "minLength and maxLength cannot narrow"),
        ({"format": "uuid", "maxLength": 30}, "36 to 36 characters"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number fits"),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "no number fits"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "no number fits"),
        ({"type": "integer", "multipleOf": 0.5}, "whole number"),
        ({"type": "number", "multipleOf": 0.25}, "0.1, 0.01"),
        ({"type": "integer", "multipleOf": 0}, "above 0"),
        ({"type": "integer", "multipleOf": 97}, "at most 64"),
        ({"type": "integer", "minimum": True}, "must be a number"),
        ({"type": "number", "maximum": 1e300}, "digits before the point"),
    ],
)
def test_what_cannot_be_expressed_is_refused(schema, why):
    with pytest.raises(GrammarError, match=re.escape(why)):
        schema_grammar(schema)


def test_lengths_that_a_pattern_keeps_anyway_are_taken():
    matches = matcher({"type": "string", "pattern": "^[a-z]{2,5}$", "minLength": 1, "maxLength": 8})
    assert matches('"abc"')
    assert not matches('"abcdef"')


GOOD = {
    "date": ["2026-11-21", "2024-02-28"],
    "time": ["08:30:00Z", "23:59:59.5+02:00"],
    "date-time": ["2026-11-21T08:30:00Z"],
    "duration": ["P3D", "PT1H30M", "P2W"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "email": ["ann.lee@example.com"],
    "hostname": ["localhost.lan", "a-b.example.org"],
    "ipv4": ["192.168.0.1", "255.255.255.255"],
    "ipv6": ["2001:db8:0:0:0:0:0:1"],
    "uri": ["https://example.com/a/b.html"],
}
BAD = {
    "date": ["2026-02-30", "2026-13-01", "26-1-1", "2026-04-31"],
    "time": ["24:00:00Z", "08:30", "08:60:00Z"],
    "date-time": ["2026-11-21 08:30:00Z", "2026-11-21"],
    "duration": ["P", "3D", "PT"],
    "uuid": ["123e4567e89b12d3a456426614174000"],
    "email": ["ann", "ann@", "@example.com", "a..b@example.com"],
    "hostname": ["-a.b", "a..b", ""],
    "ipv4": ["256.1.1.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["1:2:3", "g:0:0:0:0:0:0:1"],
    "uri": ["example", "http:/x"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    matches = matcher({"type": "string", "format": name})
    assert [text for text in GOOD[name] if not matches(json.dumps(text))] == []
    assert [text for text in BAD[name] if matches(json.dumps(text))] == []


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, threads=1))
    yield engine
    engine.close()


GENERATED = {
    "age": {"type": "integer", "minimum": 18, "maximum": 130},
    "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "dozens": {"type": "integer", "multipleOf": 12, "minimum": -100, "maximum": 100},
    "code": {"type": "string", "pattern": '^[A-Z]{2}[-"\\\\][0-9]{2,4}$'},
    **{name: {"type": "string", "format": name} for name in FORMATS},
}


def test_a_model_writes_valid_values(engine):
    """All at once, as properties of one object, by a random model."""
    schema = {"type": "object", "properties": GENERATED, "required": list(GENERATED), "additionalProperties": False}
    grammar, texts, ended = schema_grammar(schema), {str(seed): "" for seed in range(3)}, 0
    closing = tuple((ord(char), 4.0) for char in '"}]')
    for seed in texts:
        params = SamplingParams(seed=int(seed), grammar=grammar, temperature=1.5, logit_bias=closing)
        assert engine.handle(Generate(id=seed, prompt="x", sampling=params, max_tokens=480)) == []
    while engine.busy:
        for event in engine.step():
            assert not isinstance(event, Failure), event
            if isinstance(event, Delta):
                texts[event.id] += event.text
                ended += event.finish == "stop"
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    values = [json.loads(text) for text in texts.values() if text.rstrip().endswith("}")]
    for value in values:
        checker.validate(value)
        for name in FORMATS:
            assert re.fullmatch(FORMATS[name], value[name])
    assert values
    assert ended
