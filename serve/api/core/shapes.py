"""The parts of response bodies that several APIs have in common. See ``openai/response_shapes.py``.

Tested in tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from typing import Annotated, NotRequired  # pydantic reads typing's own only from Python 3.12 on

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

_closed = with_config(ConfigDict(extra="forbid"))
"""No other fields."""


Warnings = Annotated[
    list[str] | None,
    Field(
        default=None,
        description="what a schema asks for and the server does not enforce, in a stream with its first event; absent "
        "if everything is. Also in the header `X-Slm-Warnings`. Not a field of OpenAI's",
    ),
]


@_closed
class PromptTokensDetails(TypedDict):
    cached_tokens: Annotated[int, Field(description="prompt tokens found in the prefix cache")]


@_closed
class CompletionTokensDetails(TypedDict):
    accepted_prediction_tokens: NotRequired[Annotated[int, Field(description="draft tokens that were accepted")]]
    rejected_prediction_tokens: NotRequired[Annotated[int, Field(description="draft tokens that were rejected")]]
    dropped_tokens: NotRequired[
        Annotated[int, Field(description="the oldest tokens that were dropped because the context was full")]
    ]
    reasoning_tokens: NotRequired[
        Annotated[int, Field(description="tokens up to the event of the stream in which the reasoning ended")]
    ]


@_closed
class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[
        Annotated[
            CompletionTokensDetails | None,
            Field(default=None, description="present with draft tokens (serve.speculate) and with reasoning"),
        ]
    ]


@_closed
class Timings(TypedDict):
    """llama-server's figures of a response; with several choices, the times of the longest one."""

    cache_n: Annotated[int, Field(description="prompt tokens found in the prefix cache")]
    prompt_n: Annotated[int, Field(description="prompt tokens that were computed")]
    prompt_ms: Annotated[float, Field(description="without the time in the queue")]
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: Annotated[float, Field(description="without each choice's first, as is the next")]
    predicted_per_second: float
    draft_n: NotRequired[Annotated[int | None, Field(default=None, description="draft tokens that were verified")]]
    draft_n_accepted: NotRequired[Annotated[int | None, Field(default=None)]]


@_closed
class PromptProgress(TypedDict):
    """How much of a prompt is computed: ``processed / total``, of which ``cache`` tokens took no time."""

    total: int
    cache: int
    processed: int
    time_ms: int
