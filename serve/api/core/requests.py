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

from slm.serve.api.core.fields import (
    MAX_FIELDS,
    Mixed,
    MixedLists,
    ModelRequest,
    Number,
    Prompt,
    Strict,
    Texts,
    TokenId,
    TokenLists,
    Tokens,
    check_tokens,
    few_fields,
    texts_or_tokens,
)
from slm.serve.api.core.messages import Message, ToolChoice, Tools, tool_use
from slm.serve.api.errors import ApiError
from slm.serve.chat_template import THINKING
from slm.serve.engine.protocol import ModelInfo, SamplingParams
from slm.serve.grammar import forms
from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.gbnf import MAX_BYTES
from slm.serve.tools.call_form import CallForm, Reasoning
from slm.serve.tools.call_grammar import ToolUse, reply_grammar
from slm.serve.tools.channels import Begins, answer_grammar

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
_NO_LIMIT = 2**31 - 1
MAX_PROMPTS = 128

_MODELS = "the model's (`meta.sampling` of /v1/models)"

_LLAMA_SAMPLERS = (
    *("top_n_sigma", "dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold", "dry_multiplier"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta"),
)
"""Fields that the engine has under the same names."""

StopString = Annotated[str, Field(min_length=1, max_length=256)]


def _biases(value: Any) -> Any:
    """``logit_bias`` as an object, where it is llama-server's list of pairs; false bans a token."""
    if isinstance(value, list):
        if len(value) > MAX_FIELDS:
            raise ValueError(f"{len(value)} entries; there may be at most {MAX_FIELDS}")
        made: dict[str, Any] = {}
        for each in value:
            if not isinstance(each, list) or len(each) != 2 or isinstance(each[0], bool | float | list | dict | None):
                raise ValueError("every entry must be a pair of a token's id (or a text) and its bias")
            made[str(each[0])] = each[1]
        value = made
    value = few_fields(value)
    if isinstance(value, dict):
        return {key: -100 if bias is False else bias for key, bias in value.items()}
    return value


class StreamOptions(Strict):
    place = "stream_options"

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


_SAYS_A_TYPE = {"type", "const", "enum", "items", "prefixItems", "$ref", "allOf", "anyOf", "oneOf", "not"}
"""Keywords of a schema that may allow other values than objects."""


class TextFormat(Strict):
    place = "response_format"

    type: Literal["text"]


class JsonObjectFormat(Strict):
    place = "response_format"

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="JSON Schema, as llama-server takes it here"
    )


class JsonSchema(Strict):
    place = "response_format.json_schema"

    name: str = Field(default="", max_length=256)
    description: str | None = None
    schema_: dict[str, Any] = Field(
        default={}, alias="schema", description="JSON Schema; the docs list what is supported"
    )
    strict: bool | None = Field(
        default=None, description="true: refuse a schema that cannot be enforced whole, instead of naming what is not"
    )


class JsonSchemaFormat(Strict):
    place = "response_format"

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Strict):
    """vLLM's form of a constraint: one of these."""

    place = "structured_outputs"
    also = ("json_object", "structural_tag")

    json_: dict[str, Any] | bool | None = Field(default=None, alias="json", description="JSON Schema")
    regex: str | None = Field(default=None, max_length=MAX_BYTES, description="the whole text matches it")
    choice: Annotated[list[str], Field(max_length=10_000, fail_fast=True)] | None = None
    grammar: str | None = Field(default=None, max_length=MAX_BYTES, description="GBNF or Lark")

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """``json_object`` as the schema of any object."""
        given = dict(given)
        if given.pop("structural_tag", None):
            raise ValueError("structural_tag is not supported; use json, regex, choice or grammar")
        if given.pop("json_object", False):
            if "json" in given:
                raise ValueError("json and json_object exclude each other")
            given["json"] = {"type": "object"}
        return given


class AdapterScale(Strict):
    place = "lora"

    id: int = Field(ge=0, le=1023, description="a number from /lora-adapters")
    scale: float = Field(ge=-100, le=100, allow_inf_nan=False, description="by what its part is multiplied; 0: off")


AdapterScales = Annotated[list[AdapterScale], Field(max_length=64)]


def adapter_scales(given: list[AdapterScale], info: ModelInfo) -> tuple[float, ...]:
    """A number for each of the engine's adapters, 0 for those that are not named; (): what holds without a choice.
    Raises ``ApiError``."""
    named: dict[int, float] = {}
    for each in given:
        if each.id >= len(info.adapters):
            there = f"0 to {len(info.adapters) - 1}" if info.adapters else "there is none (serve.lora)"
            raise ApiError(400, f"lora: {each.id} is no adapter of this model: {there}.", param="lora")
        if each.id in named:
            raise ApiError(400, f"lora: adapter {each.id} is named twice.", param="lora")
        named[each.id] = each.scale
    scales = tuple(named.get(i, 0.0) for i in range(len(info.adapters)))
    return () if scales == tuple(scale for _, scale in info.adapters) else scales


class SamplingFields(ModelRequest):
    """How tokens are sampled, in every route that generates text."""

    temperature: Number | None = Field(
        default=None, ge=0, le=10, description=f"0: always the most likely token; default: {_MODELS}"
    )
    top_p: Number | None = Field(
        default=None,
        ge=0,
        le=1,
        description=f"sample from the most likely tokens that together have this probability; default: {_MODELS}",
    )
    top_k: int | None = Field(
        default=None,
        ge=-1,
        le=2**31 - 1,
        description=f"sample from this many of the most likely tokens; 0 or -1: all; default: {_MODELS}",
    )
    min_p: Number | None = Field(
        default=None,
        ge=0,
        le=1,
        description="leave out tokens with less than this share of the most likely token's probability; "
        f"default: {_MODELS}",
    )
    typical_p: Number = Field(default=1.0, ge=0, le=1, description="locally typical sampling; 1: off")
    repeat_penalty: Number | None = Field(
        default=None, ge=0.01, le=10, description=f"penalty for tokens that have occurred; 1: off; default: {_MODELS}"
    )
    repetition_penalty: Number | None = Field(
        default=None, ge=0.01, le=10, description="another name (vLLM's) of repeat_penalty; give one of them"
    )
    lora: AdapterScales | None = Field(
        default=None,
        description="LoRA adapters of this request, the others are off; default: what /lora-adapters says",
    )
    cache_prompt: bool = Field(default=True, description="false: compute the whole prompt, without cached tokens")
    return_progress: bool = Field(
        default=False, description="a stream then also says how much of the prompt is computed (`prompt_progress`)"
    )
    id_slot: int | None = Field(
        default=None, ge=-1, le=1023, description="the slot of the cache to use if it is free; -1: any"
    )
    n_keep: int = Field(
        default=0,
        ge=-1,
        le=_NO_LIMIT,
        description="with serve.context_shift: the first tokens of the prompt that always stay; -1: all of them",
    )
    n_discard: int = Field(
        default=0,
        ge=0,
        le=_NO_LIMIT,
        description="with serve.context_shift: how many tokens go when the context is full; 0: half of the others",
    )
    timings_per_token: bool = Field(default=False, description="every event of a stream has the `timings` so far")
    repeat_last_n: int | None = Field(
        default=None,
        ge=-1,
        le=65536,
        description=f"how many tokens the penalties look back; -1: the whole context; default: {_MODELS}",
    )
    frequency_penalty: Number = Field(
        default=0.0, ge=-2, le=2, description="subtracted from a token's logit for each time that it has occurred"
    )
    presence_penalty: Number = Field(
        default=0.0, ge=-2, le=2, description="subtracted from the logit of a token that has occurred"
    )
    logit_bias: Annotated[
        dict[str, Annotated[Number, Field(ge=-100, le=100)]],
        BeforeValidator(_biases),
        Field(max_length=MAX_FIELDS),
    ] = Field(
        default={},
        description="added to the logits of tokens, named by id or by their text; -100 bans one. A list of pairs "
        "`[ID or TEXT, BIAS]` works, too",
    )
    seed: int | None = Field(
        default=None,
        ge=-_MAX_SEED - 1,
        le=_MAX_SEED,
        description="the same seed gives the same text; default, and -1: random",
    )
    ignore_eos: bool = Field(default=False, description="go on after an end-of-text token")
    min_tokens: int = Field(
        default=0, ge=0, le=_NO_LIMIT, description="this many tokens come before one that ends the text"
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_FIELDS, fail_fast=True)] = Field(
        default=[], description="tokens that end the text and add nothing to it"
    )
    top_n_sigma: Number = Field(
        default=-1.0,
        ge=-1,
        le=100,
        description="leave out tokens this many standard deviations below the best; -1: off",
    )
    dynatemp_range: Number = Field(
        default=0.0, ge=0, le=10, description="the temperature varies by so much with the entropy; 0: off"
    )
    dynatemp_exponent: Number = Field(default=1.0, ge=0, le=10)
    xtc_probability: Number = Field(
        default=0.0, ge=0, le=1, description="how often all likely tokens but the last are left out; 0: off"
    )
    xtc_threshold: Number = Field(default=0.1, ge=0, le=1, description="what counts as likely; above 0.5: off")
    dry_multiplier: Number = Field(default=0.0, ge=0, le=100, description="DRY penalty of repetitions; 0: off")
    dry_base: Number = Field(default=1.75, ge=1, le=100)
    dry_allowed_length: int = Field(default=2, ge=0, le=65536)
    dry_penalty_last_n: int = Field(default=-1, ge=-1, le=65536, description="-1: the whole context")
    dry_sequence_breakers: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=40)]], Field(min_length=1, max_length=64)
    ] = Field(default=["\n", ":", '"', "*"], description="texts over which no repetition reaches")
    mirostat: Literal[0, 1, 2] = Field(
        default=0, description="Mirostat's version, in place of the samplers that leave tokens out; 0: off"
    )
    mirostat_tau: Number = Field(default=5.0, ge=0, le=100)
    mirostat_eta: Number = Field(default=0.1, ge=0, le=1)
    speculate: bool | None = Field(
        default=None,
        description="whether draft tokens may be used (serve.speculate); default: only without a seed",
    )

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Without a seed of -1, by which many clients mean a random one."""
        return {key: each for key, each in given.items() if key != "seed" or each != -1 or isinstance(each, bool)}

    def sampling_fields(self) -> dict[str, Any]:
        """Those of the fields that were given, for another request."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields if name in self.model_fields_set}


class _GenerationRequest(SamplingFields):
    """What completions and chat completions share."""

    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] = Field(default=[])
    n: int = Field(
        default=1, ge=1, le=128, description="choices for each prompt, each with a seed one higher than the last"
    )
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema, as llama-server takes it")
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = Field(
        default=None, max_length=MAX_BYTES, description="a grammar in llama.cpp's GBNF, or in llguidance's Lark"
    )
    stream: bool = Field(default=False, description="send the text as it is generated, in server-sent events")
    stream_options: StreamOptions | None = None

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Also without empty stop strings, by which some clients mean none."""
        given = super().adapted(given)
        stop = given.get("stop")
        if stop == "":
            del given["stop"]
        elif isinstance(stop, list):
            given["stop"] = [each for each in stop if each != ""]
        return given

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
                # A schema says itself what the text is, also where that is no object.
                of_object = not schema or not _SAYS_A_TYPE & schema.keys()
                given.append(("response_format", partial(forms.of_json, schema or {}, of_object=of_object)))
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

    def is_random(self, info: ModelInfo) -> bool:
        """Whether each prompt gets a seed at random: neither the request nor the server names one."""
        return self.seed is None and info.sampling.seed is None

    def sampling(self, info: ModelInfo, grammar: str | None = None) -> SamplingParams:
        """Sampling of the first choice; raises ``ApiError`` for a bias on what is no token."""
        bias: list[tuple[int | str, float]] = []
        for key, value in self.logit_bias.items():
            amount = float("-inf") if value <= -100 else value
            if not key.isascii() or not key.isdigit():
                if not key:
                    raise ApiError(400, "logit_bias: an empty text is no token.", param="logit_bias")
                bias.append((key, amount))
            elif len(key) > 9 or int(key) >= info.n_vocab:
                message = f"logit_bias: {key[:32]!r} is not a token id of this model (0 to {info.n_vocab - 1})."
                raise ApiError(400, message, param="logit_bias")
            else:
                bias.append((int(key), amount))
        check_tokens(tuple(self.stop_token_ids), info, "stop_token_ids")
        one, other = self.repeat_penalty, self.repetition_penalty
        if one is not None and other not in (None, one):
            raise ApiError(
                400,
                f"repeat_penalty={one:g} and repetition_penalty={other:g} are two names of one parameter: give one of "
                "them, or both with the same value.",
                param="repetition_penalty",
            )
        given = {
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repeat_penalty": other if one is None else one,
            "repeat_last_n": info.context if self.repeat_last_n == -1 else self.repeat_last_n,
        }
        return info.sampling.params(
            **given,
            typical_p=self.typical_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=tuple(bias),
            seed=secrets.randbits(32) if self.is_random(info) else self.seed,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(self.stop_token_ids),
            dry_sequence_breakers=tuple(self.dry_sequence_breakers),
            **{name: getattr(self, name) for name in _LLAMA_SAMPLERS},
            grammar=grammar,
        )

    @property
    def may_speculate(self) -> bool:
        """By default False with a seed: its caller wants the same text again, and a batch of draft tokens rounds in
        another way."""
        return self.seed is None if self.speculate is None else self.speculate

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends in a chunk with usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_progress(self) -> bool:
        """Whether a stream says how much of the prompt is computed."""
        return self.stream and self.return_progress

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk has the usage until then, as vLLM's ``continuous_usage_stats`` asks."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions"""

    route = "completions"

    prompt: (
        str
        | Annotated[Texts, Field(max_length=MAX_PROMPTS)]
        | Tokens
        | Annotated[TokenLists, Field(max_length=MAX_PROMPTS)]
        | Mixed
        | Annotated[MixedLists, Field(max_length=MAX_PROMPTS)]
    ) = Field(
        description="text, token ids, or a list that has both, which are one prompt; a list with lists of token ids in "
        "it, or of texts alone, is several prompts"
    )
    max_tokens: int = Field(
        default=16,
        ge=0,
        le=2**31 - 1,
        description="most tokens to generate; it also ends when the context is full; -1: only then",
    )
    parse_special: bool = Field(
        default=False, description="true: the name of a control token in the prompt's text becomes that token"
    )
    add_special_tokens: bool = Field(default=True, description="put BOS first where the model's file asks for it")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="log-probabilities of the tokens, and of this many most likely ones",
    )
    suffix: str = Field(
        default="", description="the text behind the gap that is filled in; for models with tokens for that"
    )
    echo: bool = Field(default=False, description="begin with the prompt, with its log-probabilities if asked for")

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Also without a limit of -1, and with false for no log-probabilities."""
        given = super().adapted(given)
        if given.get("max_tokens") == -1:
            given["max_tokens"] = _NO_LIMIT
        if given.get("logprobs") is False:
            del given["logprobs"]
        return given

    def prompts(self, info: ModelInfo) -> list[Prompt]:
        """One entry per prompt; raises ``ApiError`` for an id outside the vocabulary."""
        return texts_or_tokens(self.prompt, info, "prompt")


TruncationField = Annotated[
    Literal["auto", "disabled"] | None,
    Field(
        description="auto: drop the oldest turns of a conversation that is longer than the context; disabled: refuse it"
    ),
]


class Thinking(Strict):
    """Whether the model reasons first, in Anthropic's form."""

    place = "thinking"

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=0, le=_NO_LIMIT, description="most tokens of reasoning")


class ReasoningOptions(Strict):
    """How the model reasons, as /v1/responses has it, with the names that routers of requests add."""

    place = "reasoning"

    effort: str | None = Field(default=None, max_length=32)
    enabled: bool | None = None
    max_tokens: int | None = Field(default=None, ge=0, le=_NO_LIMIT, description="most tokens of reasoning")


class ChatRequest(_GenerationRequest):
    """POST /v1/chat/completions"""

    route = "chat"

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
    verbose: bool = Field(
        default=False, description="the response has the prompt's text as `__verbose.prompt`; a stream does not"
    )
    separate_reasoning: bool = Field(
        default=True, description="text between `<think>` and `</think>` becomes reasoning_content; false: it stays"
    )
    continue_final_message: bool | None = Field(
        default=None,
        description="continue the last message, which is the assistant's, instead of answering it; default: true where "
        "it is the assistant's and has a text",
    )
    add_generation_prompt: bool | None = Field(
        default=None,
        description="false: the prompt does not open the assistant's turn; default: true, unless continued",
    )

    reasoning_effort: str | None = Field(
        default=None,
        max_length=32,
        description="given to the chat template, where it reads that; none turns reasoning off",
    )
    verbosity: str | None = Field(
        default=None, max_length=32, description="given to the chat template, where it reads that"
    )
    enable_thinking: bool | None = Field(
        default=None, description="whether the model reasons first, where the chat template lets one choose"
    )
    think: bool | str | None = Field(default=None, description="Ollama's form of enable_thinking and reasoning_effort")
    thinking: bool | Thinking | None = Field(default=None, description="Anthropic's form of enable_thinking")
    reasoning: ReasoningOptions | None = Field(default=None, description="reasoning_effort and more, in an object")
    thinking_budget_tokens: int | None = Field(
        default=None,
        ge=-1,
        le=_NO_LIMIT,
        description="most tokens of reasoning, behind which the answer begins; -1: no limit; default: the server's",
    )
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = Field(
        default=None, description="llama-server's form of separate_reasoning: none is false"
    )

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Also without a limit of -1."""
        given = super().adapted(given)
        return {
            key: each
            for key, each in given.items()
            if key not in ("max_tokens", "max_completion_tokens") or each != -1 or isinstance(each, bool)
        }

    def template_options(self) -> dict[str, tuple[str, Any]]:
        """Variables for the chat template that have their own field in the request, each with the field's name."""
        out: dict[str, tuple[str, Any]] = {}

        def thinks(where: str, value: bool) -> None:
            for name in THINKING:
                out[name] = (where, value)

        efforts = [("reasoning_effort", self.reasoning_effort)]
        if self.reasoning is not None:
            efforts.append(("reasoning", self.reasoning.effort))
            if self.reasoning.enabled is not None:
                thinks("reasoning", self.reasoning.enabled)
        if isinstance(self.think, str):
            efforts.append(("think", self.think))
        for where, effort in efforts:
            if effort is not None:
                thinks(where, effort != "none")
                out["reasoning_effort"] = (where, effort)
        if isinstance(self.think, bool):
            thinks("think", self.think)
        if self.thinking is not None:
            thinks("thinking", self.thinking if isinstance(self.thinking, bool) else self.thinking.type != "disabled")
        if self.enable_thinking is not None:
            thinks("enable_thinking", self.enable_thinking)
        if self.verbosity is not None:
            out["verbosity"] = ("verbosity", self.verbosity)
        return {name: each for name, each in out.items() if name not in self.chat_template_kwargs}

    def reasoning_budget(self, default: int) -> int | None:
        """Most tokens of reasoning; None: no limit. ``default``: the server's, -1 for none."""
        given = [
            self.thinking_budget_tokens,
            self.reasoning.max_tokens if self.reasoning else None,
            self.thinking.budget_tokens if isinstance(self.thinking, Thinking) else None,
        ]
        chosen = next((each for each in given if each is not None), default)
        return None if chosen < 0 else chosen

    @property
    def separates_reasoning(self) -> bool:
        """Whether reasoning is split off."""
        return self.separate_reasoning and self.reasoning_format != "none"

    @property
    def continues(self) -> bool:
        """Whether the reply goes on with the last message. By default it does where that is the assistant's."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        last = self.messages[-1]
        if last.role != "assistant" or last.tool_calls or not last.text().strip():
            return False
        return self.add_generation_prompt is None

    def tool_use(self) -> ToolUse | None:
        """Which tools the reply may call. Raises ``ApiError``."""
        use = tool_use(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)
        if use is not None and self.own_grammar:
            raise ApiError(400, "grammar and tools exclude each other, unless tool_choice is none.", param="grammar")
        if use is not None and self.ignore_eos:
            raise ApiError(400, "ignore_eos and tools exclude each other.", param="ignore_eos")
        if use is not None and not self.separates_reasoning:
            # A tool call quoted inside reasoning would be parsed as a real call.
            message = "separate_reasoning=false and tools exclude each other, unless tool_choice is none."
            raise ApiError(400, message, param="separate_reasoning")
        return use

    @property
    def wants_parallel(self) -> bool:
        """Whether the client asks for several calls in a reply, which is not said by default."""
        return self.parallel_tool_calls and "parallel_tool_calls" in self.model_fields_set

    @property
    def answers_at_once(self) -> bool:
        """Whether a constraint holds from the first character on, and so before any reasoning."""
        return self.own_grammar or (bool(self._constraints()) and not self.separates_reasoning)

    def opens_turn(self) -> bool:
        """Whether the prompt ends where the assistant begins. Raises ``ApiError`` for wishes that contradict each
        other, and for names that ``chat_template_kwargs`` may not have."""
        reserved = sorted(_TEMPLATE_VARIABLES & self.chat_template_kwargs.keys())
        if reserved:
            message = f"chat_template_kwargs: {reserved[0]} cannot be given there."
            raise ApiError(400, message, param="chat_template_kwargs", code="invalid_value")
        if not self.continues:
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
    form: CallForm, use: ToolUse, reasoning: Reasoning, content: forms.Grammar | None, begins: Begins
) -> tuple[str, tuple[str, ...]]:
    """The grammar of a reply with calls; see ``reply_grammar``. Large schemas take a while. Raises ``ApiError``."""
    try:
        return reply_grammar(form, use, reasoning, content, begins)
    except GrammarError as error:
        raise ApiError(400, f"tools: {error}.", param="tools", code="invalid_grammar") from None


def thoughtful_grammar(grammar: forms.Grammar, reasoning: Reasoning, begins: Begins) -> str:
    """The grammar of ``response_format`` for a reply that begins inside its reasoning, or with its channel. Raises
    ``ApiError``."""
    try:
        return answer_grammar(grammar, reasons=reasoning != "none") if begins else grammar.after_thought
    except GrammarError as error:
        message = f"response_format: {error}."
        raise ApiError(400, message, param="response_format", code="invalid_grammar") from None
