"""What request bodies have in common: their strict base, shared fields, numbers, and texts or token ids.

Tested in tests/serve/api/core/test_requests.py.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from slm.serve.api.client_fields import Reading, Route
from slm.serve.api.errors import ApiError
from slm.serve.engine.protocol import ModelInfo

MAX_FIELDS = 1024
"""Most fields of one object."""
MAX_TOKENS = 1 << 20
"""Most token ids of one list."""
MAX_TIMEOUT_S = 86_400

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
# `fail_fast` refuses a list at its first mistake: to report a million of them would take seconds.
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, fail_fast=True)]
Mixed = Annotated[list[TokenId | str], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
MixedLists = Annotated[list[str | Tokens | Mixed], Field(min_length=1, fail_fast=True)]
Prompt = str | tuple[int | str, ...]
"""A text, or token ids with texts between them."""


def few_fields(value: Any) -> Any:
    """The value, if it has not too many fields."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise ValueError(f"{len(value)} fields; an object may have at most {MAX_FIELDS}")
    return value


class Strict(BaseModel):
    """A JSON object without conversions. A field that is null counts as not given.

    Other fields than its own are refused, or ignored where the validation's context is a ``Reading`` that does so.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    place: ClassVar[str] = ""
    """Where the object stands in a body; "" for the body itself."""
    also: ClassVar[tuple[str, ...]] = ()
    """Further names that ``adapted`` takes."""

    @model_validator(mode="before")
    @classmethod
    def _given_known_and_few(cls, value: Any, info: ValidationInfo) -> Any:
        value = few_fields(value)
        if not isinstance(value, dict):
            return value
        given = {k: v for k, v in value.items() if v is not None}
        if isinstance(info.context, Reading):
            given = info.context.known(given, _names(cls), cls.place, used_elsewhere)
        return cls.adapted(given)

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields in the one form that the rest of the class takes, where clients have several. Raises
        ``ValueError``."""
        return given


@cache
def _names(cls: type[Strict]) -> frozenset[str]:
    """What a body calls the fields of a class."""
    return frozenset({each.alias or name for name, each in cls.model_fields.items()} | set(cls.also))


class ModelRequest(Strict):
    """The fields of every request to a model."""

    route: ClassVar[Route | Literal[""]] = ""
    """Which column of ``client_fields.RULES`` holds for it; "": only the rules for all routes."""

    model: str | None = Field(default=None, max_length=512, description="a name from /v1/models; default: the first")
    list_field: ClassVar[str] = ""
    """The field that a body means which is a list; "": none."""
    may_be_empty: ClassVar[bool] = False
    """Whether no body is one without fields."""

    timeout_s: Number | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="seconds for the whole request, which then ends with the text so far",
    )
    _ignored: list[str] = PrivateAttr(default_factory=list)

    @property
    def ignored(self) -> list[str]:
        """The names of fields without effect. Who finds another one adds it."""
        return self._ignored


def used_elsewhere(name: str, value: Any) -> bool:
    """Whether a route that generates text uses a field at this value, which is not the default."""
    waiting: list[type[ModelRequest]] = [ModelRequest]
    while waiting:
        cls = waiting.pop()
        found = cls.model_fields.get(name)
        if cls.route not in ("", "embeddings") and found is not None and found.default != value:
            return True
        waiting += cls.__subclasses__()
    return False


def texts_or_tokens(given: Any, info: ModelInfo, param: str) -> list[Prompt]:
    """One entry per text or list of ids; raises ``ApiError`` for an id outside the vocabulary."""
    if isinstance(given, str):
        return [given]
    if any(isinstance(each, int) for each in given):
        prompts: list[Prompt] = [tuple(given)]
    else:
        prompts = [each if isinstance(each, str) else tuple(each) for each in given]
    for each in prompts:
        if not isinstance(each, str):
            check_tokens(each, info, param)
    return prompts


def check_tokens(tokens: tuple[int | str, ...], info: ModelInfo, param: str) -> None:
    """Raises ``ApiError`` for an id outside the vocabulary."""
    worst = max((each for each in tokens if not isinstance(each, str)), default=0)
    if worst >= info.n_vocab:
        raise ApiError(400, f"{param}: {worst} is not a token id of this model (0 to {info.n_vocab - 1}).", param=param)
