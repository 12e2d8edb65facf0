"""The shapes of Ollama's response bodies.

Tested in tests/serve/api/ollama/test_ollama_routes.py.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from slm.serve.api.core.shapes import Warnings

_closed = with_config(ConfigDict(extra="forbid"))


@_closed
class OllamaLogprob(TypedDict):
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: NotRequired[list[OllamaLogprob]]


class OllamaTotals(TypedDict):
    """What the last line of a stream has, and every whole response. Durations are in nanoseconds."""

    done_reason: str
    total_duration: int
    load_duration: int
    prompt_eval_count: Annotated[int, Field(description="tokens of the prompt, cached ones included")]
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class OllamaText(TypedDict):
    """A whole response of /api/chat (``message``) or /api/generate (``response``), or a line of a stream. The last line
    and a whole response also have ``done_reason``, counts and durations."""

    model: str
    created_at: str
    done: bool
    message: NotRequired[dict[str, Any]]
    response: NotRequired[str]
    thinking: NotRequired[str]
    logprobs: NotRequired[list[OllamaLogprob]]
    warnings: NotRequired[Warnings]


@_closed
class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


@_closed
class OllamaModel(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: Annotated[str, Field(description="changes with the file; it is not the hash of its bytes")]
    details: OllamaDetails


@_closed
class OllamaModels(TypedDict):
    models: list[OllamaModel]


@_closed
class OllamaRunning(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


@_closed
class OllamaProcesses(TypedDict):
    models: list[OllamaRunning]


@_closed
class OllamaShow(TypedDict):
    modelfile: str
    parameters: str
    template: Annotated[str, Field(description="the chat template, in Jinja; empty while the model is not loaded")]
    details: OllamaDetails
    model_info: Annotated[dict[str, Any], Field(description="what the file's header says; arrays are left out")]
    capabilities: list[str]
    modified_at: str


@_closed
class OllamaEmbed(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    truncated_inputs: NotRequired[Annotated[int, Field(description="texts that were cut; absent if none")]]


@_closed
class OllamaEmbedding(TypedDict):
    embedding: list[float]


@_closed
class OllamaVersion(TypedDict):
    version: str


@_closed
class OllamaError(TypedDict):
    """The body of every response of /api/... that is not a success."""

    error: str
