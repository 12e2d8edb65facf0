"""The request bodies of Ollama's API, and the same as chat requests and completions.

Tested in tests/serve/api/ollama/test_ollama_requests.py.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from slm.serve.api.core.fields import ModelRequest, Strict
from slm.serve.api.core.messages import MAX_TOOLS
from slm.serve.api.core.requests import MAX_MESSAGES, MAX_TOP_LOGPROBS, ChatRequest, CompletionRequest
from slm.serve.api.core.token_requests import MAX_INPUTS
from slm.serve.api.errors import ApiError

_NO_EFFECT = {
    *("numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all", "vocab_only"),
    *("use_mmap", "use_mlock", "embedding_only", "num_thread", "penalize_newline", "tfs_z"),
}
"""Options of the model's loading, which the server's own options decide, and ones that Ollama itself ignores today."""
_ALIKE = {
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta", "num_keep"),
}
"""Options that have the same name in OpenAI's form of this server."""

Options = dict[str, Any]
Format = Literal["", "json"] | dict[str, Any]
_Body = TypeVar("_Body", bound=BaseModel)


class OllamaFunction(Strict):
    name: str
    arguments: dict[str, Any] = Field(default={})
    index: int | None = None
    description: str | None = None


class OllamaToolCall(Strict):
    id: str | None = None
    type: str | None = None
    function: OllamaFunction


class OllamaMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Annotated[list[Any], Field(max_length=0)] | None = Field(
        default=None, description="must be empty: the models take text only"
    )
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def as_chat(self) -> dict[str, Any]:
        """The message as the chat route takes it."""
        calls = [
            {
                "id": call.id,
                "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                },
            }
            for call in self.tool_calls or ()
        ]
        message = {"role": self.role, "content": self.content, "reasoning_content": self.thinking or None}
        if self.role == "tool":
            message |= {"name": self.tool_name, "tool_call_id": self.tool_call_id}
        return {**message, **({"tool_calls": calls} if calls else {})}


class OllamaRequest(ModelRequest):
    """The fields of every request of Ollama's API."""

    keep_alive: float | str | None = Field(
        default=None, description="only 0 has an effect, without messages or prompt: the model is unloaded"
    )
    options: Options = Field(default={}, description="Ollama's; those of the model's loading have no effect")

    @property
    def unloads(self) -> bool:
        """Whether a request without a text asks for the end of the model."""
        return str(self.keep_alive).rstrip("smh").lstrip("-") in ("0", "0.0")


class _TextRequest(OllamaRequest):
    stream: bool = Field(default=True, description="lines of JSON, one for each piece of the text")
    format: Format = Field(default="", description="json, or a JSON Schema")
    think: bool | Literal["low", "medium", "high"] | None = Field(
        default=None, description="becomes enable_thinking for the chat template, where it reads that"
    )
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)

    def limit(self) -> int | None:
        """Most tokens to generate; None: as far as the context goes. Raises ``ApiError``."""
        given = self.options.get("num_predict")
        if given is None or (isinstance(given, int) and given < 0):
            return None
        if isinstance(given, bool) or not isinstance(given, int):
            raise ApiError(400, "options.num_predict must be a whole number.", param="options", code="invalid_value")
        return given

    def generation_fields(self) -> dict[str, Any]:
        """The options and the format as fields of the chat route. Raises ``ApiError`` for an unknown option."""
        fields: dict[str, Any] = {}
        for name, value in self.options.items():
            if value is None or name in _NO_EFFECT or name == "num_predict":
                continue
            if name not in _ALIKE:
                text = f"options.{name[:100]} is not supported by this server."
                raise ApiError(400, text, param="options", code="unsupported")
            if name == "repeat_last_n" and value == -1:
                value = 65536  # the whole context
            if name.startswith("mirostat") and not self.options.get("mirostat"):
                continue
            fields["n_keep" if name == "num_keep" else name] = value
        if self.format == "json":
            fields["response_format"] = {"type": "json_object"}
        elif isinstance(self.format, dict):
            fields["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "format", "schema": self.format},
            }
        return fields

    def _chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ChatRequest:
        fields = self.generation_fields()
        if self.limit() is not None:
            fields["max_completion_tokens"] = self.limit()
        if self.logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.think is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": self.think is not False}
        return validated(ChatRequest, {"messages": messages, "tools": tools, **fields})


class OllamaChatRequest(_TextRequest):
    """POST /api/chat"""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        default=[], description="none: the model is loaded"
    )
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] = Field(
        default=[], description="as /v1/chat/completions takes them"
    )

    def as_chat(self) -> ChatRequest:
        """The same as a chat request. Raises ``ApiError``."""
        return self._chat([each.as_chat() for each in self.messages], [_tool(each) for each in self.tools])


class OllamaGenerateRequest(_TextRequest):
    """POST /api/generate"""

    prompt: str = Field(default="", description="none: the model is loaded")
    suffix: str = Field(default="", description="the text behind the gap that is filled in")
    system: str = ""
    raw: bool = Field(default=False, description="true: the prompt as it is, without the chat template")
    template: Literal[""] = Field(default="", description="only empty: serve.chat_template sets one")
    context: Annotated[list[int], Field(max_length=0)] | None = Field(
        default=None, description="must be empty: /api/chat takes a conversation"
    )
    images: Annotated[list[Any], Field(max_length=0)] | None = None

    def as_chat(self) -> ChatRequest:
        """The prompt as a user's message. Raises ``ApiError``."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self._chat([*system, {"role": "user", "content": self.prompt}], [])

    def as_completion(self) -> CompletionRequest:
        """The prompt as a text to continue, but for its limit. Raises ``ApiError``."""
        text = f"{self.system}\n\n{self.prompt}" if self.system and not self.raw else self.prompt
        fields = {"prompt": text, "suffix": self.suffix, **self.generation_fields()}
        if self.logprobs:
            fields["logprobs"] = self.top_logprobs
        return validated(CompletionRequest, fields)


class OllamaEmbedRequest(OllamaRequest):
    """POST /api/embed"""

    input: str | Annotated[list[str], Field(max_length=MAX_INPUTS, fail_fast=True)]
    truncate: bool = Field(default=True, description="whether a text that is too long is cut, or refused")
    dimensions: int | None = Field(default=None, ge=1, description="must be the model's own width")

    def inputs(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else self.input


class OllamaEmbeddingsRequest(OllamaRequest):
    """POST /api/embeddings, the older form of /api/embed"""

    prompt: str = Field(min_length=1)


class OllamaShowRequest(ModelRequest):
    """POST /api/show"""

    name: str | None = Field(default=None, description="older name of model")
    verbose: bool = Field(default=False, description="accepted, without effect")


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **given}


def validated(cls: type[_Body], fields: dict[str, Any]) -> _Body:
    """The request that ``fields`` make. Raises ``ApiError`` for the first mistake."""
    try:
        return cls.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        said = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{where}: {said}.", param=where, code="invalid_value") from None
