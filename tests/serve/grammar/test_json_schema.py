"""Text that a random model generates under a schema's grammar is valid under the schema."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.messages import Delta, Failure, Generate, SamplingParams
from slm.serve.grammar.gbnf import check
from slm.serve.grammar.json_schema import MAX_DEPTH, json_object_grammar, schema_grammar
from slm.serve.grammar.tree import GrammarError


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, threads=1))
    yield engine
    engine.close()


CLOSING = tuple((ord(char), 6.0) for char in '"}]')
"""A random model's texts would go on and on."""


def generate(engine, grammar, seeds=range(6), **sampling):
    """Texts and how they ended, at a temperature at which the model would say anything."""
    sampling = {"temperature": 1.5, **sampling}
    out = {str(seed): ["", None] for seed in seeds}
    for seed in seeds:
        params = SamplingParams(seed=seed, grammar=grammar, **sampling)
        assert engine.handle(Generate(id=str(seed), prompt="the", sampling=params, max_tokens=400)) == []
    while engine.busy:
        for event in engine.step():
            assert not isinstance(event, Failure), event
            if isinstance(event, Delta):
                out[event.id][0] += event.text
                out[event.id][1] = event.finish
    return list(out.values())


def valid(value, schema, root):
    """A validator of its own, for the keywords that are supported."""
    if schema is True:
        return True
    if "$ref" in schema:
        found = root
        for part in schema["$ref"].split("/")[1:]:
            found = found[part]
        return valid(value, found, root)
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        return False
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        return False
    if "anyOf" in schema and not any(valid(value, each, root) for each in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(valid(value, each, root) for each in schema["oneOf"]) != 1:
        return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_a = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "null": value is None,
    }
    if kinds and not any(is_a[kind] for kind in kinds):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        more = schema.get("additionalProperties", True)
        if any(name not in value for name in schema.get("required", [])):
            return False
        for name, each in value.items():
            rule = known.get(name, more)
            if rule is False or not valid(each, rule, root):
                return False
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9):
            return False
        return all(valid(each, schema.get("items", True), root) for each in value)
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9)
    return True


SHORT = {"type": "string", "maxLength": 6}
SCHEMAS = {
    "properties": {
        "type": "object",
        "properties": {"a": SHORT, "b": {"type": "integer"}, "c": {"type": "boolean"}, 'd "e"\n': {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "all optional": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
    },
    "string lengths": {"type": "string", "minLength": 3, "maxLength": 4},
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "maxItems": 0},
    "number": {"type": "number", "description": "any"},
    "enum": {"enum": ["red", "gr\u00fcn", 3, None, {"x": [1]}, True]},
    "typed enum": {"type": "string", "enum": ["red", 3]},
    "const": {"const": {"k": ["v", 1.5]}},
    "types": {"type": ["string", "null"], "maxLength": 3},
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "s": SHORT}, "required": ["kind", "s"]},
            {"type": "null"},
        ]
    },
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "no properties": {"type": "object", "additionalProperties": False},
    "recursive": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "v": {"type": "boolean"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["v"],
            }
        },
    },
    "inferred": {"properties": {"a": {"minLength": 1, "maxLength": 2}}, "required": ["a"]},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_generated_is_valid(name, engine):
    schema = SCHEMAS[name]
    ended = 0
    for text, finish in generate(engine, schema_grammar(schema), logit_bias=CLOSING):
        if finish == "stop":
            ended += 1
            assert valid(json.loads(text), schema, schema), text
    assert ended >= 3, "too few texts came to an end to tell anything"


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"top_k": 5}, {"typical_p": 0.5}, {"min_p": 0.3, "top_p": 0.5}]
)
def test_every_link_of_the_chain_keeps_to_the_grammar(engine, sampling):
    schema = SCHEMAS["properties"]
    for text, finish in generate(engine, schema_grammar(schema), range(3), **sampling):
        assert finish == "stop" or len(text) > 50
        if finish == "stop":
            assert valid(json.loads(text), schema, schema)


def test_any_json_object(engine):
    texts = generate(engine, json_object_grammar(), logit_bias=CLOSING)
    ended = [json.loads(text) for text, finish in texts if finish == "stop"]
    assert len(ended) >= 3
    assert all(isinstance(value, dict) for value in ended)


def test_a_grammar_and_a_ban_that_leave_nothing_are_an_error(engine):
    params = SamplingParams(temperature=0, grammar='root ::= "x"', logit_bias=((ord("x"), float("-inf")),))
    engine.handle(Generate(id="a", prompt="the", sampling=params, max_tokens=5))
    events = []
    while engine.busy:
        events += engine.step()
    assert isinstance(events[-1], Failure)
    assert events[-1].code == "invalid_request"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string", "pattern": "(?=a)"}, "looking ahead"),
        ({"type": "string", "format": "iri"}, "'format' 'iri' is not supported"),
        ({"type": "integer", "minimum": "3"}, "minimum must be a number"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "/properties/a: the keyword 'not'"),
        ({"type": "object", "patternProperties": {}}, "'patternProperties'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"allOf": [{"type": "string"}, {"maxLength": 2}]}, "'allOf'"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "0 and 1 may overlap"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 2}]}, "may overlap"),
        ({"anyOf": [{"type": "string"}], "maxLength": 2}, "'maxLength' next to 'anyOf'"),
        ({"$ref": "#/$defs/none"}, "points to nothing"),
        ({"$ref": "https://example.com/schema"}, "into this document"),
        ({"$ref": "#"}, "never come to an end"),
        ({"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}, "never come to an end"),
        ({"type": "colour"}, "type must be one of"),
        ({"type": []}, "type must be one of"),
        ({"type": ["string", 3]}, "type must be one of"),
        ({"type": [[]]}, "type must be one of"),
        ({"enum": []}, "no value"),
        ({"enum": "red"}, "must be a list"),
        ({"type": "integer", "enum": ["a"]}, "no value"),
        ({"type": "object", "required": ["a"]}, "required names 'a'"),
        ({"type": "object", "properties": []}, "must be an object"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "smaller"),
        ({"type": "string", "maxLength": 10**6}, "from 0 to 1000"),
        ({"type": "string", "minLength": "3"}, "whole number"),
        ({"type": "array", "items": 3}, "must be a schema"),
        ({"anyOf": []}, "list of schemas"),
        ({"items": False}, "must be a schema"),
        ({"description": "x" * 70_000}, "longer than"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(schema, why):
    with pytest.raises(GrammarError, match=re.escape(why)):
        schema_grammar(schema)


def test_deep_schemas_are_refused():
    schema = {"type": "boolean"}
    for _ in range(MAX_DEPTH + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="levels deep"):
        schema_grammar(schema)


NAMES = st.sampled_from(["a", "b", 'c "d"', "ü\n"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "integer"}),
    st.just({"type": "number"}),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more}, *[st.integers(0, 4)] * 2
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from([1, "x", None, True, {"y": []}]), min_size=1)),
    st.builds(lambda value: {"const": value}, st.sampled_from([0, "", [1, "é"], False])),
    st.just({"$ref": "#/$defs/pair"}),
)


def _object(properties, required):
    return {"type": "object", "properties": properties, "required": [name for name in required if name in properties]}


def _array(items, low, more):
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + more}


ANY_SCHEMA = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=4), st.lists(NAMES)),
        st.builds(_array, inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda options: {"oneOf": options}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=ANY_SCHEMA, seed=st.integers(0, 2**32 - 2))
def test_any_supported_schema_is_kept_to(engine, schema, seed):
    schema = {**schema, "$defs": {"pair": _array({"type": "boolean"}, 2, 0)}}
    if "oneOf" in json.dumps(schema):
        try:
            grammar = schema_grammar(schema)
        except GrammarError:
            return  # its schemas may overlap; all else here is supported
    else:
        grammar = schema_grammar(schema)
    ((text, finish),) = generate(engine, grammar, [seed], logit_bias=CLOSING)
    if finish == "stop":
        assert valid(json.loads(text), schema, schema), text


def test_an_ambiguous_grammar_is_given_up_and_others_go_on(engine):
    # After n letters there are 2^n ways to go on.
    grammar = check('root ::= r\nr ::= "a" r "x" | "a" r "y" | "a"\n')
    bias = ((ord("a"), 30.0),)
    params = SamplingParams(temperature=0, grammar=grammar, logit_bias=bias)
    engine.handle(Generate(id="slow", prompt="the", sampling=params, max_tokens=100))
    engine.handle(Generate(id="other", prompt="the", sampling=SamplingParams(), max_tokens=40))
    events = []
    while engine.busy:
        events += engine.step()
    last = {event.id: event for event in events}
    assert isinstance(last["slow"], Failure)
    assert last["slow"].code == "invalid_request"
    assert "ambiguous" in last["slow"].message
    assert last["other"].finish
