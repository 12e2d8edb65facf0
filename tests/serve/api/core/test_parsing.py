import json

import pytest

from slm.serve.api.anthropic.requests import MessagesRequest
from slm.serve.api.core.parsing import parse
from slm.serve.api.core.requests import ChatRequest, CompletionRequest
from slm.serve.api.openai.responses import ResponsesRequest
from tests.helpers.api import error


def test_unknown_and_unsupported_parameters():
    said = error(CompletionRequest, {"prompt": "x", "temprature": 1})
    assert said["code"] == "unknown_parameter"
    assert "temperature" in said["message"]
    assert error(ChatRequest, {"messages": [], "functions": [{}]})["code"] == "unsupported"
    parse(ChatRequest, b'{"messages": [{"role": "user", "content": "x"}], "tools": [], "store": true}')


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": -Infinity}',
        b'{"prompt": ' + b"[" * 100_000,
    ],
)
def test_malformed_bodies(raw):
    assert error(CompletionRequest, raw)["code"] == "invalid_json"


TEXT = {"type": "text", "text": "x"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("cls", "body", "param", "said"),
    [
        (
            ChatRequest,
            {**CHAT, "response_format": {"type": "json_schema", "schema": {}}},
            "response_format.json_schema",
            "missing",
        ),
        (
            ChatRequest,
            {**CHAT, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing",
        ),
        (ChatRequest, {**CHAT, "tool_choice": {"type": "function"}}, "tool_choice.function", "missing"),
        (
            ResponsesRequest,
            {"input": [{"type": "function_call_output", "call_id": "1"}]},
            "input.0.output",
            "missing",
        ),
        (ResponsesRequest, {"input": [{"type": "image"}]}, "input.0", "its type must be message, function_call"),
        (ResponsesRequest, {"input": [{"role": "user"}]}, "input.0.content", "missing"),
        (
            MessagesRequest,
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
            "missing",
        ),
        (
            MessagesRequest,
            {
                "max_tokens": 5,
                "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citation": 1}]}],
            },
            "messages.0.content.0.citation",
            "Unknown parameter",
        ),
        (ChatRequest, {**CHAT, "stop": 5}, "stop", "should be"),
        (ChatRequest, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "should be"),
        (ChatRequest, {**CHAT, "tool_choice": 5}, "tool_choice", "should be"),
        (ResponsesRequest, {"input": 5}, "input", "should be"),
        (MessagesRequest, {"max_tokens": 5, "system": 5, **CHAT}, "system", "should be"),
    ],
)
def test_the_field_that_is_wrong_is_named_as_the_caller_knows_it(cls, body, param, said):
    found = error(cls, body)
    assert found["param"] == param
    assert said in found["message"]


def test_a_null_within_an_object_counts_as_not_given():
    tool = {"type": "function", "function": {"name": "now", "description": None, "parameters": None}}
    body = {**CHAT, "tools": [tool], "stream_options": {"include_usage": None}}
    found = parse(ChatRequest, json.dumps(body).encode())
    assert found.tools[0].function.parameters == {}
    assert not found.include_usage


def test_results_of_calls_may_come_in_parts():
    call = {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "It is "}, {"type": "input_text", "text": "noon."}]
    body = {"input": [call, {"type": "function_call_output", "call_id": "1", "output": parts}]}
    assert parse(ResponsesRequest, json.dumps(body).encode()).as_chat().messages[-1].text() == "It is noon."


def test_a_body_of_too_many_fields_is_refused():
    said = error(CompletionRequest, {"prompt": "x", **{f"k{i}": 1 for i in range(2000)}})
    assert "at most 1024" in said["message"]
