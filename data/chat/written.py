"""What of a conversation stands in its rendered text. A template drops what it does not know without a word.

Tested in tests/data/chat/test_template.py.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

END_OF_THINK = "</think>"
_SPACE = re.compile(r"\s+")


def stands(said: str, text: str) -> bool:
    """Whether a text writes what was said: as it is, as JSON, or with other white space and letters' case."""
    core = said.strip()
    if core in text:
        return True
    spelt = (core, *(json.dumps(core, ensure_ascii=ascii)[1:-1] for ascii in (False, True)))
    if any(each in text for each in spelt[1:]):
        return True
    plain = _SPACE.sub("", text).casefold()
    return any(_SPACE.sub("", each).casefold() in plain for each in spelt)


def as_often(texts: Iterable[str], text: str) -> bool:
    """Whether those that say the same stand in a text as often, where they stand there letter by letter."""
    counts = Counter(each.strip() for each in texts)
    return all(n < 2 or not said or not 0 < text.count(said) < n for said, n in counts.items())


def call_stands(call: dict[str, Any], text: str) -> bool:
    """Whether a text writes a call's name and its arguments."""
    function = call["function"]
    return stands(function["name"], text) and all(_leaf_stands(each, text) for each in _leaves(function["arguments"]))


def without_reasoning(content: str) -> str:
    """What an answer says behind its reasoning."""
    return content.rpartition(END_OF_THINK)[2]


def missing(message: dict[str, Any], text: str) -> str:
    """What of a message does not stand in ``text``, in words; empty where all does. Reasoning does not count."""
    content = message["content"]
    if not stands(content, text):
        said = without_reasoning(content)
        if END_OF_THINK not in content or not said.strip() or not stands(said, text):
            return "the text"
    calls = message.get("tool_calls") or []
    names = [each["function"]["name"] for each in calls]
    return "" if as_often(names, text) and all(call_stands(each, text) for each in calls) else "the tool calls"


def drops_reasoning(message: dict[str, Any], text: str) -> bool:
    """Whether a message has reasoning that does not stand in ``text``."""
    return not stands(message.get("reasoning_content") or "", text) or not stands(message["content"], text)


def _leaves(value: Any) -> Iterator[Any]:
    """The keys and the plain values of a JSON value."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _leaf_stands(leaf: Any, text: str) -> bool:
    if isinstance(leaf, str):
        return stands(leaf, text)
    short = f"{leaf:g}" if isinstance(leaf, float) else str(leaf)
    return any(each in text for each in (json.dumps(leaf), str(leaf), short))
