"""What becomes of the fields that clients send and a route does not use: one table.

Fields that change no text are ignored, and the response names them in a header. Fields of a feature that the server
lacks are accepted at the values that ask for nothing, and refused by name at all others. A field that stands in no
table is ignored, too, unless its name looks like a mistyped one. docs/serving.md shows the table.

Tested in tests/serve/api/test_client_fields.py.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slm.serve.api.errors import ApiError

HEADER = "x-slm-ignored"
"""The header of a response that names the ignored fields of its request."""
Route = Literal["chat", "completions", "responses", "messages", "embeddings"]
_MISTYPED = 0.9
"""A name as similar as this to a field's (``difflib``'s ratio) is taken for a mistake: one letter of nine."""
_SHOWN = 20
"""Most names in the header."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What becomes of some fields where a route does not use them."""

    names: tuple[str, ...]
    why: str
    """For the docs and for the message that refuses a value."""
    only: tuple[Any, ...] | None = None
    """The values that ask for what the server does anyway. Others are refused. This holds for the body itself.
    None: every value is ignored, also in the objects within the body."""
    routes: tuple[Route, ...] = ()
    """Empty: all."""
    means: str = ""
    """The server's name of the same field, under which it is read."""
    strict: bool = False
    """Whether it is ignored also with ``serve.strict_fields``."""


RULES: tuple[Rule, ...] = (
    Rule(
        names=(
            *("user", "metadata", "store", "service_tier", "safety_identifier"),
            *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"),
        ),
        why="they concern OpenAI's accounts and caches",
        strict=True,
    ),
    Rule(names=("cache_control",), why="the server caches every prompt", strict=True),
    Rule(names=("display",), why="reasoning is always shown", strict=True),
    Rule(
        names=(
            *("keep_alive", "priority", "id", "request_id", "session_id", "conversation_id"),
            *("chat_id", "trace_id", "tags", "extra_headers", "extra_query", "provider", "transforms", "usage"),
            *("prompt_cache_options", "inference_geo", "speed", "betas", "anthropic_version"),
        ),
        why="they route, label or price a request",
    ),
    Rule(names=("prediction",), why="it would only save time", routes=("chat",)),
    Rule(
        names=("slot_id", "n_cache_reuse", "t_max_predict_ms"),
        why="the server manages its slots itself",
    ),
    Rule(
        names=("return_progress", "verbose", "sse_ping_interval"),
        why="they ask for reports that the response does not have",
    ),
    Rule(
        names=("num_ctx", "num_thread", "num_gpu", "num_batch", "use_mmap", "use_mlock", "low_vram", "numa"),
        why="the server's own options decide",
    ),
    Rule(
        names=(
            *("length_penalty", "early_stopping", "penalize_nl"),
        ),
        why="they matter only with a sampler that is off",
    ),
    Rule(names=("context_management", "container"), why="the prompt is never edited", routes=("messages", "responses")),
    Rule(names=("max_tool_calls",), why="it limits tools that OpenAI runs", routes=("responses",)),
    Rule(names=("adaptive_target",), only=(-1,), why="there is no adaptive sampling"),
    Rule(names=("tfs_z",), only=(1,), why="there is no tail-free sampling"),
    Rule(names=("top_a",), only=(0,), why="there is no top-a sampling"),
    Rule(names=("samplers",), only=([],), why="the order of the samplers is fixed"),
    Rule(names=("min_keep",), only=(0, 1), why="samplers keep one token at least"),
    Rule(names=("bad_words", "allowed_token_ids"), only=([],), why="use stop or logit_bias"),
    Rule(names=("use_beam_search",), only=(False,), why="there is no beam search"),
    Rule(names=("best_of",), only=(1,), why="n gives all choices"),
    Rule(names=("skip_special_tokens", "spaces_between_special_tokens"), only=(True,), why="they give no text"),
    Rule(names=("include_stop_str_in_output",), only=(False,), why="a stop string never comes out"),
    Rule(names=("truncate_prompt_tokens",), only=(-1, 0), why='"truncation" drops turns of a chat'),
    Rule(names=("prompt_logprobs",), only=(0, False), why='/v1/completions with "echo" has them'),
    Rule(names=("n_probs",), only=(0,), why='use "logprobs"'),
    Rule(names=("post_sampling_probs", "return_tokens", "return_token_ids"), only=(False,), why="no response has them"),
    Rule(names=("documents", "images", "audios", "videos"), only=([],), why="the models read text"),
    Rule(names=("options",), only=({},), why="give its fields in the body itself"),
    Rule(names=("include_reasoning",), only=(True,), why='use "separate_reasoning"', routes=("chat",)),
    Rule(names=("functions",), only=([],), why='use "tools"', routes=("chat",)),
    Rule(names=("function_call",), only=("none", "auto"), why='use "tool_choice"', routes=("chat",)),
    Rule(names=("modalities",), only=(["text"],), why="the models write text", routes=("chat",)),
    Rule(names=("audio", "web_search_options", "plugins"), only=({}, []), why="the server has no such thing"),
    Rule(names=("mcp_servers",), only=([],), why="the server runs no tools", routes=("messages",)),
    Rule(names=("echo",), only=(False,), why="use /v1/completions", routes=("chat",)),
    Rule(
        names=("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        only=({}, [], ""),
        why='use "structured_outputs"',
    ),
    Rule(names=("chat_template",), only=("",), why="the template is the model file's", routes=("chat",)),
    Rule(names=("tools",), only=([],), why="only a chat has tools", routes=("completions", "embeddings")),
    Rule(names=("tool_choice",), only=("none", "auto"), why="only a chat has tools", routes=("completions",)),
    Rule(names=("background",), only=(False,), why="every request is answered at once", routes=("responses",)),
    Rule(names=("conversation", "prompt"), only=("",), why="the server stores no conversations and prompts by name",
         routes=("responses",)),
    Rule(names=("top_logprobs",), only=(0,), why="/v1/chat/completions has them", routes=("responses",)),
    Rule(names=("truncation",), only=("disabled",), why="only a chat has turns", routes=("completions", "embeddings")),
    Rule(names=("input_type", "task", "normalize"), only=("", True), why="the text is embedded as it is",
         routes=("embeddings",)),
    Rule(names=("reasoning_budget", "reasoning_budget_tokens", "thinking_budget"), means="thinking_budget_tokens",
         why="", routes=("chat",)),
    Rule(names=("reasoning_budget", "reasoning_budget_tokens", "thinking_budget", "thinking_budget_tokens"),
         only=(-1,),
         why="thinking and reasoning have it there", routes=("completions", "responses", "messages", "embeddings")),
    Rule(names=("n_predict", "max_new_tokens", "num_predict"), means="max_tokens", why="",
         routes=("chat", "completions")),
    Rule(names=("typ_p", "typical"), means="typical_p", why="", routes=("chat", "completions")),
)  # fmt: skip
"""In the order of the docs. Fields that a route uses stand in the route's own model, which counts first."""


def rule_of(name: str, route: str, *, nested: bool = False) -> Rule | None:
    """The rule for a field in a body of that route. ``nested``: in an object within it."""
    for rule in RULES:
        if name in rule.names and (not rule.routes or route in rule.routes):
            return None if nested and (rule.means or rule.only is not None) else rule
    return None


@dataclass(kw_only=True)
class Reading:
    """How one body is read: the context of its validation."""

    route: str = ""
    strict: bool = False
    """Whether a field that the server does not use is an error."""
    ignored: list[str] = field(default_factory=list)
    """Names of the fields that were left out, each once, with the object that they stood in."""

    def known(
        self,
        given: Mapping[str, Any],
        names: Collection[str],
        place: str,
        used_elsewhere: Callable[[str, Any], bool],
    ) -> dict[str, Any]:
        """An object's fields without those that are ignored.

        ``names``: those that the object has; ``place``: where it stands in the body; ``used_elsewhere``: whether a
        field has an effect on another route. A name that is refused as unknown stays, for the model to report. Raises
        ``ApiError`` for a value that is not supported.
        """
        if given.keys() <= set(names):
            return dict(given)
        kept = {key: value for key, value in given.items() if key in names}
        for key, value in given.items():
            if key in names:
                continue
            rule = rule_of(key, self.route, nested=bool(place))
            if rule is None:
                if self.strict or is_mistyped(key, names):
                    kept[key] = value
                elif not place and self.route and used_elsewhere(key, value):
                    message = f"{key} is not supported by this route."
                    raise ApiError(400, message, param=key, code="unsupported")
                else:
                    self.ignore(f"{place}.{key}" if place else key)
            elif rule.means:
                if rule.means in given and given[rule.means] != value:
                    message = f"{key} and {rule.means} are two names of one field: give one of them."
                    raise ApiError(400, message, param=key, code="invalid_value")
                kept[rule.means] = value
            elif rule.only is None:
                if self.strict and not rule.strict:
                    kept[key] = value
                else:
                    self.ignore(f"{place}.{key}" if place else key)
            elif value not in rule.only:
                message = f"{key} is not supported by this server at this value: {rule.why}."
                raise ApiError(400, message, param=key, code="unsupported")
        return kept

    def ignore(self, name: str) -> None:
        """Notes a field that has no effect."""
        if name not in self.ignored:
            self.ignored.append(name)


def is_mistyped(name: str, names: Iterable[str]) -> bool:
    """Whether an unknown name is one of ``names`` with a letter wrong, missing or too many."""
    return bool(difflib.get_close_matches(name[:64], list(names), 1, _MISTYPED))


def header_value(ignored: list[str]) -> str:
    """Names as the header has them: printable ASCII, and no more than a line of them."""
    shown = [re.sub(r"[^\w.-]", "?", name[:64], flags=re.ASCII) or "?" for name in ignored[:_SHOWN]]
    return ", ".join(shown) + (f", and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else "")


def table() -> str:
    """The rules as a table in Markdown."""
    lines = ["| Field | Where | What happens |", "|---|---|---|"]
    for rule in RULES:
        names = ", ".join(f"`{name}`" for name in rule.names)
        where = ", ".join(rule.routes) or "everywhere"
        if rule.means:
            happens = f"another name of `{rule.means}`"
        elif rule.only is None:
            happens = f"ignored: {rule.why}"
        elif not rule.only:
            happens = f"refused: {rule.why}"
        else:
            values = " or ".join(f"`{json.dumps(each)}`" for each in rule.only)
            happens = f"accepted at {values}, else refused: {rule.why}"
        lines.append(f"| {names} | {where} | {happens} |")
    return "\n".join(lines)
