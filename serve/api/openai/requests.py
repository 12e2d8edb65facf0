"""Requests for completions and chat completions, strictly validated, and what the engine gets from them.

The fields are OpenAI's. Those that OpenAI lacks have llama.cpp's names: ``top_k``, ``min_p``, ``typical_p``,
``repeat_penalty``, ``repeat_last_n`` and ``ignore_eos``. ``parsing.py`` decides about all other fields.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from slm.serve.api.errors import ApiError
from slm.serve.api.openai.fields import (
    MAX_FIELDS,
    ModelRequest,
    Number,
    Strict,
    Texts,
    TokenLists,
    Tokens,
    few_fields,
    texts_or_tokens,
)
from slm.serve.api.openai.messages import Message, ToolChoice, Tools, tool_use
from slm.serve.engine.messages import ModelInfo, SamplingParams
from slm.serve.grammar import forms
from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.gbnf import MAX_BYTES
from slm.serve.tools.call_form import CallForm
from slm.serve.tools.call_grammar import Reasoning, ToolUse, reply_grammar

MAX_STOPS = 16
MAX_MESSAGES = 4096
MAX_TOP_LOGPROBS = 20
_TEMPLATE_VARIABLES = {
    "messages",
    "tools",
    "add_generation_prompt",
    "documents",
    "bos_token",
    "eos_token",
    "strftime_now",
}
_MAX_SEED = 2**63 - 1

StopString = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="JSON Schema, as llama-server takes it here"
    )


class JsonSchema(Strict):
    name: str = Field(default="", max_length=256)
    description: str | None = None
    schema_: dict[str, Any] = Field(
        default={}, alias="schema", description="JSON Schema; the docs list what is supported"
    )
    strict: bool | None = Field(
        default=None, description="true: refuse a schema that cannot be enforced whole, instead of naming what is not"
    )


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Strict):
    """vLLM's form of a constraint: one of these."""

    json_: dict[str, Any] | bool | None = Field(default=None, alias="json", description="JSON Schema")
    regex: str | None = Field(default=None, max_length=MAX_BYTES, description="the whole text matches it")
    choice: Annotated[list[str], Field(max_length=10_000, fail_fast=True)] | None = None
    grammar: str | None = Field(default=None, max_length=MAX_BYTES, description="GBNF or Lark")


class _GenerationRequest(ModelRequest):
    """What completions and chat completions share."""

    temperature: Number = Field(default=1.0, ge=0, le=10, description="0: always the most likely token")
    top_p: Number = Field(
        default=1.0, ge=0, le=1, description="sample from the most likely tokens that together have this probability"
    )
    top_k: int = Field(
        default=0, ge=-1, le=2**31 - 1, description="sample from this many of the most likely tokens; 0 or -1: all"
    )
    min_p: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description="leave out tokens with less than this share of the most likely token's probability",
    )
    typical_p: Number = Field(default=1.0, ge=0, le=1, description="locally typical sampling; 1: off")
    repeat_penalty: Number = Field(
        default=1.0, ge=0.01, le=10, description="penalty for tokens that have occurred; 1: off"
    )
    repetition_penalty: Number | None = Field(
        default=None, ge=0.01, le=10, description="another name (vLLM's) of repeat_penalty; give one of them"
    )
    cache_prompt: bool = Field(default=True, description="false: compute the whole prompt, without cached tokens")
    repeat_last_n: int = Field(default=64, ge=0, le=65536, description="how many tokens the penalties look back")
    frequency_penalty: Number = Field(
        default=0.0, ge=-2, le=2, description="subtracted from a token's logit for each time that it has occurred"
    )
    presence_penalty: Number = Field(
        default=0.0, ge=-2, le=2, description="subtracted from the logit of a token that has occurred"
    )
    logit_bias: Annotated[
        dict[str, Annotated[Number, Field(ge=-100, le=100)]],
        BeforeValidator(few_fields),
        Field(max_length=MAX_FIELDS),
    ] = Field(default={})
    seed: int | None = Field(
        default=None,
        ge=-_MAX_SEED - 1,
        le=_MAX_SEED,
        description="the same seed gives the same text; default: random",
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] = Field(default=[])
    n: int = Field(
        default=1, ge=1, le=128, description="choices for each prompt, each with a seed one higher than the last"
    )
    ignore_eos: bool = Field(default=False, description="go on after an end-of-text token")
    speculate: bool | None = Field(
        default=None,
        description="whether draft tokens may be used (serve.speculate); default: only without a seed",
    )
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema, as llama-server takes it")
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = Field(
        default=None, max_length=MAX_BYTES, description="a grammar in llama.cpp's GBNF, or in llguidance's Lark"
    )
    stream: bool = Field(default=False, description="send the text as it is generated, in server-sent events")
    stream_options: StreamOptions | None = None

    def stops(self) -> tuple[str, ...]:
        """The stop strings, as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def constraint(self) -> forms.Grammar | None:
        """What constrains the text; None: nothing. Takes a while for a large schema.

        Raises ``ApiError`` for a grammar or schema that is invalid, or that is not enforceable and strict.
        """
        given = self._constraints()
        if not given:
            return None
        if len(given) > 1:
            raise ApiError(400, f"{given[0][0]} and {given[1][0]} exclude each other.", param=given[0][0])
        param, make = given[0]
        try:
            made = make()
            made.text  # noqa: B018 (checks it)
        except GrammarError as error:
            where = "" if param == "grammar" else f"{param}: "
            raise ApiError(400, f"{where}{error}.", param=param, code="invalid_grammar") from None
        if self.ignore_eos:
            raise ApiError(400, f"ignore_eos and {param} exclude each other.", param="ignore_eos")
        return made

    @property
    def own_grammar(self) -> bool:
        """Whether the constraint is a grammar of the client's own, which holds from the first character on."""
        return self.grammar is not None or (
            self.structured_outputs is not None and self.structured_outputs.grammar is not None
        )

    def _constraints(self) -> list[tuple[str, Callable[[], forms.Grammar]]]:
        """The constraints that the request has, by the field that asks for each."""
        given: list[tuple[str, Callable[[], forms.Grammar]]] = []
        if self.grammar is not None:
            given.append(("grammar", partial(forms.of_grammar, self.grammar)))
        match self.response_format:
            case JsonObjectFormat(schema_=schema):
                given.append(("response_format", partial(forms.of_json, schema or {}, of_object=True)))
            case JsonSchemaFormat(json_schema=asked):
                make = partial(forms.of_json, asked.schema_, strict=bool(asked.strict))
                given.append(("response_format", make))
        if self.json_schema is not None:
            given.append(("json_schema", partial(forms.of_json, self.json_schema)))
        if (wanted := self.structured_outputs) is not None:
            made = {
                "json": partial(forms.of_json, {} if wanted.json_ is True else wanted.json_),
                "regex": partial(forms.of_regex, wanted.regex or ""),
                "choice": partial(forms.of_choice, wanted.choice or ()),
                "grammar": partial(forms.of_grammar, wanted.grammar or ""),
            }
            asked_for = wanted.model_dump(by_alias=True, exclude_none=True)
            given += [("structured_outputs", make) for name, make in made.items() if name in asked_for]
        return given

    def sampling(self, info: ModelInfo, grammar: str | None = None) -> SamplingParams:
        """Sampling of the first choice; raises ``ApiError`` for a bias on what is no token."""
        bias = []
        for key, value in self.logit_bias.items():
            if not key.isascii() or not key.isdigit() or len(key) > 9 or int(key) >= info.n_vocab:
                raise ApiError(
                    400,
                    f"logit_bias: {key[:32]!r} is not a token id of this model (0 to {info.n_vocab - 1}).",
                    param="logit_bias",
                )
            bias.append((int(key), float("-inf") if value <= -100 else value))
        one, other = self.repeat_penalty, self.repetition_penalty
        if "repeat_penalty" in self.model_fields_set and other not in (None, one):
            raise ApiError(
                400,
                f"repeat_penalty={one:g} and repetition_penalty={other:g} are two names of one parameter: give one of "
                "them, or both with the same value.",
                param="repetition_penalty",
            )
        return SamplingParams(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repeat_penalty=one if other is None else other,
            repeat_last_n=self.repeat_last_n,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=tuple(bias),
            seed=secrets.randbits(32) if self.seed is None else self.seed,
            ignore_eos=self.ignore_eos,
            grammar=grammar,
        )

    @property
    def may_use_prefix_cache(self) -> bool:
        """False with a seed: its caller wants the same text again, and the cache's other rounding could change it."""
        return self.seed is None and self.cache_prompt

    @property
    def may_speculate(self) -> bool:
        """By default False with a seed, for the same reason."""
        return self.seed is None if self.speculate is None else self.speculate

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends in a chunk with usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk has the usage until then, as vLLM's ``continuous_usage_stats`` asks."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions"""

    prompt: str | Annotated[Texts, Field(max_length=128)] | Tokens | Annotated[TokenLists, Field(max_length=128)] = (
        Field(description="text, token ids, or a list of either")
    )
    max_tokens: int = Field(
        default=16, ge=0, le=2**31 - 1, description="most tokens to generate; it also ends when the context is full"
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="log-probabilities of the tokens, and of this many most likely ones",
    )
    echo: bool = Field(default=False, description="begin with the prompt, with its log-probabilities if asked for")

    def prompts(self, info: ModelInfo) -> list[str | tuple[int, ...]]:
        """One entry per prompt; raises ``ApiError`` for an id outside the vocabulary."""
        return texts_or_tokens(self.prompt, info, "prompt")


TruncationField = Annotated[
    Literal["auto", "disabled"] | None,
    Field(
        description="auto: drop the oldest turns of a conversation that is longer than the context; disabled: refuse it"
    ),
]


class ChatRequest(_GenerationRequest):
    """POST /v1/chat/completions"""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1, description="older name of max_completion_tokens")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="most tokens to generate; default: until the context is full"
    )
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    truncation: TruncationField = None
    tools: Tools = Field(default=[], description="functions that the reply may call")
    tool_choice: ToolChoice | None = Field(default=None, description="default: auto with tools, else none")
    parallel_tool_calls: bool = Field(default=True, description="false: at most one call in a reply")
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(few_fields)] = Field(
        default={}, description="variables for the chat template, such as enable_thinking"
    )
    separate_reasoning: bool = Field(
        default=True, description="text between `<think>` and `</think>` becomes reasoning_content; false: it stays"
    )
    continue_final_message: bool = Field(
        default=False, description="continue the last message, which is the assistant's, instead of answering it"
    )
    add_generation_prompt: bool | None = Field(
        default=None,
        description="false: the prompt does not open the assistant's turn; default: true, unless continued",
    )

    def tool_use(self) -> ToolUse | None:
        """Which tools the reply may call. Raises ``ApiError``."""
        use = tool_use(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)
        if use is not None and self.own_grammar:
            raise ApiError(400, "grammar and tools exclude each other, unless tool_choice is none.", param="grammar")
        if use is not None and self.ignore_eos:
            raise ApiError(400, "ignore_eos and tools exclude each other.", param="ignore_eos")
        if use is not None and not self.separate_reasoning:
            # A call that is only thought of would be read as one.
            message = "separate_reasoning=false and tools exclude each other, unless tool_choice is none."
            raise ApiError(400, message, param="separate_reasoning")
        return use

    def opens_turn(self) -> bool:
        """Whether the prompt ends where the assistant begins. Raises ``ApiError`` for wishes that contradict each
        other, and for names that ``chat_template_kwargs`` may not have."""
        reserved = sorted(_TEMPLATE_VARIABLES & self.chat_template_kwargs.keys())
        if reserved:
            message = f"chat_template_kwargs: {reserved[0]} cannot be given there."
            raise ApiError(400, message, param="chat_template_kwargs", code="invalid_value")
        if not self.continue_final_message:
            return self.add_generation_prompt is not False
        if self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt exclude each other."
            raise ApiError(400, message, param="add_generation_prompt", code="invalid_value")
        last = self.messages[-1]
        if last.role != "assistant" or last.tool_calls or not last.text().strip():
            message = "continue_final_message: the last message must be the assistant's and have a text."
            raise ApiError(400, message, param="messages", code="invalid_value")
        return False

    def limit(self) -> int | None:
        """Most tokens to generate; None: as far as the context goes."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def n_top(self) -> int | None:
        """``top_logprobs`` as the engine takes it; raises ``ApiError`` when it is given without ``logprobs``."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true.", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


def call_grammar(
    form: CallForm, use: ToolUse, reasoning: Reasoning, content: forms.Grammar | None
) -> tuple[str, tuple[str, ...]]:
    """The grammar of a reply with calls; see ``reply_grammar``. Large schemas take a while. Raises ``ApiError``."""
    try:
        return reply_grammar(form, use, reasoning, content)
    except GrammarError as error:
        raise ApiError(400, f"tools: {error}.", param="tools", code="invalid_grammar") from None


def thoughtful_grammar(grammar: forms.Grammar) -> str:
    """The grammar of ``response_format`` for a reply that begins inside its reasoning. Raises ``ApiError``."""
    try:
        return grammar.after_thought
    except GrammarError as error:
        message = f"response_format: {error}."
        raise ApiError(400, message, param="response_format", code="invalid_grammar") from None
