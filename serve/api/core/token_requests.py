"""Requests that generate nothing: embeddings, text to token ids, token ids to text.

Tested in tests/serve/api/openai/test_embeddings.py, tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from slm.serve.api.core.fields import (
    MAX_TOKENS,
    Mixed,
    MixedLists,
    ModelRequest,
    Texts,
    TokenId,
    TokenLists,
    Tokens,
    texts_or_tokens,
)
from slm.serve.api.errors import ApiError
from slm.serve.engine.protocol import ModelInfo

MAX_INPUTS = 2048


class EmbeddingRequest(ModelRequest):
    """POST /v1/embeddings"""

    route = "embeddings"

    input: (
        str
        | Annotated[Texts, Field(max_length=MAX_INPUTS)]
        | Tokens
        | Annotated[TokenLists, Field(max_length=MAX_INPUTS)]
        | Mixed
        | Annotated[MixedLists, Field(max_length=MAX_INPUTS)]
    ) = Field(description="text, token ids, both in one list, or a list of these")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, description="must be the model's own width")

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Objects with a text, as llama-server takes them, as the text."""
        match given.get("input"):
            case dict() as one:
                return {**given, "input": _text_of(one)}
            case list() as several if any(isinstance(each, dict) for each in several[:MAX_INPUTS]):
                return {**given, "input": [_text_of(each) if isinstance(each, dict) else each for each in several]}
        return given

    def inputs(self, info: ModelInfo) -> tuple[str | tuple[int | str, ...], ...]:
        """One entry per input; raises ``ApiError`` for an id outside the vocabulary or another width."""
        if self.dimensions not in (None, info.n_embd):
            message = f"dimensions: this model's embeddings have {info.n_embd}; they cannot be shortened."
            raise ApiError(400, message, param="dimensions", code="invalid_value")
        inputs: list[Any] = texts_or_tokens(self.input, info, "input")
        if "" in inputs:
            raise ApiError(400, "input: an empty text has no embedding.", param="input", code="invalid_value")
        return tuple(inputs)


def _text_of(given: dict[str, Any]) -> Any:
    """The text of ``{"prompt_string": TEXT}`` or ``{"content": [{"type": "text", "text": TEXT}, ...]}``; of any other
    object, the object itself, which is refused."""
    match given:
        case {"prompt_string": str(text)} if not given.get("multimodal_data"):
            return text
        case {"content": str(text)}:
            return text
        case {"content": [*parts]} if all(
            isinstance(each, dict) and each.get("type") == "text" and isinstance(each.get("text"), str)
            for each in parts
        ):
            return "".join(each["text"] for each in parts)
    return given


class TokenizeRequest(ModelRequest):
    """POST /tokenize"""

    content: str | None = None
    add_special: bool = Field(default=False, description="put BOS first where the model's file asks for it")
    parse_special: bool = Field(default=False, description="true: the name of a special token becomes that token")
    with_pieces: bool = Field(default=False, description="each token with its text, or its bytes if it is no text")
    prompt: str | None = Field(
        default=None, description="instead of content: a text in which names of special tokens become those tokens"
    )
    add_special_tokens: bool = Field(default=True, description="with prompt: what add_special is with content")

    def text(self) -> tuple[str, bool, bool]:
        """The text, whether BOS comes first, and whether special tokens are read. Raises ``ApiError``."""
        if self.content is not None and self.prompt is None:
            return self.content, self.add_special, self.parse_special
        if self.prompt is not None and self.content is None:
            return self.prompt, self.add_special_tokens, True
        code = "missing_required_parameter" if self.content is None else "invalid_value"
        raise ApiError(400, "Give either content or prompt.", param="content", code=code)


class DetokenizeRequest(ModelRequest):
    """POST /detokenize"""

    tokens: list[TokenId] = Field(max_length=MAX_TOKENS, fail_fast=True)
