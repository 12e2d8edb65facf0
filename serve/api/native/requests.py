"""The request bodies of llama-server's own routes.

Completions take what /v1/completions takes, under llama-server's names and with its additions.

Tested in tests/serve/api/native/test_completion.py, tests/serve/api/native/test_native_routes.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slm.serve.api.core.fields import MAX_TOKENS, ModelRequest, Strict, TokenId, check_tokens
from slm.serve.api.core.requests import AdapterScales, CompletionRequest
from slm.serve.api.core.token_requests import MAX_INPUTS
from slm.serve.api.errors import ApiError
from slm.serve.engine.protocol import ModelInfo

_MAX_PROBS = 100
_MAX_PARTS = 4096
_MAX_FILES = 256
_MAX_PREDICT = 2**31 - 1

Part = str | TokenId
Parts = tuple[str | int, ...]
"""A prompt: texts and token ids in order."""


class PromptObject(Strict):
    prompt_string: str
    multimodal_data: Annotated[list[Any], Field(max_length=0)] | None = Field(
        default=None, description="must be empty: the models take text only"
    )


_Mixed = Annotated[list[Part], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
_Prompt = str | _Mixed | PromptObject


class NativeCompletionRequest(CompletionRequest):
    """POST /completion"""

    prompt: _Prompt | Annotated[list[_Prompt], Field(min_length=1, max_length=128)] = Field(  # type: ignore[assignment]
        description="text, token ids, both in one list, or a list of these"
    )
    n_predict: int | None = Field(
        default=None, ge=-1, le=_MAX_PREDICT, description="most tokens to generate; -1: until the context is full"
    )
    max_tokens: int | None = Field(  # type: ignore[assignment]
        default=None, ge=-1, le=_MAX_PREDICT, description="another name of n_predict"
    )
    n_probs: int = Field(
        default=0, ge=0, le=_MAX_PROBS, description="log-probabilities of the tokens and of this many likely ones"
    )
    return_tokens: bool = Field(default=False, description="the token ids of the text; a stream always has them")
    response_fields: Annotated[list[str], Field(max_length=64)] = Field(
        default=[], description="only these fields of the response; a/b is the field b of a"
    )
    n_cmpl: int | None = Field(default=None, ge=1, le=128, description="another name of n")
    n_cache_reuse: int = Field(default=0, description="accepted, without effect")
    min_keep: Literal[0] = Field(default=0, description="only 0")
    n_indent: Literal[0] = Field(default=0, description="only 0")
    t_max_predict_ms: Literal[0] = Field(default=0, description="only 0; timeout_s limits the time")
    post_sampling_probs: Literal[False] = Field(default=False, description="only false: they are the model's own")

    @model_validator(mode="before")
    @classmethod
    def _own_names(cls, value: Any) -> Any:
        """llama-server's names of fields that /v1/completions has, too."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if value.get("n_cmpl") is not None and value.get("n") is None:
            value["n"] = value.pop("n_cmpl")
        for name in ("grammar", "stop"):
            if value.get(name) in ("", []):
                del value[name]
        return value

    def limit(self) -> int | None:
        """Most tokens to generate; None: as far as the context goes."""
        given = self.max_tokens if self.n_predict is None else self.n_predict
        return None if given is None or not 0 <= given < _MAX_PREDICT else given

    def parts(self, info: ModelInfo) -> list[Parts]:
        """Each prompt in parts. Raises ``ApiError`` for an id outside the vocabulary."""
        out = [_parts(each) for each in _each_prompt(self.prompt)]
        for each in out:
            if len(each) > _MAX_PARTS and any(isinstance(part, str) for part in each):
                raise ApiError(400, f"prompt: at most {_MAX_PARTS} parts where texts are among them.", param="prompt")
            check_tokens(tuple(part for part in each if isinstance(part, int)), info, "prompt")
        return out


def _each_prompt(given: Any) -> list[Any]:
    return given if isinstance(given, list) and not _is_one(given) else [given]


def _is_one(given: list[Any]) -> bool:
    """Whether a list is one prompt. A list of texts alone is several; with an id among its entries, it is one."""
    return any(isinstance(each, int) for each in given)


def _parts(prompt: Any) -> Parts:
    match prompt:
        case str():
            return (prompt,)
        case PromptObject():
            return (prompt.prompt_string,)
    return tuple(prompt)


class OtherFile(Strict):
    text: str
    filename: str = "tmp"


class InfillRequest(NativeCompletionRequest):
    """POST /infill"""

    prompt: str = Field(default="", description="the beginning of the text in the gap")
    input_prefix: str = Field(description="the text before the gap")
    input_suffix: str = Field(description="the text behind the gap")
    input_extra: Annotated[list[OtherFile], Field(max_length=_MAX_FILES)] = Field(
        default=[], description="other files, for models with a token for them in the vocabulary"
    )


class RerankRequest(ModelRequest):
    """POST /rerank"""

    query: str = Field(min_length=1)
    documents: Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)] | None = None
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)] | None = Field(
        default=None, description="instead of documents: the response is a bare list, as TEI gives it"
    )
    top_n: int | None = Field(default=None, ge=1, description="only this many of the best; default: all")
    return_text: bool = Field(default=False, description="with texts: each result has its text")
    return_documents: bool = Field(default=False, description="with documents: each result has its document")

    def passages(self) -> list[str]:
        """The texts to rank. Raises ``ApiError``."""
        given = self.documents if self.documents is not None else self.texts
        if given is None or (self.documents is not None and self.texts is not None):
            raise ApiError(400, "Give either documents or texts.", param="documents", code="invalid_value")
        if "" in given:
            name = "texts" if self.documents is None else "documents"
            raise ApiError(400, f"{name}: an empty text has no score.", param=name, code="invalid_value")
        return given


class ScoreRequest(ModelRequest):
    """POST /v1/score"""

    text_1: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    text_2: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]

    def pairs(self) -> list[tuple[str, str]]:
        """Each pair of texts. Raises ``ApiError``."""
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) not in (1, len(second)):
            message = f"text_1 has {len(first)} texts and text_2 {len(second)}: give one, or as many."
            raise ApiError(400, message, param="text_1", code="invalid_value")
        if "" in first or "" in second:
            raise ApiError(400, "An empty text has no score.", param="text_1", code="invalid_value")
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


class SlotChange(ModelRequest):
    """POST /slots/SLOT?action=save|restore|erase"""

    may_be_empty = True

    filename: str = Field(
        default="",
        max_length=128,
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]*)?$",
        description="to save and restore: the file's name in the folder serve.slot_save_path",
    )


class AdapterChange(ModelRequest):
    """POST /lora-adapters"""

    list_field = "adapters"

    adapters: AdapterScales = Field(description="those that are not named are off; a body may be this list alone")


class ModelChange(ModelRequest):
    """POST /models/load and /models/unload"""

    model: str = Field(
        min_length=1,
        max_length=512,
        description="a name from /v1/models, or one of the Hugging Face Hub that serve.pull allows",
    )
    stream: bool = Field(default=False, description="of /models/load: events tell how far it is")
