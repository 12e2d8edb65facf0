"""/openapi.json, and whether the answers are what it says."""

import json

import httpx
import pytest
from pydantic import TypeAdapter

from slm.serve.api.anthropic.response_shapes import AnthropicError, AnthropicMessage
from slm.serve.api.errors import Error
from slm.serve.api.openai import response_shapes
from slm.serve.api.openapi import document
from slm.serve.api.routes.table import api_routes
from slm.serve.config import ServerOptions
from slm.serve.pool.model_pool import Pool, Served

# llama-server's names; every other route under /v1 is also there without it.
ALIASES = {"/completions", "/v1/health", "/rerank", "/reranking", "/v1/reranking"}
ALIASES |= {"/models", "/models/{model:path}", "/chat/completions", "/chat/completions/input_tokens", "/responses"}
ALIASES |= {
    "/responses/input_tokens",
    "/responses/{id}",
    "/stream",
    "/messages",
    "/messages/count_tokens",
    "/embeddings",
    "/score",
}
HELLO = [{"role": "user", "content": "hello"}]


def fits(cls: type, value: dict) -> None:
    """Strictly: no field more, none less, no conversion."""
    TypeAdapter(cls).validate_json(json.dumps(value), strict=True)


@pytest.mark.parametrize(
    ("path", "body", "cls"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 3}, response_shapes.Completion),
        ("/v1/completions", {"prompt": ["x", "y"], "n": 2, "logprobs": 2, "echo": True}, response_shapes.Completion),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}, response_shapes.ChatCompletion),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
            response_shapes.ChatCompletion,
        ),
        ("/v1/responses", {"input": "x", "max_output_tokens": 3}, response_shapes.Response),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 3}, AnthropicMessage),
        ("/v1/embeddings", {"input": ["x", "y"]}, response_shapes.Embeddings),
        ("/v1/embeddings", {"input": "x", "encoding_format": "base64"}, response_shapes.Embeddings),
        ("/tokenize", {"content": "x"}, response_shapes.Tokens),
        ("/detokenize", {"tokens": [1, 2]}, response_shapes.Text),
    ],
)
def test_answers(chat_server, path, body, cls):
    answer = httpx.post(chat_server.url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    fits(cls, answer.json())
    again = httpx.post(chat_server.url + path, json={**body, "nothing": 1})
    assert (again.status_code, again.headers["x-slm-ignored"]) == (200, "nothing")


@pytest.mark.parametrize(
    ("path", "body", "cls"),
    [
        ("/v1/completions", {"prompt": "x", "logprobs": 1, "echo": True}, response_shapes.Completion),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True}, response_shapes.ChatCompletionChunk),
    ],
)
def test_events(chat_server, path, body, cls):
    more = {"max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    events = httpx.post(chat_server.url + path, json={**body, **more}, timeout=30).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        fits(cls, json.loads(event.removeprefix("data: ")))


@pytest.mark.parametrize(
    ("path", "cls"),
    [
        ("/v1/models", response_shapes.Models),
        ("/v1/models/tiny-chat", response_shapes.Model),
        ("/tokenizer_info", response_shapes.TokenizerInfo),
        ("/tokenizer_info?model=tiny-chat", response_shapes.TokenizerInfo),
        ("/tokenizer_info?model=" + "x" * 600, response_shapes.TokenizerInfo),  # once a 500
        ("/health", response_shapes.Health),
    ],
)
def test_facts(chat_server, path, cls):
    fits(cls, httpx.get(chat_server.url + path).json())


def test_errors(chat_server):
    for method, path, status in (
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/" + "x" * 600, 404),
        ("POST", "/v1/completions", 400),
        ("POST", "/v1/messages", 400),
        ("GET", "/v1/messages", 405),
        ("DELETE", "/v1/completions", 405),
        ("GET", "/nothing", 404),
    ):
        answer = httpx.request(method, chat_server.url + path)
        assert answer.status_code == status
        fits(AnthropicError if path == "/v1/messages" else Error, answer.json())


def test_every_route_is_described(chat_server):

    schema = httpx.get(chat_server.url + "/openapi.json").json()
    pool = Pool([Served("x", None)], budget=None, max_waiting=1)
    routes = {
        (route.path.replace(":path", ""), method)
        for route in api_routes(pool, ServerOptions(), keyed=False)
        if route.path not in ALIASES
        for method in route.methods - {"HEAD"}
    }
    described = {(path, method.upper()) for path, methods in schema["paths"].items() for method in methods}
    assert routes - {("/openapi.json", "GET")} == described


def test_references_limits_and_keys():
    schema = document(ServerOptions(max_n=4, request_timeout_s=7.0), keyed=True)
    text = json.dumps(schema)
    names = schema["components"]["schemas"]
    for reference in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in names
    assert "$defs" not in text
    fields = names["CompletionRequest"]["properties"]
    assert fields["n"]["maximum"] == 4
    assert fields["timeout_s"]["default"] == 7.0
    assert {"type": "null"} in fields["temperature"]["anyOf"]
    assert fields["logit_bias"]["maxProperties"] == 1024
    assert names["CompletionRequest"]["required"] == ["prompt"]
    assert "additionalProperties" not in names["CompletionRequest"]
    strict = document(ServerOptions(strict_fields=True), keyed=True)["components"]["schemas"]
    assert strict["CompletionRequest"]["additionalProperties"] is False
    assert schema["security"] == [{"key": []}]
    assert schema["paths"]["/health"]["get"]["security"] == []
    assert "401" in schema["paths"]["/v1/completions"]["post"]["responses"]
    assert "security" not in document(ServerOptions(), keyed=False)


def test_vllms_form_of_tokenize(chat_server):
    url = chat_server.url + "/tokenize"
    text = "<|im_start|>user"
    ours = httpx.post(url, json={"content": text, "parse_special": True}).json()
    assert httpx.post(url, json={"prompt": text, "add_special_tokens": False}).json() == ours
    assert ours["count"] == len(ours["tokens"])
    for body in ({}, {"content": "x", "prompt": "x"}, {"content": None}):
        answer = httpx.post(url, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "content"
    info = httpx.get(chat_server.url + "/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>"
    assert "im_start" in info["chat_template"]
