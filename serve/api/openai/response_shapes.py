"""The shapes of response bodies: the routes build their answers from them, and /openapi.json describes them.

They are plain dictionaries at run time, so that a chunk of a stream costs no validation. A type checker compares what
is built with them, and so does a test with real answers.

Tested in tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic reads typing's own only from Python 3.12 on
)

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from slm.serve.api.core.shapes import PromptProgress, Timings, Usage, Warnings
from slm.serve.engine.protocol import FinishReason, StoppedBy
from slm.serve.pool.model_pool import State

ChatFinishReason = Literal["stop", "length", "tool_calls"]
ResponseStatus = Literal["in_progress", "completed", "incomplete"]

_closed = with_config(ConfigDict(extra="forbid"))
"""No other fields."""


_Fingerprint = Annotated[
    str, Field(description="changes with the server's version, the model's file and the engine's settings")
]


_Timings = Annotated[
    Timings | None,
    Field(default=None, description="in a stream: with the last finish_reason. Not a field of OpenAI's"),
]
_StoppedBy = Annotated[
    StoppedBy | None,
    Field(default=None, description="with finish_reason `length`: what cut the text off. Not a field of OpenAI's"),
]


_DroppedMessages = Annotated[
    int | None,
    Field(
        default=None,
        description="with `truncation`: how many of the oldest messages were left out of the prompt; absent if none. "
        "Not a field of OpenAI's",
    ),
]


@_closed
class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: Annotated[
        list[float | None], Field(description="natural logarithms; null for a prompt's first token")
    ]
    top_logprobs: list[dict[str, float] | None]
    text_offset: Annotated[list[int], Field(description="characters of text before the token")]


_Progress = Annotated[
    PromptProgress | None, Field(default=None, description="in a stream, before the text, where `return_progress` asks")
]


@_closed
class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Annotated[FinishReason | None, Field(description="null only in a stream, before the end")]
    stopped_by: NotRequired[_StoppedBy]


@_closed
class Completion(TypedDict):
    """A whole response, or an event of a stream. After the last event comes [DONE]."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: _Fingerprint
    choices: list[CompletionChoice]
    usage: NotRequired[
        Annotated[
            Usage | None,
            Field(default=None, description="in a stream: only if `stream_options.include_usage` asks"),
        ]
    ]
    timings: NotRequired[_Timings]
    prompt_progress: NotRequired[_Progress]
    warnings: NotRequired[Warnings]


@_closed
class TopLogprob(TypedDict):
    token: str
    bytes: list[int]
    logprob: float


@_closed
class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


@_closed
class ChatLogprobs(TypedDict):
    content: list[ChatLogprob]
    refusal: None


@_closed
class ResponseFunction(TypedDict):
    name: str
    arguments: Annotated[str, Field(description="a JSON object, as text")]


@_closed
class ResponseToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: ResponseFunction


_Reasoning = Annotated[
    str | None,
    Field(default=None, description="what stood between `<think>` and `</think>`. Not a field of OpenAI's"),
]


@_closed
class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: Annotated[str | None, Field(description="null where there are only tool calls")]
    refusal: None
    reasoning_content: NotRequired[_Reasoning]
    tool_calls: NotRequired[list[ResponseToolCall]]


@_closed
class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stopped_by: NotRequired[_StoppedBy]


@_closed
class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: _Fingerprint
    choices: list[ChatChoice]
    usage: Usage
    timings: NotRequired[_Timings]
    dropped_messages: NotRequired[_DroppedMessages]
    warnings: NotRequired[Warnings]


@_closed
class FunctionDelta(TypedDict):
    name: NotRequired[Annotated[str | None, Field(default=None, description="in a call's first piece")]]
    arguments: Annotated[str, Field(description="more of the arguments' text")]


@_closed
class ToolCallDelta(TypedDict):
    index: Annotated[int, Field(description="which call of the message")]
    id: NotRequired[Annotated[str | None, Field(default=None, description="in a call's first piece")]]
    type: NotRequired[Annotated[Literal["function"] | None, Field(default=None)]]
    function: FunctionDelta


@_closed
class ChatDelta(TypedDict):
    role: NotRequired[Annotated[Literal["assistant"] | None, Field(default=None)]]
    content: NotRequired[Annotated[str | None, Field(default=None)]]
    reasoning_content: NotRequired[_Reasoning]
    tool_calls: NotRequired[list[ToolCallDelta]]


@_closed
class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stopped_by: NotRequired[_StoppedBy]


@_closed
class ChatCompletionChunk(TypedDict):
    """An event of a stream. After the last event comes [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: _Fingerprint
    choices: list[ChatChunkChoice]
    usage: NotRequired[Annotated[Usage | None, Field(default=None)]]
    timings: NotRequired[_Timings]
    prompt_progress: NotRequired[_Progress]
    dropped_messages: NotRequired[_DroppedMessages]
    warnings: NotRequired[Warnings]


@_closed
class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


@_closed
class OutputMessage(TypedDict):
    type: Literal["message"]
    id: str
    status: ResponseStatus
    role: Literal["assistant"]
    content: list[OutputText]


@_closed
class ReasoningPart(TypedDict):
    type: Literal["reasoning_text"]
    text: str


@_closed
class OutputReasoning(TypedDict):
    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ReasoningPart]
    status: ResponseStatus


@_closed
class OutputFunctionCall(TypedDict):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ResponseStatus


@_closed
class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


@_closed
class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


@_closed
class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


@_closed
class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


@_closed
class Response(TypedDict):
    """OpenAI's response object. Features that this server lacks have fixed values."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputReasoning | OutputFunctionCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, str]
    tools: list[Any]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    dropped_messages: NotRequired[_DroppedMessages]
    warnings: NotRequired[Warnings]


@_closed
class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


@_closed
class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: Annotated[list[float] | str, Field(description="of length 1; base64 is of little-endian float32")]


@_closed
class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


@_closed
class Embeddings(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@_closed
class TokenPiece(TypedDict):
    id: int
    piece: Annotated[str | list[int], Field(description="its text, or its bytes if they are no text")]


@_closed
class Tokens(TypedDict):
    tokens: Annotated[list[int] | list[TokenPiece], Field(description="with_pieces: with their texts")]
    count: int
    max_model_len: Annotated[int, Field(description="most tokens of a request, prompt and reply together")]


@_closed
class Text(TypedDict):
    content: str
    prompt: Annotated[str, Field(description="the same, under the name that vLLM gives it")]


@_closed
class TokenizerInfo(TypedDict):
    model: str
    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    chat_template: str | None


@_closed
class Sampling(TypedDict):
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int


@_closed
class ModelMeta(TypedDict):
    architecture: str
    n_params: int
    size_bytes: Annotated[int, Field(description="of all tensors")]
    n_vocab: int
    n_embd: int
    n_ctx_train: Annotated[int, Field(description="tokens of context in training")]
    context: Annotated[int, Field(description="most tokens of a request, prompt and reply together")]
    sampling: Annotated[Sampling, Field(description="what holds where a request says nothing of it")]
    chat_template: Annotated[bool, Field(description="whether its file has one")]
    thinking: Annotated[
        bool | None,
        Field(description="whether its chat template lets `enable_thinking` choose; null while it is not loaded"),
    ]


@_closed
class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: State
    parent: Annotated[str | None, Field(description="the model that this one is a LoRA adapter of; null for a model")]
    meta: Annotated[ModelMeta | None, Field(description="null when the file cannot be read")]


@_closed
class Models(TypedDict):
    object: Literal["list"]
    data: list[Model]


@_closed
class Health(TypedDict):
    status: Annotated[
        Literal["ok", "starting", "hung"], Field(description="hung: an engine is there and does not answer")
    ]
    warning: NotRequired[
        Annotated[str, Field(description="present if a model's file does not hold the bytes that were exported")]
    ]
    models: NotRequired[
        Annotated[dict[str, str] | None, Field(default=None, description="the state of each of several models")]
    ]
