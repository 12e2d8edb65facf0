"""Request bodies, validated strictly before anything else sees them, and their way into engine commands.

The fields are OpenAI's; `top_k`, `min_p`, `typical_p`, `repeat_penalty`, `repeat_last_n` and `ignore_eos` are
llama.cpp's names for what OpenAI lacks. Fields that would not change the text are accepted and ignored; those
that would, and are not supported, are refused by name, never silently dropped.
"""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.errors import nearest
from serve.errors import ApiError
from serve.gbnf import check
from serve.gbnf_tree import MAX_BYTES, GrammarError
from serve.messages import ModelInfo, SamplingParams
from serve.schema import json_object_grammar, schema_grammar

MAX_STOPS = 16
MAX_INPUTS = 2048
MAX_TOP_LOGPROBS = 20
_MAX_SEED = 2**63 - 1

StopString = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]

_IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
}
_UNSUPPORTED = {
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "json_schema",
    "suffix",
    "best_of",
    "audio",
    "modalities",
    "prediction",
    "reasoning_effort",
    "verbosity",
    "web_search_options",
    "previous_response_id",
    "conversation",
    "background",
    "include",
    "reasoning",
    "truncation",
    "max_tool_calls",
}
# Values of unsupported fields that ask for what happens anyway.
_HARMLESS = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "best_of": (1,),
    "modalities": (["text"],),
    "suffix": ("",),
    "background": (False,),
    "include": ([],),
    "truncation": ("disabled",),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


class TextFormat(_Strict):
    type: Literal["text"]


class JsonObjectFormat(_Strict):
    type: Literal["json_object"]


class JsonSchema(_Strict):
    name: str = Field(max_length=256)
    description: str | None = None
    schema_: dict[str, Any] = Field({}, alias="schema", description="JSON Schema; see the docs for what is supported")
    strict: bool | None = Field(None, description="the schema is always kept to")


class JsonSchemaFormat(_Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class _Generation(_Strict):
    """What completions and chat completions share."""

    model: str | None = Field(None, max_length=512)
    temperature: Number = Field(1.0, ge=0, le=10, description="0: always the likeliest token")
    top_p: Number = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1, description="0 or -1: off")
    min_p: Number = Field(0.0, ge=0, le=1)
    typical_p: Number = Field(1.0, ge=0, le=1)
    repeat_penalty: Number = Field(1.0, ge=0.01, le=10)
    repeat_last_n: int = Field(64, ge=0, le=65536)
    frequency_penalty: Number = Field(0.0, ge=-2, le=2)
    presence_penalty: Number = Field(0.0, ge=-2, le=2)
    logit_bias: dict[str, Annotated[Number, Field(ge=-100, le=100)]] = Field({}, max_length=1024)
    seed: int | None = Field(None, ge=-_MAX_SEED - 1, le=_MAX_SEED)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = []
    n: int = Field(1, ge=1, le=128)
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    grammar: str | None = Field(None, max_length=MAX_BYTES, description="GBNF, llama.cpp's form of a grammar")
    stream: bool = False
    stream_options: StreamOptions | None = None

    def stops(self) -> tuple[str, ...]:
        """The stop strings, as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def constraint(self) -> str | None:
        """The grammar that the text must fit, checked; raises `ApiError` for one that cannot be kept to. Takes a
        while for a big schema."""
        if self.grammar is not None and isinstance(self.response_format, JsonObjectFormat | JsonSchemaFormat):
            raise ApiError(400, "grammar and response_format exclude each other.", param="grammar")
        param = "response_format" if self.grammar is None else "grammar"
        try:
            match self.response_format:
                case JsonObjectFormat():
                    text = json_object_grammar()
                case JsonSchemaFormat(json_schema=given):
                    text = schema_grammar(given.schema_)
                case _ if self.grammar is not None:
                    text = check(self.grammar)
                case _:
                    return None
        except GrammarError as error:
            raise ApiError(400, f"{error}.", param=param, code="invalid_grammar") from None
        if self.ignore_eos:
            raise ApiError(400, f"ignore_eos and {param} exclude each other.", param="ignore_eos")
        return text

    def sampling(self, info: ModelInfo, grammar: str | None = None) -> SamplingParams:
        """Sampling of the first choice; raises `ApiError` for a bias on what is no token."""
        bias = []
        for key, value in self.logit_bias.items():
            if not key.isascii() or not key.isdigit() or len(key) > 9 or int(key) >= info.n_vocab:
                raise ApiError(
                    400,
                    f"logit_bias: {key[:32]!r} is not a token id of this model (0 to {info.n_vocab - 1}).",
                    param="logit_bias",
                )
            bias.append((int(key), float("-inf") if value <= -100 else value))
        return SamplingParams(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=tuple(bias),
            seed=secrets.randbits(32) if self.seed is None else self.seed,
            ignore_eos=self.ignore_eos,
            grammar=grammar,
        )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Generation):
    """POST /v1/completions"""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=128)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=128)]
    ) = Field(description="text, token ids, or a list of either")
    max_tokens: int = Field(16, ge=0, le=2**31 - 1, description="cut at the context's end")
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False

    def prompts(self, info: ModelInfo) -> list[str | tuple[int, ...]]:
        """One entry per prompt; raises `ApiError` for an id outside the vocabulary."""
        return _texts_or_tokens(self.prompt, info, "prompt")


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def text(self) -> str:
        """The content, its parts joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Generation):
    """POST /v1/chat/completions"""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="the older name")
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="default: the context")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    def limit(self) -> int | None:
        """Most tokens to generate; None: as far as the context goes."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def n_top(self) -> int | None:
        """`top_logprobs` as the engine takes it; raises `ApiError` when it is given without `logprobs`."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true.", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingRequest(_Strict):
    """POST /v1/embeddings"""

    model: str | None = Field(None, max_length=512)
    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_INPUTS)]
    ) = Field(description="text, token ids, or a list of either")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="only the model's own width")

    def inputs(self, info: ModelInfo) -> tuple[str | tuple[int, ...], ...]:
        """One entry per input; raises `ApiError` for an id outside the vocabulary or another width."""
        if self.dimensions not in (None, info.n_embd):
            message = f"dimensions: this model's embeddings have {info.n_embd}; they cannot be shortened."
            raise ApiError(400, message, param="dimensions", code="invalid_value")
        inputs = _texts_or_tokens(self.input, info, "input")
        if "" in inputs:
            raise ApiError(400, "input: an empty text has no embedding.", param="input", code="invalid_value")
        return tuple(inputs)


class TokenizeRequest(_Strict):
    """POST /tokenize"""

    model: str | None = None
    content: str
    add_special: bool = Field(False, description="put BOS first where the model's file asks for it")
    parse_special: bool = Field(False, description="read special tokens spelled in the text as such")


class DetokenizeRequest(_Strict):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[TokenId] = Field(max_length=1 << 20)


def _texts_or_tokens(given: Any, info: ModelInfo, param: str) -> list[str | tuple[int, ...]]:
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        texts: list[str | tuple[int, ...]] = [tuple(given)]
    else:
        texts = [each if isinstance(each, str) else tuple(each) for each in given]
    for each in texts:
        if not isinstance(each, str):
            check_tokens(each, info, param)
    return texts


Body = TypeVar("Body", bound=BaseModel)


def check_tokens(tokens: tuple[int, ...], info: ModelInfo, param: str) -> None:
    """Raises `ApiError` for an id outside the vocabulary."""
    worst = max(tokens, default=0)
    if worst >= info.n_vocab:
        raise ApiError(400, f"{param}: {worst} is not a token id of this model (0 to {info.n_vocab - 1}).", param=param)


def parse(cls: type[Body], raw: bytes) -> Body:
    """A validated body from JSON bytes; every mistake is an `ApiError` 400 that names the parameter."""
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError among them
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"The body must be a JSON object, not {_json_type(value)}.", code="invalid_json")
    # A null is how some clients say "not given".
    fields = {key: each for key, each in value.items() if each is not None}
    for key in list(fields):
        if key in cls.model_fields:
            continue
        if key in _IGNORED:
            del fields[key]
        elif key in _UNSUPPORTED:
            if fields[key] not in _HARMLESS.get(key, ()):
                raise ApiError(400, f"{key} is not supported by this server.", param=key, code="unsupported")
            del fields[key]
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        raise _explain(error, cls) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _explain(error: ValidationError, cls: type[BaseModel]) -> ApiError:
    errors = error.errors(include_url=False, include_input=False)
    # Of the branches of a union, the one that the value came furthest with is the one that was meant.
    first = max((each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]), key=lambda each: len(each["loc"]))
    # Names of branches ("str", "list[str]") say nothing to a caller.
    path = [str(part) for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part != "str")]
    param = ".".join(path)[:200]
    top = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        name = param or top[:100]
        hint = nearest(name, cls.model_fields) if len(path) <= 1 else ""
        return ApiError(400, f"Unknown parameter {name!r}. {hint}".strip(), param=param, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
    if top in ("prompt", "input") and cls in (CompletionRequest, EmbeddingRequest):
        message = "must be a text, a list of texts, a list of token ids or a list of such lists, none empty"
        return ApiError(400, f"{top} {message}.", param=top, code="invalid_value")
    return ApiError(400, f"{param}: {first['msg']}.", param=param, code="invalid_value")
