"""Bodies and schemas that nobody would think of: the parser and the conversion to grammars, without a server. Numbers
are those of the reliability list (docs/results/serving-reliability.md).

SLM_FUZZ_CASES sets how many cases each has (1,000 for the figures there).
"""

import json
import os
import time
from dataclasses import fields

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slm.serve.api.core.parsing import parse
from slm.serve.api.core.requests import ChatRequest, CompletionRequest
from slm.serve.api.core.token_requests import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from slm.serve.api.errors import ApiError
from slm.serve.api.openai.responses import ResponsesRequest
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Failure, Generate, ModelInfo, SamplingDefaults, SamplingParams
from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import of_json

N_CASES = int(os.environ.get("SLM_FUZZ_CASES", "150"))
LIMITS = settings(
    max_examples=N_CASES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
KINDS = [CompletionRequest, ChatRequest, ResponsesRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest]
SIZES = {"n_vocab": 300, "n_embd": 8, "context": 64, "sampling": SamplingDefaults()}
INFO = ModelInfo(**{field.name: 0 for field in fields(ModelInfo)} | SIZES)
NAMES = sorted({name for cls in KINDS for name in cls.model_fields} | {"tools", "user", "x"})

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 299, 300, 2**31, 2**63, -(2**63) - 1, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["", "text", "user", "\0", "\ud800", "json_schema", "json_object", "input_text", "x" * 70_000]),
)
KEYS = st.sampled_from(["type", "role", "content", "text", "schema", "name", "json_schema", "1", "\ud83d"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)


def refused(call) -> Exception | None:
    try:
        call()
    except (ApiError, GrammarError) as error:
        return error
    return None


def checked(cls, raw: bytes) -> None:
    """All that happens to a body before the engine sees it."""
    request = parse(cls, raw)
    if cls in (CompletionRequest, ChatRequest):
        request.sampling(INFO, request.constraint())
    if cls is CompletionRequest:
        prompts = request.prompts(INFO)
        assert all(token < 300 for each in prompts if not isinstance(each, str) for token in each)


@LIMITS
@given(cls=st.sampled_from(KINDS), body=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
def test_any_body_is_read_or_refused(cls, body):
    """List, 14 and 15: whatever a body holds, it is a checked request or an ``ApiError`` 400 in words, at once."""
    began = time.perf_counter()
    refusal = refused(lambda: checked(cls, json.dumps(body).encode()))
    assert time.perf_counter() - began < 5
    if refusal is not None:
        assert refusal.status == 400
        assert 0 < len(refusal.body["error"]["message"]) < 2000
        json.dumps(refusal.body, allow_nan=False)


@LIMITS
@given(raw=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_refused_in_words(raw):
    """List, 14: bytes that are no JSON object are ``invalid_json``, and nothing else happens."""
    refusal = refused(lambda: parse(TokenizeRequest, raw))
    if refusal is None:
        assert json.loads(raw) == {}  # the one object that random bytes come upon, and a body without a parameter
        return
    assert refusal.status == 400
    assert refusal.response().body


WORDS = st.sampled_from(
    ["type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength",
     "maxLength", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "title", "pattern", "format", "minimum",
     "not", "if", "prefixItems", "uniqueItems", "description", "default"]
)  # fmt: skip
TYPES = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null", "any", ""])
POINTERS = st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/items", "#/anyOf/0", "#/x", "", "a.json", "#/~2"])
PARTS = st.one_of(SCALARS, TYPES, POINTERS, st.integers(0, 5), st.lists(TYPES, max_size=3), st.just({}))
ODD_SCHEMAS = st.recursive(
    PARTS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(WORDS, inner, max_size=4)
    | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    # Those that have a chance to be supported.
    | st.builds(lambda given, names: {"type": "object", "properties": dict.fromkeys(names, given), "required": names},
                inner, st.lists(st.sampled_from(["a", "b"]), unique=True, max_size=2))
    | st.builds(lambda given: {"type": "array", "items": given, "maxItems": 2}, inner)
    | st.builds(lambda kind, given: {kind: given}, st.sampled_from(["anyOf", "oneOf"]), st.lists(inner, max_size=3)),
    max_leaves=12,
)  # fmt: skip
CLOSING = (*((ord(char), 8.0) for char in '"}],'), (ord(" "), -5.0), (ord("\n"), -100.0))


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, context=256, slots=1, threads=1))
    yield engine
    engine.close()


@LIMITS
@given(schema=ODD_SCHEMAS, seed=st.integers(0, 2**32 - 1))
def test_any_schema_is_kept_to_or_refused(engine, schema, seed):
    """List, 15: a schema is refused in words, or all that is generated is valid under it, as the jsonschema library
    sees it. Never is anything generated without it."""
    began = time.perf_counter()
    refusal = refused(lambda: of_json(schema, strict=True))
    assert time.perf_counter() - began < 5
    if refusal is not None:
        assert len(str(refusal)) < 1000
        # Not strictly, it is relaxed in words, or no schema at all.
        assert refused(lambda: of_json(schema)) or of_json(schema).warnings
        return
    grammar = of_json(schema, strict=True).text
    sampling = SamplingParams(seed=seed, grammar=grammar, logit_bias=CLOSING)
    at_once = engine.handle(Generate(id="a", prompt="x", max_tokens=200, sampling=sampling))
    assert at_once == []
    text = ""
    while engine.busy:
        for event in engine.step():
            assert not isinstance(event, Failure), event
            if isinstance(event, Delta):
                text, finish = text + event.text, event.finish
    if finish == "stop":
        # A list of items is a tuple in older drafts only.
        old = '"items": [' in json.dumps(schema)
        draft = jsonschema.Draft7Validator if old else jsonschema.Draft202012Validator
        draft(schema).validate(json.loads(text))
