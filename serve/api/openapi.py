"""The OpenAPI document: every route with its bodies, limits, defaults, responses and errors.

It is written out here because the routes read their bodies themselves: for the limits, and for OpenAI's form of errors.
The shapes of the bodies come from the types that the routes use.

Tested in tests/serve/api/openai/test_openapi.py, tests/serve/api/openai/test_openapi_cases.py.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from slm.serve.api.anthropic.requests import CountTokensRequest, MessagesRequest
from slm.serve.api.anthropic.response_shapes import AnthropicError, AnthropicMessage, AnthropicTokens
from slm.serve.api.client_fields import HEADER, RULES
from slm.serve.api.core import kept_streams
from slm.serve.api.core.requests import ChatRequest, CompletionRequest
from slm.serve.api.core.token_requests import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from slm.serve.api.described import GENERATION, MODELS, TOKENS, Post
from slm.serve.api.errors import Error
from slm.serve.api.native.described import GETS as NATIVE_GETS
from slm.serve.api.native.described import POSTS as NATIVE_POSTS
from slm.serve.api.native.described import SHAPES as NATIVE_SHAPES
from slm.serve.api.native.shapes import InputTokens
from slm.serve.api.ollama.described import GETS as OLLAMA_GETS
from slm.serve.api.ollama.described import POSTS as OLLAMA_POSTS
from slm.serve.api.ollama.described import SHAPES as OLLAMA_SHAPES
from slm.serve.api.openai import response_shapes
from slm.serve.api.openai.responses import ResponsesRequest
from slm.serve.config import ServerOptions

_REF = "#/components/schemas/{model}"
_STREAM = """With `stream` the response is `text/event-stream`: events `data: {...}` while the text is generated. It
ends in `data: [DONE]` only on success; after an error the last event is an error object."""


_HELLO = [{"role": "user", "content": "Tell me of a fox."}]
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

_POSTS: dict[str, Post] = {
    "/v1/chat/completions": Post(
        tag=GENERATION,
        streams=True,
        summary="The next message of a chat",
        about="The template in the model's file makes a prompt of the messages. Without one, they become paragraphs "
        "that begin with `User:` and `Assistant:`. " + _STREAM,
        body=ChatRequest,
        response=response_shapes.ChatCompletion,
        event=response_shapes.ChatCompletionChunk,
        examples={
            "A message": {"messages": _HELLO, "max_tokens": 60},
            "Streamed": {"messages": _HELLO, "max_tokens": 60, "stream": True},
            "JSON of a schema": {
                "messages": [{"role": "user", "content": "Make up a person."}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}},
            },
            "With a tool": {
                "messages": [{"role": "user", "content": "Is it raining in Bonn?"}],
                "tools": [_WEATHER],
                "max_tokens": 60,
            },
            "With log-probabilities": {"messages": _HELLO, "max_tokens": 5, "logprobs": True, "top_logprobs": 3},
        },
    ),
    "/v1/completions": Post(
        tag=GENERATION,
        streams=True,
        summary="The continuation of a text",
        about="One text or several, as text or as token ids. " + _STREAM,
        body=CompletionRequest,
        response=response_shapes.Completion,
        event=response_shapes.Completion,
        examples={
            "A text": {"prompt": "Once upon a time", "max_tokens": 60},
            "Streamed": {"prompt": "Once upon a time", "max_tokens": 60, "stream": True},
            "Log-probabilities of a given text": {
                "prompt": "Once upon a time",
                "echo": True,
                "logprobs": 1,
                "max_tokens": 0,
            },
        },
    ),
    "/v1/responses": Post(
        tag=GENERATION,
        streams=True,
        summary="A chat in OpenAI's newer form",
        about="A request has the whole conversation, or goes on from an earlier response: the server keeps the newest "
        "ones in memory. With `stream` the response is `text/event-stream` of OpenAI's named events. The last one is "
        "`response.completed`, `response.incomplete` or `error`.",
        body=ResponsesRequest,
        response=response_shapes.Response,
        examples={"A question": {"input": "Tell me of a fox.", "max_output_tokens": 60}},
    ),
    "/v1/messages": Post(
        tag=GENERATION,
        streams=True,
        summary="A chat in Anthropic's form",
        about="The messages become a prompt as in a chat completion. With `stream` the response is "
        "`text/event-stream` of Anthropic's named events, the last `message_stop` or `error`. The key may be sent as "
        "`x-api-key`.",
        body=MessagesRequest,
        response=AnthropicMessage,
        error=AnthropicError,
        examples={"A question": {"messages": _HELLO, "max_tokens": 60, "system": "Be brief."}},
    ),
    "/v1/responses/input_tokens": Post(
        tag=TOKENS,
        summary="How many tokens the prompt of a response has",
        about="Takes what /v1/responses takes, and generates nothing.",
        body=ResponsesRequest,
        response=InputTokens,
        examples={"A question": {"input": "Tell me of a fox."}},
    ),
    "/v1/messages/count_tokens": Post(
        tag=TOKENS,
        summary="How many tokens the prompt of Anthropic's form has",
        about="Takes what /v1/messages takes, and generates nothing.",
        body=CountTokensRequest,
        response=AnthropicTokens,
        error=AnthropicError,
        examples={"A question": {"messages": _HELLO}},
    ),
    "/v1/embeddings": Post(
        tag=TOKENS,
        summary="Texts as vectors",
        about="The mean of the last layer's output over the tokens, scaled to length 1.",
        body=EmbeddingRequest,
        response=response_shapes.Embeddings,
        examples={"Two texts": {"input": ["the red fox", "a blue boat"]}},
    ),
    "/tokenize": Post(
        tag=TOKENS,
        summary="A text's token ids",
        about="`content` is llama-server's form, `prompt` with `add_special_tokens` vLLM's; give one of them.",
        body=TokenizeRequest,
        response=response_shapes.Tokens,
        examples={"A text": {"content": "Once upon a time"}},
    ),
    "/detokenize": Post(
        tag=TOKENS,
        summary="The text of token ids",
        about="Control tokens give no text. Bytes that form no character become U+FFFD.",
        body=DetokenizeRequest,
        response=response_shapes.Text,
        examples={"Three tokens": {"tokens": [1, 2, 3]}},
    ),
}

_ERRORS = {
    "400": "The body, a field of it, or the prompt's length is wrong; `param` names the field.",
    "401": "No key, or a wrong one.",
    "404": "There is no such model, or nothing of this name.",
    "408": "The body arrived too slowly, or the request's time was over before the first token.",
    "413": "The body is longer than the server accepts.",
    "429": "The queue is full; `Retry-After` says when to try again.",
    "500": "An internal error of the engine or the server.",
    "501": "The model cannot do this.",
    "503": "The engine is being started, or the model cannot be loaded.",
}

_OF_POSTS = ("400", "404", "408", "413", "429", "500", "503")

_RESPONSES: list[type] = [
    response_shapes.Completion,
    response_shapes.ChatCompletion,
    response_shapes.ChatCompletionChunk,
    response_shapes.Response,
    response_shapes.DeletedResponse,
    AnthropicMessage,
    AnthropicError,
    response_shapes.Embeddings,
    response_shapes.Tokens,
    response_shapes.Text,
    response_shapes.TokenizerInfo,
    response_shapes.Model,
    response_shapes.Models,
    response_shapes.Health,
    Error,
    *NATIVE_SHAPES,
    AnthropicTokens,
    *OLLAMA_SHAPES,
]


def document(options: ServerOptions, *, keyed: bool) -> dict[str, Any]:
    """The document of a server with these options."""
    posts = {**_POSTS, **NATIVE_POSTS, **OLLAMA_POSTS}
    paths: dict[str, Any] = {path: {"post": _post(post, keyed)} for path, post in posts.items()}
    for path, gets in _gets(keyed).items():
        paths[path] = paths.get(path, {}) | gets
    tags = {post.body: post.tag for post in reversed(posts.values())}  # several routes may take the same body
    _, bodies = models_json_schema([(body, "validation") for body in tags], ref_template=_REF)
    _, responses = TypeAdapter.json_schemas(
        [(each.__name__, "serialization", TypeAdapter(each)) for each in _RESPONSES], ref_template=_REF
    )
    schemas = {**bodies["$defs"], **responses["$defs"]}
    for body, tag in tags.items():
        schema = schemas[body.__name__]
        schema.pop("description", None)
        _set_limits(schema["properties"], options)
        _allow_nulls(schema)
        for rule in RULES:  # behind the others
            if rule.only is None and not rule.means and (not rule.routes or body.route in rule.routes):
                for name in rule.names if tag == GENERATION else ():
                    schema["properties"].setdefault(name, {"description": "accepted, without effect"})
    if not options.strict_fields:
        for name in bodies["$defs"]:
            if schemas[name].get("additionalProperties") is False:
                del schemas[name]["additionalProperties"]
    schemas["TokenizeRequest"]["anyOf"] = [{"required": ["content"]}, {"required": ["prompt"]}]
    schemas = _tidied(schemas)
    out: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "slm",
            "version": metadata.version("slm"),
            "description": f"A language model over OpenAI's API. Bodies are JSON objects of at most "
            f"{options.max_body_bytes / 2**20:g} MiB; null means not given. {_unknown(options)}",
        },
        "tags": [{"name": name} for name in (GENERATION, TOKENS, MODELS, "llama-server's own", "Ollama's")],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }
    if keyed:
        out["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        out["security"] = [{"key": []}]
    return out


def _unknown(options: ServerOptions) -> str:
    if options.strict_fields:
        return "An unknown field is an error."
    return f"An unknown field is ignored, and the header {HEADER} names it."


def _set_limits(properties: dict[str, Any], options: ServerOptions) -> None:
    if "n" in properties:
        properties["n"]["maximum"] = min(properties["n"]["maximum"], options.max_n)
    if "truncation" in properties:
        properties["truncation"]["default"] = options.truncation
    if options.request_timeout_s and "timeout_s" in properties:
        properties["timeout_s"]["anyOf"][0]["maximum"] = options.request_timeout_s
        properties["timeout_s"]["default"] = options.request_timeout_s


def _tidied(schema: Any) -> Any:
    """Without the titles that pydantic makes from names, and with ``maxProperties`` as an object's limit."""
    if isinstance(schema, list):
        return [_tidied(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _tidied(each) for key, each in schema.items() if key != "title" or not isinstance(each, str)}
    if "additionalProperties" in out and "maxLength" in out:
        out["maxProperties"] = out.pop("maxLength")
    return out


def _allow_nulls(schema: dict[str, Any]) -> None:
    # Some clients send null for a field that is not given.
    for name, each in schema["properties"].items():
        if name in schema.get("required", ()):
            continue
        if "anyOf" in each:
            if {"type": "null"} not in each["anyOf"]:
                each["anyOf"].append({"type": "null"})
        elif isinstance(each.get("type"), str) and "enum" not in each:
            each["type"] = [each["type"], "null"]
        else:
            kept = {key: each.pop(key) for key in list(each) if key not in ("title", "description", "default")}
            each["anyOf"] = [kept, {"type": "null"}]


def _ref(cls: type) -> dict[str, str]:
    return {"$ref": _REF.format(model=cls.__name__)}


def _json(cls: type) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(cls)}}


def _schema(response: type) -> dict[str, Any]:
    """The JSON Schema of a shape, or of a list of a shape."""
    if get_origin(response) is list:
        return {"application/json": {"schema": {"type": "array", "items": _ref(get_args(response)[0])}}}
    return _json(response)


def _errors(*statuses: str, keyed: bool, shape: type = Error) -> dict[str, Any]:
    wanted = sorted({*statuses, *(("401",) if keyed else ())})
    return {status: {"description": _ERRORS[status], "content": _json(shape)} for status in wanted}


_ID = {
    "name": "x-request-id",
    "in": "header",
    "required": False,
    "description": "the request's id in the access log, sent back with the response; default: random",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:/+=-]{1,128}$"},
}


_STREAM_ID = {
    "name": kept_streams.HEADER,
    "in": "header",
    "required": False,
    "description": "names a stream, which then goes on for a while without its connection (GET /v1/stream)",
    "schema": {"type": "string", "pattern": f"^[!-~]{{1,{kept_streams.LONGEST_NAME}}}$"},
}


def _post(post: Post, keyed: bool) -> dict[str, Any]:
    content = _json(post.response)
    if post.others:
        content = {"application/json": {"schema": {"anyOf": [_ref(post.response), *post.others]}}}
    if post.streams:
        events = _ref(post.event) if post.event is not None else {"type": "object"}
        content[post.stream_type] = {"schema": {"type": "string", "description": post.stream_form}}
        content[post.stream_type]["x-event"] = events
    body = {"schema": _ref(post.body), "examples": {name: {"value": value} for name, value in post.examples.items()}}
    return {
        "tags": [post.tag],
        "summary": post.summary,
        "description": " ".join(post.about.split()),
        "parameters": [*post.parameters, *((_STREAM_ID,) if post.streams else ()), _ID],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {
            "200": {"description": "The response", "content": content},
            **_errors(
                "400", "404", "408", "413", "429", "500", "503", *post.more_errors, keyed=keyed, shape=post.error
            ),
        },
    }


def _get(
    summary: str, ok: dict[str, Any], more: dict[str, Any], *parameters: dict[str, Any], tag: str = MODELS
) -> dict[str, Any]:
    return {
        "get": {
            "tags": [tag],
            "summary": summary,
            "parameters": [*parameters, _ID],
            "responses": {"200": {"description": "The response", "content": ok}, **more},
        }
    }


def _gets(keyed: bool) -> dict[str, Any]:
    name = {"name": "model", "required": True, "schema": {"type": "string", "minLength": 1}}
    asked = {**name, "in": "query", "required": False, "description": "default: the first"}
    starting = {"503": {"description": "The engine is being started.", "content": _json(response_shapes.Health)}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths = {
        "/v1/models": _get("The models", _json(response_shapes.Models), _errors(keyed=keyed)),
        "/v1/models/{model}": _get(
            "One model", _json(response_shapes.Model), _errors("404", keyed=keyed), {**name, "in": "path"}
        ),
        "/tokenizer_info": _get(
            "A model's special tokens and its chat template",
            _json(response_shapes.TokenizerInfo),
            _errors("404", "408", "429", "503", keyed=keyed),
            asked,
        ),
        "/health": _get("Whether an engine is ready", _json(response_shapes.Health), starting),
        "/metrics": _get("Metrics for Prometheus, named slm_*", text, _errors(keyed=keyed)),
    }
    paths["/health"]["get"]["security"] = []
    response = {**name, "name": "id", "in": "path"}
    paths["/v1/responses/{id}"] = {
        **_get("A stored response", _json(response_shapes.Response), _errors("404", keyed=keyed), response),
        "delete": _get(
            "Forget a stored response", _json(response_shapes.DeletedResponse), _errors("404", keyed=keyed), response
        )["get"],
    }
    named = {**name, "name": "conv_id", "in": "query"}
    skipped = {"name": "from", "in": "query", "schema": {"type": "integer", "minimum": 0}, "description": "bytes"}
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    paths["/v1/stream"] = _get("A stream read on", events, _errors("400", "404", keyed=keyed), named, skipped)
    ended = _get("End such a stream and forget it", {}, _errors(keyed=keyed), named)["get"]
    ended["responses"]["204"] = {"description": "It is gone"}
    del ended["responses"]["200"]
    paths["/v1/stream"]["delete"] = ended
    for path, get in {**NATIVE_GETS, **OLLAMA_GETS}.items():
        parameters = [asked] if get.of_model else []
        paths[path] = _get(
            get.summary, _schema(get.response), _errors("404", "503", keyed=keyed), *parameters, tag=get.tag
        )
    return paths
