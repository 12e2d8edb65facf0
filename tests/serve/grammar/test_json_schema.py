"""Schemas as clients' libraries write them. Random texts of what is not relaxed are valid under ``jsonschema``."""

import json
import random

import jsonschema
import pytest
from referencing.jsonschema import EMPTY_REGISTRY

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import of_json
from slm.serve.grammar.json_schema import enforceable
from tests.helpers.fits import fits, written

STRING, INTEGER = {"type": "string", "maxLength": 5}, {"type": "integer", "minimum": 0, "maximum": 99}
NODE = {"type": "object", "properties": {"v": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "required": ["v", "next"]}  # fmt: skip

NODE_OF = {"type": "object", "properties": {"v": INTEGER}, "required": ["v"]}

ENFORCED = {
    "properties": {
        "type": "object",
        "properties": {"a": STRING, "b": INTEGER, "c": {"type": "boolean"}, 'd "e"\n': {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "all optional": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 4},
    "lengths beyond 1,000": {"type": "string", "maxLength": 100_000},
    "counts beyond 1,000": {"type": "array", "items": {"type": "null"}, "maxItems": 5000},
    "array": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "maxItems": 0},
    "number": {"type": "number", "description": "any"},
    "bounds": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 500},
    "enum": {"enum": ["red", "grün", 3, None, {"x": [1]}, True]},
    "typed enum": {"type": "string", "enum": ["red", 3]},
    "const": {"const": {"k": ["v", 1.5]}},
    "types": {"type": ["string", "null"], "maxLength": 3},
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": INTEGER}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "s": STRING}, "required": ["kind", "s"]},
            {"type": "null"},
        ]
    },
    "recursive": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False},
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [STRING, INTEGER],
        "additionalItems": False,
    },
    "map": {"type": "object", "additionalProperties": INTEGER},
    "one or more": {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1},
    "names by pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}, "additionalProperties": INTEGER},
    "names by list": {
        "type": "object",
        "propertyNames": {"enum": ["x", "y"]},
        "additionalProperties": STRING,
        "required": ["x", "y"],
    },
    "names of zod": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER},
    "pattern properties": {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
    "never": {"type": "object", "properties": {"a": {"not": {}}, "b": INTEGER}, "required": ["b"]},
    "not null": {"type": "object", "properties": {"a": {"not": {"type": "null"}}}, "required": ["a"]},
    "base and more": {
        "allOf": [
            {"$ref": "#/definitions/Base"},
            {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]},
        ],
        "definitions": {"Base": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}},
    },
    "type beside": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "anyOf": [{"const": "x"}, {"const": "y"}]},
            "b": {"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 5}]},
            "c": {"type": "object", "$ref": "#/$defs/C", "description": "next to it"},
        },
        "required": ["a", "b", "c"],
        "$defs": {"C": {"type": "object", "properties": {"d": INTEGER}, "required": ["d"]}},
    },
    "type beside a reference to itself": {
        "type": "object",
        "properties": {"inner": {"type": "object", "$ref": "#"}, "n": INTEGER},
        "required": ["n"],
    },
    "percent-encoded": {
        "$ref": "#/%24defs/List%3Cint%3E",
        "$defs": {"List<int>": {"type": "array", "items": INTEGER, "maxItems": 3}},
    },
    "anchor": {"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "boolean"}}},
    "format and pattern": {"type": "string", "format": "date", "pattern": "^20"},
    "notes": {"type": "object", "x-order": 1, "$comment": "c", "properties": {"a": {**INTEGER, "x-unit": "m"}}},
    "boolean schemas": {"type": "object", "properties": {"a": False, "b": INTEGER}, "required": ["b"]},
    "one item": {"type": "array", "items": INTEGER, "uniqueItems": True, "maxItems": 1},
    "nothing unevaluated": {"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False},
    "no type": {"properties": {"a": INTEGER}, "required": ["a"]},
    # As libraries write them.
    "pydantic": {
        "$defs": {
            "Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"},
            "Cat": {"properties": {"kind": {"const": "cat", "default": "cat", "title": "Kind", "type": "string"},
                                   "lives": {"maximum": 9, "minimum": 1, "title": "Lives", "type": "integer"}},
                    "required": ["kind", "lives"], "title": "Cat", "type": "object"},
            "Dog": {"properties": {"kind": {"const": "dog", "title": "Kind", "type": "string"},
                                   "color": {"$ref": "#/$defs/Color", "description": "of its fur"}},
                    "required": ["kind", "color"], "title": "Dog", "type": "object"},
        },
        "properties": {
            "pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
                    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "title": "Pet"},
            "size": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "number"}],
                     "title": "Size", "type": "array"},
            "note": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}], "default": None, "title": "Note"},
        },
        "required": ["pet", "size"],
        "title": "Owner",
        "type": "object",
    },
    "zod 4": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email", "pattern": "^[a-z]+@[a-z]+\\.[a-z]{2,}$"},
            "id": {"type": "string", "format": "uuid", "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-"
                   "[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000)$"},
            "n": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
            "scores": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
        },
        "required": ["email", "id", "n", "scores"],
        "additionalProperties": False,
    },
    "Vercel's AI SDK": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "steps": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"do": STRING},
                      "required": ["do"], "additionalProperties": False}},
            "kind": {"type": "string", "enum": ["plan", "act"]},
            "limit": {"type": "integer", "exclusiveMinimum": 0},
        },
        "required": ["steps", "kind"],
        "additionalProperties": False,
    },
    "LangChain": {
        "title": "joke",
        "description": "Joke to tell user.",
        "type": "object",
        "properties": {
            "setup": {"type": "string", "description": "The setup of the joke", "maxLength": 9},
            "rating": {"type": "integer", "description": "How funny, from 1 to 10", "default": None},
        },
        "required": ["setup"],
    },
    "instructor": {
        "$defs": {"Item": {"properties": {"name": STRING, "tags": {"items": STRING, "title": "Tags", "type": "array"}},
                           "required": ["name", "tags"], "title": "Item", "type": "object"}},
        "properties": {"items": {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array", "maxItems": 2}},
        "required": ["items"],
        "title": "Items",
        "type": "object",
    },
    "Java": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"Money-1": {"type": "object", "properties": {"amount": {"type": ["number", "null"]}}}},
        "type": "object",
        "properties": {"price": {"allOf": [{"$ref": "#/$defs/Money-1"}, {"description": "before tax"}]},
                       "days": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Money-1"}}},
    },
    "required by a pattern": {
        "type": "object",
        "patternProperties": {"^n_": INTEGER},
        "required": ["n_a"],
        "additionalProperties": False,
    },
    "required next to patterns": {"type": "object", "patternProperties": {"^n_": INTEGER}, "required": ["n_a", "b"]},
    "a choice that no value fits": {
        "anyOf": [{"$ref": "#/$defs/Bad"}, {"type": "array", "items": {"$ref": "#/$defs/Never"}}, INTEGER],
        "$defs": {"Bad": {"type": "object", "required": ["a"], "additionalProperties": False}, "Never": False},
    },
    "a choice that never ends": {
        "type": "object",
        "properties": {"a": {"anyOf": [{"$ref": "#/$defs/Endless"}, INTEGER]}},
        "required": ["a"],
        "$defs": {"Endless": {"type": "object", "properties": {"const": {"$ref": "#/$defs/Endless"}},
                              "required": ["const"]}},
    },
    "type beside a choice that holds itself": {
        "$ref": "#/$defs/If",
        "$defs": {
            "If": {
                "anyOf": [
                    {"type": "object", "properties": {"not": {"type": "object", "anyOf": [{"$ref": "#/$defs/If"}]}}},
                    {"type": "object", "properties": {"is": INTEGER}, "required": ["is"]},
                ],
                "type": "object",
            }
        },
    },
    "64 bits": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "an old flag": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "$schema": "http://json-schema.org/draft-04/schema#"},
}  # fmt: skip


def validator(schema):
    draft = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return draft(schema, format_checker=draft.FORMAT_CHECKER, registry=EMPTY_REGISTRY)


@pytest.mark.parametrize("name", ENFORCED)
def test_texts_are_valid(name):
    schema = ENFORCED[name]
    grammar, chance = of_json(schema, strict=True), random.Random(name)
    assert grammar.warnings == ()
    checker = validator(schema)
    texts = [text for _ in range(6) if (text := written(grammar.text, chance)) is not None]
    assert texts
    for text in texts:
        checker.validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "word", "text"),
    [
        ({"type": "array", "items": INTEGER, "uniqueItems": True}, "/: 'uniqueItems'", "[1, 1]"),
        ({"type": "string", "pattern": "^(?!a)b"}, "'pattern' '^(?!a)b' is not enforced: it looks ahead", '"a"'),
        ({"properties": {"a": {"type": "string", "format": "regex"}}}, "/properties/a: 'format' 'regex'", '{"a": "("}'),
        ({"type": "object", "if": {}, "then": False}, "'if'", "{}"),
        ({"type": "array", "contains": INTEGER, "items": INTEGER}, "'contains'", "[]"),
        (
            {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": INTEGER}},
            "'dependentReq",
            '{"a": 1}',
        ),
        ({"not": {"const": 3}, "type": "integer"}, "'not'", "3"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "0 and 1 may overlap", '"a"'),
        ({"type": "object", "additionalProperties": INTEGER, "minProperties": 2}, "may repeat", '{"a": 1, "a": 1}'),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 2}, "'minProperties'", "{}"),
        ({"type": "date"}, "type 'date'", '{"a": 1}'),
        ({"$ref": "https://example.com/x.json"}, "is not in this schema", "7"),
        ({"$ref": "#/$defs/none"}, "points to nothing", "7"),
        ({"const": 2**60}, "beyond 2^53", "1"),
        ({"typ": "string"}, "'typ' is not a keyword", "1"),
        ({"properties": {"a": {}}, "additionalProperties": True, "minProperties": 1}, "'minProperties'", "{}"),
        ({"type": "array", "prefixItems": INTEGER}, "'prefixItems' is one schema and not a list", "[1, 2, 3]"),
        ({"type": "string", "format": "uri", "pattern": "^mailto:"}, "'format' 'uri' next to", '"mailto:x"'),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/List", "minItems": 1}, "b": INTEGER},
                "required": ["b"],
                "$defs": {
                    "List": {
                        "type": "array",
                        "items": {"type": "object", "properties": {"more": {"$ref": "#/$defs/List", "minItems": 1}}},
                    }
                },
            },
            "what a schema that holds itself is combined with",
            '{"a": [{"more": []}], "b": 1}',
        ),
        ({"allOf": [{"$ref": "#/$defs/a"}], "unevaluatedProperties": False, "$defs": {"a": {}}}, "'unevaluatedP", "{}"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema, word, text):
    """It is relaxed to a looser rule; strictly, the same is refused."""
    grammar = of_json(schema)
    assert any(word in each for each in grammar.warnings), grammar.warnings
    assert fits(grammar.text, text)
    with pytest.raises(GrammarError) as refused:
        of_json(schema, strict=True)
    assert word in str(refused.value)


def test_the_rest_is_enforced():
    """One place that cannot be enforced leaves the others as they are."""
    for part in (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}, "minProperties": 1},
        {"type": "array", "items": {"$ref": "#/properties/p", "minItems": 1}},
    ):
        grammar = of_json({"properties": {"p": part, "q": INTEGER}, "required": ["q"]}).text
        assert fits(grammar, '{"q": 1}')
        assert not fits(grammar, '{"q": "x"}')
        assert not fits(grammar, '{"p": 3, "q": 1}')


def test_what_contradicts_a_reference_is_ignored():
    """Before the draft of 2019, a reference held alone."""
    schema = {"properties": {"a": {"type": "string", "$ref": "#/$defs/P"}}, "required": ["a"], "$defs": {"P": NODE_OF}}
    grammar = of_json(schema)
    assert grammar.warnings == ("schema at /properties/a: type next to '$ref' is not enforced",)
    assert fits(grammar.text, '{"a": {"v": 3}}')
    assert not fits(grammar.text, '{"a": "x"}')
    with pytest.raises(GrammarError, match="cannot be enforced"):
        of_json(schema, strict=True)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": 5}, "type must be"),
        ({"properties": []}, "properties must be"),
        ({"required": [1]}, "required must be"),
        ({"anyOf": []}, "anyOf must be"),
        ({"enum": []}, "enum must be"),
        ({"minLength": -1}, "minLength must be"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "maxLength is smaller"),
        ({"items": 3}, "must be a schema"),
        ({"not": {}}, "allows no value"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "without end"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "comes to an end"),
        ({"type": "string", "pattern": "^a$", "const": "b"}, "cannot be enforced"),
        ({"description": "x" * 300_000}, "longer than"),
    ],
)
def test_what_is_no_schema_is_refused(schema, word):
    """Where a reference leads nowhere, any value is allowed; the other schemas have no looser rule."""
    if word == "without end":
        assert any(word in each for each in of_json(schema).warnings)
    else:
        with pytest.raises(GrammarError, match=word):
            of_json(schema)
    with pytest.raises(GrammarError, match=word):
        of_json(schema, strict=True)


def test_notes_are_named_and_still_strict():
    """A format that JSON Schema does not know constrains nothing by its rules."""
    schema = {"type": "object", "properties": {"p": {"type": "string", "format": "path"}}}
    made, warnings = enforceable(schema, strict=True)
    assert warnings == ["schema at /properties/p: 'format' 'path' is not one of JSON Schema's and is ignored"]
    assert made["properties"] == {"p": {"type": "string"}}


def test_nullable_allows_null():
    grammar = of_json(
        {"type": "object", "properties": {"a": {"type": "integer", "nullable": True}}, "required": ["a"]}
    ).text
    assert fits(grammar, '{"a": null}')
    assert fits(grammar, '{"a": 3}')
    assert not fits(grammar, '{"a": "x"}')


def test_an_object_that_names_its_properties_has_no_others():
    assert not fits(of_json({"properties": {"a": INTEGER}}).text, '{"a": 1, "b": 2}')
    assert fits(of_json({"properties": {"a": INTEGER}, "additionalProperties": True}).text, '{"a": 1, "b": 2}')


@pytest.mark.parametrize("n", [1000, 3000])
def test_long_chains_of_references_end_no_process(n):
    links = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(n)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**links, f"d{n}": {"type": "null"}}}
    assert fits(of_json(schema).text, '{"a": {"a": {}}}')


def test_what_is_too_deep_is_named():
    schema = {"type": "null"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert any("levels deep" in each for each in of_json(schema).warnings)
