"""The shapes of answers, for the schema at /openapi.json. A test holds real answers against them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Finish = Literal["stop", "length"]


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Said):
    message: str = Field(description="what is wrong, and what would be right")
    type: str = Field(description="invalid_request_error, rate_limit_error, timeout_error or server_error")
    param: str | None = Field(description="the field that is meant")
    code: str | None = Field(description="for programs, such as context_length_exceeded or queue_full")


class Error(_Said):
    """Every answer that is no success."""

    error: ErrorDetail


class PromptTokensDetails(_Said):
    cached_tokens: int = Field(description="of the prompt, how many had been computed before")


class CompletionTokensDetails(_Said):
    accepted_prediction_tokens: int = Field(description="tokens that were guessed before, and right")
    rejected_prediction_tokens: int = Field(description="wrong guesses, which cost time and are no tokens of the reply")


class Usage(_Said):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = Field(
        None, description="where guesses were checked (serve.speculate)"
    )


class CompletionLogprobs(_Said):
    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="natural logarithms; null for a prompt's first token")
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="characters of text before the token")


class CompletionChoice(_Said):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None = Field(description="null only in a stream, before the end")


class Completion(_Said):
    """An answer, or an event of a stream; the last event is ``[DONE]``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = Field(None, description="in a stream only where `stream_options.include_usage` asks for it")


class TopLogprob(_Said):
    token: str
    bytes: list[int]
    logprob: float


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Said):
    content: list[ChatLogprob]
    refusal: None


class ChatMessage(_Said):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Said):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(_Said):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(_Said):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(_Said):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletionChunk(_Said):
    """An event of a stream; the last event is ``[DONE]``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class OutputText(_Said):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(_Said):
    type: Literal["message"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class IncompleteDetails(_Said):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(_Said):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(_Said):
    reasoning_tokens: int


class ResponseUsage(_Said):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Response(_Said):
    """OpenAI's object of a response; the fields of what this server does not do say so."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: Literal[False]
    previous_response_id: None
    reasoning: dict[str, None]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["none"]
    tools: list[Any]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


class Embedding(_Said):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="of length 1; as text: base64 of little-endian float32")


class EmbeddingUsage(_Said):
    prompt_tokens: int
    total_tokens: int


class Embeddings(_Said):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Tokens(_Said):
    tokens: list[int]
    count: int
    max_model_len: int = Field(description="most tokens of one request, prompt and reply")


class Text(_Said):
    content: str
    prompt: str = Field(description="the same, under the name that vLLM gives it")


class TokenizerInfo(_Said):
    model: str
    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    chat_template: str | None


class ModelMeta(_Said):
    architecture: str
    n_params: int
    size_bytes: int = Field(description="of all tensors")
    n_vocab: int
    n_embd: int
    n_ctx_train: int = Field(description="tokens of context that it was trained with")
    context: int = Field(description="most tokens of one request, prompt and reply")
    chat_template: bool = Field(description="whether its file has one")


class Model(_Said):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: Literal["unloaded", "loading", "ready", "leaving", "restarting"]
    meta: ModelMeta | None = Field(description="null when the file cannot be read")


class Models(_Said):
    object: Literal["list"]
    data: list[Model]


class Health(_Said):
    status: Literal["ok", "starting"]
    models: dict[str, str] | None = Field(None, description="where there are several: what each is doing")


ANSWERS: list[type[BaseModel]] = [
    Completion, ChatCompletion, ChatCompletionChunk, Response, Embeddings, Tokens, Text, TokenizerInfo, Model, Models,
    Health, Error,
]  # fmt: skip
