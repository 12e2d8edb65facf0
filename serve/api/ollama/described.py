"""What the OpenAPI document says of Ollama's API.

Tested in tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from typing import Any

from slm.serve.api.core.fields import ModelRequest
from slm.serve.api.described import Get, Post
from slm.serve.api.ollama import requests, shapes

_TAG = "Ollama's"
_STREAM = "Streams by default: lines of JSON, of which the last has `done`: true and all figures."
_HELLO = [{"role": "user", "content": "Tell me of a fox."}]

SHAPES = [
    shapes.OllamaText,
    shapes.OllamaModels,
    shapes.OllamaProcesses,
    shapes.OllamaShow,
    shapes.OllamaEmbed,
    shapes.OllamaEmbedding,
    shapes.OllamaVersion,
    shapes.OllamaError,
]


def _post(
    summary: str,
    about: str,
    body: type[ModelRequest],
    response: type,
    example: dict[str, Any],
    *,
    streams: bool = False,
) -> Post:
    return Post(
        tag=_TAG,
        summary=summary,
        about=about,
        body=body,
        response=response,
        streams=streams,
        event=response if streams else None,
        stream_type="application/x-ndjson",
        stream_form="lines of JSON",
        error=shapes.OllamaError,
        examples={"For example": example},
    )


POSTS: dict[str, Post] = {
    "/api/chat": _post(
        "The next message of a chat",
        _STREAM + " Without messages, the model is loaded, or unloaded with `keep_alive`: 0.",
        requests.OllamaChatRequest,
        shapes.OllamaText,
        {"messages": _HELLO, "stream": False, "options": {"num_predict": 60}},
        streams=True,
    ),
    "/api/generate": _post(
        "The answer to a text, or its continuation",
        _STREAM + " The prompt is put into the chat template, if the model has one, unless `raw` or `suffix` is given.",
        requests.OllamaGenerateRequest,
        shapes.OllamaText,
        {"prompt": "Once upon a time", "stream": False, "options": {"num_predict": 60}},
        streams=True,
    ),
    "/api/embed": _post(
        "Texts as vectors",
        "A text that is longer than the context is cut, and the response counts it, unless `truncate` is false.",
        requests.OllamaEmbedRequest,
        shapes.OllamaEmbed,
        {"input": ["the red fox", "a blue boat"]},
    ),
    "/api/embeddings": _post(
        "A text as a vector",
        "The older form of /api/embed.",
        requests.OllamaEmbeddingsRequest,
        shapes.OllamaEmbedding,
        {"prompt": "the red fox"},
    ),
    "/api/show": _post(
        "What is known of a model",
        "From its file.",
        requests.OllamaShowRequest,
        shapes.OllamaShow,
        {"model": "default"},
    ),
}
GETS: dict[str, Get] = {
    "/api/version": Get(tag=_TAG, summary="The version of Ollama that this API follows", response=shapes.OllamaVersion),
    "/api/tags": Get(tag=_TAG, summary="The models", response=shapes.OllamaModels),
    "/api/ps": Get(tag=_TAG, summary="The models that are loaded", response=shapes.OllamaProcesses),
}
