"""What the OpenAPI document says of llama-server's own routes.

Tested in tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from typing import Any

from slm.serve.api.core.requests import ChatRequest
from slm.serve.api.described import TOKENS, Get, Post
from slm.serve.api.native import shapes
from slm.serve.api.native.requests import (
    AdapterChange,
    InfillRequest,
    ModelChange,
    NativeCompletionRequest,
    RerankRequest,
    ScoreRequest,
    SlotChange,
)

_TAG = "llama-server's own"
_STREAM = "With `stream` the response is `text/event-stream`; the last event has `stop`: true and all figures."
_HELLO = [{"role": "user", "content": "Tell me of a fox."}]
_LIST: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_PARTS: dict[str, Any] = {"type": "object", "description": "with response_fields: only these"}

SHAPES = [
    shapes.NativeCompletion,
    shapes.NativeChunk,
    shapes.InputTokens,
    shapes.RenderedPrompt,
    shapes.Slot,
    shapes.LoadedAdapter,
    shapes.SlotChanged,
    shapes.Props,
    shapes.Rank,
    shapes.Scores,
    shapes.Success,
]
POSTS: dict[str, Post] = {
    "/completion": Post(
        tag=_TAG,
        streams=True,
        summary="The continuation of a text, in llama-server's form",
        about="Names of special tokens in a text stand for these tokens. Also at /completions. " + _STREAM,
        body=NativeCompletionRequest,
        response=shapes.NativeCompletion,
        others=(_PARTS, _LIST),
        event=shapes.NativeChunk,
        examples={"A text": {"prompt": "Once upon a time", "n_predict": 60}},
    ),
    "/infill": Post(
        tag=_TAG,
        streams=True,
        summary="The text in a gap",
        about="For models with tokens for filling in the middle; 501 for others. " + _STREAM,
        body=InfillRequest,
        more_errors=("501",),
        response=shapes.NativeCompletion,
        others=(_PARTS, _LIST),
        event=shapes.NativeChunk,
        examples={"A function": {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n\nadd(1, 2)\n"}},
    ),
    "/apply-template": Post(
        tag=_TAG,
        summary="The prompt of a chat, as text",
        about="Takes what /v1/chat/completions takes, and generates nothing.",
        body=ChatRequest,
        response=shapes.RenderedPrompt,
        examples={"A message": {"messages": _HELLO}},
    ),
    "/v1/chat/completions/input_tokens": Post(
        tag=TOKENS,
        summary="How many tokens the prompt of a chat has",
        about="Takes what /v1/chat/completions takes, and generates nothing.",
        body=ChatRequest,
        response=shapes.InputTokens,
        examples={"A message": {"messages": _HELLO}},
    ),
    "/v1/rerank": Post(
        tag=TOKENS,
        summary="Texts in the order in which they fit a query",
        about="A score is a reranking model's own, or the cosine of two embeddings. Also at /rerank, /reranking and "
        "/v1/reranking. With `texts` "
        "the response is the bare list that TEI gives.",
        body=RerankRequest,
        response=shapes.Rank,
        others=(_LIST,),
        examples={"Two texts": {"query": "a fox", "documents": ["the red fox", "a blue boat"]}},
    ),
    "/v1/score": Post(
        tag=TOKENS,
        summary="How alike two texts are",
        about="vLLM's form: a reranking model's score of each pair, or the cosine of two embeddings.",
        body=ScoreRequest,
        response=shapes.Scores,
        examples={"Two pairs": {"text_1": "a fox", "text_2": ["the red fox", "a blue boat"]}},
    ),
    "/slots/{slot}": Post(
        tag=_TAG,
        summary="Save, restore or erase what a slot holds",
        about="The files are in the folder serve.slot_save_path; 501 without one. A slot that computes is refused.",
        body=SlotChange,
        more_errors=("501",),
        response=shapes.SlotChanged,
        examples={"A file": {"filename": "story.bin"}},
        parameters=(
            {"name": "slot", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}},
            {"name": "action", "in": "query", "required": True, "schema": {"enum": ["save", "restore", "erase"]}},
        ),
    ),
    "/lora-adapters": Post(
        tag=_TAG,
        summary="Set what holds for requests without lora",
        about="It holds for all clients, until the server's end. The body may be the bare list.",
        body=AdapterChange,
        response=shapes.Success,
        examples={"Half of the first": {"adapters": [{"id": 0, "scale": 0.5}]}},
    ),
    "/models/load": Post(
        tag=_TAG,
        summary="Load a model",
        about="Answers when it is loaded. Requests load their model themselves; this saves the first one the time. "
        "With stream, events tell how far a download is (status, completed, total), and the last one has success or "
        "error.",
        body=ModelChange,
        response=shapes.Success,
        examples={"A model": {"model": "default"}},
    ),
    "/models/unload": Post(
        tag=_TAG,
        summary="Unload a model",
        about="Answers when its requests are finished and its memory is free. The next request loads it again.",
        body=ModelChange,
        response=shapes.Success,
        examples={"A model": {"model": "default"}},
    ),
}
GETS: dict[str, Get] = {
    "/props": Get(tag=_TAG, summary="The model, its template and the defaults", response=shapes.Props, of_model=True),
    "/lora-adapters": Get(
        tag=_TAG,
        summary="The LoRA adapters that a request may choose",
        response=list[shapes.LoadedAdapter],
        of_model=True,
    ),
    "/slots": Get(tag=_TAG, summary="What each slot does", response=list[shapes.Slot], of_model=True),
}
