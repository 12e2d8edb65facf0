"""The shapes of llama-server's response bodies.

Tested in tests/serve/api/native/test_completion.py, tests/serve/api/native/test_native_routes.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from slm.serve.api.core.shapes import PromptProgress, Timings, Warnings

StopType = Literal["none", "eos", "limit", "word"]

_closed = with_config(ConfigDict(extra="forbid"))


@_closed
class TokenProbability(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: NotRequired[list[TokenProbability]]


@_closed
class NativeChunk(TypedDict):
    """An event of a stream, but for the last one, which is a whole response without its text."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[TokenProbability]]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
    warnings: NotRequired[Warnings]


@_closed
class NativeCompletion(TypedDict):
    """A whole response; of several prompts or choices, there is a list of them."""

    index: int
    content: str
    tokens: Annotated[list[int], Field(description="only if return_tokens asks")]
    id_slot: Annotated[int, Field(description="always -1: slots are the server's business")]
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: Annotated[int, Field(description="tokens of the prompt")]
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: Annotated[
        bool, Field(description="whether the end of the context cut the text off, or tokens were dropped there")
    ]
    stop_type: StopType
    stopping_word: str
    tokens_cached: Annotated[int, Field(description="prompt tokens found in the prefix cache")]
    timings: Timings
    completion_probabilities: NotRequired[list[TokenProbability]]
    dropped_prompt_tokens: NotRequired[
        Annotated[int, Field(description="of /infill: tokens for which the context had no room; absent if none")]
    ]
    warnings: NotRequired[Warnings]


@_closed
class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


@_closed
class RenderedPrompt(TypedDict):
    prompt: str


@_closed
class Slot(TypedDict):
    id: int
    n_ctx: int
    is_processing: bool
    n_prompt_tokens: Annotated[int, Field(description="of the sequence that it computes; 0: none")]
    n_decoded: Annotated[int, Field(description="tokens generated so far")]
    n_cached: Annotated[int, Field(description="tokens that it holds")]


@_closed
class LoadedAdapter(TypedDict):
    id: int
    path: str
    scale: Annotated[float, Field(description="for requests without lora")]


@_closed
class SlotTimings(TypedDict):
    save_ms: NotRequired[float]
    restore_ms: NotRequired[float]


@_closed
class SlotChanged(TypedDict):
    id_slot: int
    filename: NotRequired[str]
    n_saved: NotRequired[Annotated[int, Field(description="tokens")]]
    n_written: NotRequired[Annotated[int, Field(description="bytes")]]
    n_restored: NotRequired[Annotated[int, Field(description="tokens")]]
    n_read: NotRequired[Annotated[int, Field(description="bytes")]]
    n_erased: NotRequired[Annotated[int, Field(description="tokens")]]
    timings: NotRequired[SlotTimings]


@_closed
class Props(TypedDict):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: Annotated[bool, Field(description="whether the model is unloaded at the moment")]


@_closed
class RankResult(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[dict[str, str]]


@_closed
class RankUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


@_closed
class Rank(TypedDict):
    object: Literal["list"]
    model: str
    results: Annotated[list[RankResult], Field(description="the best first")]
    usage: RankUsage


@_closed
class ScoreResult(TypedDict):
    index: int
    object: Literal["score"]
    score: float


@_closed
class Scores(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreResult]
    usage: RankUsage


@_closed
class Loading(TypedDict):
    """An event of a model that is loaded."""

    status: Literal["downloading", "loading"]
    completed: NotRequired[int]
    total: NotRequired[Annotated[int, Field(description="bytes; 0 until it is known")]]


@_closed
class Success(TypedDict):
    success: Literal[True]
