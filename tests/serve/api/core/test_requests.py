import json
from dataclasses import fields

import pytest

from slm.serve.api.core.parsing import parse
from slm.serve.api.core.requests import ChatRequest, CompletionRequest
from slm.serve.api.errors import ApiError
from slm.serve.engine.protocol import ModelInfo
from tests.helpers.api import error

_BLANK = {field.name: 0 for field in fields(ModelInfo) if field.name != "sampling"}
INFO = ModelInfo(**{**_BLANK, "n_vocab": 100})


def test_defaults_and_nulls():
    body = parse(CompletionRequest, b'{"prompt": "x", "temperature": null, "stop": null, "user": "me"}')
    assert (body.temperature, body.max_tokens, body.n, body.stops()) == (None, 16, 1, ())
    sampling = body.sampling(INFO)
    assert 0 <= sampling.seed < 2**32
    assert parse(CompletionRequest, b'{"prompt": "x", "stop": "a", "seed": 5}').sampling(INFO).seed == 5


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
        ([1, "a", 2], [(1, "a", 2)]),
        (["a", [1, 2], ["b", 3]], ["a", (1, 2), ("b", 3)]),
    ],
)
def test_shapes_of_prompts(prompt, expected):
    body = parse(CompletionRequest, json.dumps({"prompt": prompt}).encode())
    assert body.prompts(INFO) == expected


@pytest.mark.parametrize("prompt", [[], [[]], 5, [1, [2]], [-1], [1.5], {"a": 1}, [True]])
def test_bad_prompts(prompt):
    assert error(CompletionRequest, {"prompt": prompt})["param"] == "prompt"


def test_token_ids_out_of_range():
    with pytest.raises(ApiError, match="100 is not a token id"):
        parse(CompletionRequest, b'{"prompt": [99, 100]}').prompts(INFO)
    for key in ("100", "", "9" * 30):
        body = parse(CompletionRequest, json.dumps({"prompt": "x", "logit_bias": {key: 1}}).encode())
        with pytest.raises(ApiError, match="logit_bias"):
            body.sampling(INFO)
    body = parse(CompletionRequest, b'{"prompt": "x", "logit_bias": {"7": -100, "8": 5}}')
    assert body.sampling(INFO).logit_bias == ((7, float("-inf")), (8, 5.0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 1.1),
        ("min_p", -1),
        ("top_k", 1.5),
        ("n", 0),
        ("n", 10**30),
        ("max_tokens", -2),
        ("presence_penalty", 3),
        ("repeat_penalty", 0),
        ("logprobs", 100),
        ("stop", ["x"] * 17),
        ("stop", [1]),
        ("seed", 2**70),
        ("stream", "yes"),
        ("stream_options", {"include_usages": True}),
        ("logit_bias", {"1": 101}),
    ],
)
def test_bad_values_name_the_parameter(field, value):
    assert error(CompletionRequest, {"prompt": "x", field: value})["param"].startswith(field)


def test_messages():
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    body = parse(ChatRequest, json.dumps({"messages": [parts]}).encode())
    assert body.messages[0].text() == "ab"
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    for bad in ([], [{"role": "boss", "content": "x"}], [{"role": "user"}], [image]):
        assert error(ChatRequest, {"messages": bad})["param"].startswith("messages")


def test_chat_limits_and_logprobs():
    message = [{"role": "user", "content": "x"}]

    def chat(**more):
        return parse(ChatRequest, json.dumps({"messages": message, **more}).encode())

    assert chat().limit() is None
    assert chat(max_tokens=3).limit() == 3
    assert chat(max_tokens=3, max_completion_tokens=4).limit() == 4
    assert chat().n_top() is None
    assert chat(logprobs=True).n_top() == 0
    assert chat(logprobs=True, top_logprobs=2).n_top() == 2
    with pytest.raises(ApiError, match="logprobs=true"):
        chat(top_logprobs=2).n_top()


def test_vllms_constraints():
    def constraint(**given):
        return parse(CompletionRequest, json.dumps({"prompt": "x", "structured_outputs": given}).encode()).constraint()

    schema = {"type": "object"}
    assert constraint(json_object=True).text == constraint(json=schema).text
    assert constraint(json_object=False) is None
    with pytest.raises(ApiError, match="json and json_object exclude each other"):
        constraint(json_object=True, json={})
    with pytest.raises(ApiError, match="structural_tag is not supported") as refused:
        constraint(structural_tag="x")
    assert refused.value.body["error"]["param"].startswith("structured_outputs")
    with pytest.raises(ApiError, match="exclude each other"):
        constraint(regex="a", choice=["a"])
