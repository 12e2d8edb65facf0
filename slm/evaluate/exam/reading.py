"""JSON and tool calls inside a text that a model wrote.

Tested in tests/slm/evaluate/exam/test_grading.py.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

Call = tuple[str, Any]
"""A function's name and its arguments."""

_FENCE = re.compile(r"\A\s*```[\w-]*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
THINK, END_OF_THINK = "<think>", "</think>"
_MOST_TRIES = 200
"""Brackets in a text that may begin no JSON value before the rest is not looked at: each costs a pass over it."""
_decoder = json.JSONDecoder()


def without_thoughts(text: str) -> str:
    """The text behind a model's reasoning (``<think> ... </think>``)."""
    return text.rpartition(END_OF_THINK)[2]


def json_values(text: str) -> Iterator[tuple[int, int, Any]]:
    """Every JSON object and array in a text, outermost ones only: where it begins, where it ends, its value."""
    at = tries = 0
    while (begin := _next(text, at)) is not None and tries < _MOST_TRIES:
        try:
            value, end = _decoder.raw_decode(text, begin)
        except RecursionError:
            return
        except ValueError:
            at, tries = begin + 1, tries + 1
            continue
        yield begin, end, value
        at = end


def _next(text: str, at: int) -> int | None:
    found = [place for place in (text.find("{", at), text.find("[", at)) if place >= 0]
    return min(found, default=None)


def json_in(text: str, *, whole: bool = False) -> Any:
    """The first JSON object in a text; with ``whole`` only where the text is nothing else, but for a Markdown fence
    around it. None where there is none."""
    text = text.strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    for begin, end, value in json_values(text):
        if isinstance(value, dict) and (not whole or (begin == 0 and end == len(text))):
            return value
        if whole:
            return None
    return None


def calls_in(text: str) -> list[Call]:
    """The tool calls that a text spells as JSON: objects with a name and arguments (or ``parameters``), whatever stands
    around them."""
    return [call for _, _, value in json_values(text) for call in _calls(value)]


def _calls(value: Any) -> Iterator[Call]:
    if isinstance(value, list):
        for each in value:
            yield from _calls(each)
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("tool_calls"), list):
        yield from _calls(value["tool_calls"])
        return
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    arguments = next((value[key] for key in ("arguments", "parameters", "args") if key in value), None)
    if isinstance(name, str) and arguments is not None:
        yield name, _parsed(arguments)


def _parsed(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            return json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
    return arguments


def expected_calls(message: dict[str, Any]) -> list[Call]:
    """The calls of an assistant's message (``slm.data.chat.formats``), or those that its text spells."""
    calls = message.get("tool_calls")
    return [call for each in calls for call in _calls(each)] if calls else calls_in(message["content"])


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: numbers by value (1 and 1.0), true and 1 are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def canonical(text: str) -> str:
    """The text with one spelling of each JSON value in it, and of white space."""
    out, at = [], 0
    for begin, end, value in json_values(text):
        out += [text[at:begin], json.dumps(value, sort_keys=True, ensure_ascii=False)]
        at = end
    return " ".join("".join([*out, text[at:]]).split())
