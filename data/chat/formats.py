"""Conversations from records of the usual formats, told apart by their fields.

A conversation is ``{"messages": [...]}`` in OpenAI's shape, with ``"tools"`` where it has any. That is also how it
travels through the streams of documents: as one line of JSON.
"""

import json
from typing import Any, Literal

Format = Literal["messages", "conversations", "instruction", "prompt/completion", "preference"]

TITLES: dict[Format, str] = {
    "messages": "OpenAI messages",
    "conversations": "ShareGPT conversations",
    "instruction": "Alpaca instructions",
    "prompt/completion": "prompts with completions",
    "preference": "preference pairs",
}
"""What a format is called in messages."""

EXPECTED = "messages, conversations, instruction and output, prompt and completion, or chosen and rejected"

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}


class BadRecordError(ValueError):
    """A record that is no conversation; the text says why."""


def format_of(record: Any) -> Format:
    """The format of a record, by its fields. Raises BadRecordError where none is known."""
    if not isinstance(record, dict):
        raise BadRecordError(f"it is {_kind(record)}, not an object with fields")
    fields = {name for name, value in record.items() if value is not None}
    if {"chosen", "rejected"} <= fields:
        return "preference"
    if "messages" in fields:
        return "messages"
    if "conversations" in fields or "conversation" in fields:
        return "conversations"
    if "instruction" in fields and fields & {"output", "response"}:
        return "instruction"
    if "prompt" in fields and fields & {"completion", "response"}:
        return "prompt/completion"
    names = ", ".join(sorted(map(str, record))[:8]) or "none"
    raise BadRecordError(f"its fields ({names}) are of no known format; expected {EXPECTED}")


def read_record(record: Any) -> tuple[Format, dict[str, Any]]:
    """A record's format and its conversation, checked. Raises BadRecordError.

    That of a preference pair is the one with the chosen answer. It has the one with the other as ``rejected``.
    """
    kind = format_of(record)
    tools = _tools(record.get("tools"))
    if kind == "preference":
        messages = _answered(record["chosen"], record)
    elif kind == "messages":
        messages = _messages(record["messages"])
    elif kind == "conversations":
        messages = _messages(record.get("conversations") or record.get("conversation"))
        system = record.get("system")
        if system and isinstance(system, str) and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
    elif kind == "instruction":
        messages = _instruction(record)
    else:
        messages = _answered(record.get("completion", record.get("response")), record)
    _check(messages)
    more: dict[str, Any] = {"tools": tools} if tools else {}
    if kind == "preference":
        more["rejected"] = _answered(record["rejected"], record)
        _check(more["rejected"])
    return kind, {"messages": messages} | more


def to_document(conversation: dict[str, Any]) -> str:
    """The conversation as one line of JSON."""
    return json.dumps(conversation, ensure_ascii=False)


def from_document(document: str) -> dict[str, Any]:
    """The conversation of ``to_document``."""
    return json.loads(document)


def plain_text(document: str) -> str:
    """What is said in a conversation, without roles and marks: messages separated by blank lines."""
    return "\n\n".join(each["content"] for each in from_document(document)["messages"] if each["content"])


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "empty"}.get(type(value), type(value).__name__)


def _messages(turns: Any) -> list[dict[str, Any]]:
    if isinstance(turns, str):  # some parquet files hold them as text
        try:
            turns = json.loads(turns)
        except ValueError:
            raise BadRecordError("its messages are text that is not JSON") from None
    if not isinstance(turns, list) or not turns:
        raise BadRecordError("its list of messages is empty" if turns == [] else "its messages are no list")
    return [_message(turn, number) for number, turn in enumerate(turns, 1)]


def _message(turn: Any, number: int) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise BadRecordError(f"message {number} is {_kind(turn)}, not an object with role and content")
    name = turn.get("role", turn.get("from"))
    if not isinstance(name, str) or name.lower() not in _ROLES:
        raise BadRecordError(f"message {number} has the role {name!r}; known are system, user, assistant and tool")
    role = _ROLES[name.lower()]
    content = turn.get("content", turn.get("value"))
    calls = turn.get("tool_calls")
    if name == "function_call":
        calls, content = [content], ""
    elif role == "assistant" and not calls and (older := turn.get("function_call")):  # OpenAI's older form
        calls = [older] if not isinstance(older, dict) or older.get("name") else None
    message: dict[str, Any] = {"role": role, "content": _text(content, number)}
    if role == "assistant" and calls:
        if not isinstance(calls, list):
            raise BadRecordError(f"the tool calls of message {number} are no list")
        message["tool_calls"] = [_tool_call(call, number) for call in calls]
    for key in ("name", "tool_call_id", *(("reasoning_content",) if role == "assistant" else ())):
        if isinstance(turn.get(key), str):
            message[key] = turn[key]
    if role == "assistant" and turn.get("weight") == 0:  # OpenAI's mark of an answer that is not learned
        message["weight"] = 0
    return message


def _text(content: Any, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise BadRecordError(f"the content of message {number} is not text")


def _tool_call(call: Any, number: int) -> dict[str, Any]:
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except ValueError:
            raise BadRecordError(f"the tool call of message {number} is not JSON") from None
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecordError(f"the tool call of message {number} has no name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise BadRecordError(f"the arguments of the tool call of message {number} are not JSON") from None
    made = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return made | ({"id": call["id"]} if isinstance(call.get("id"), str) else {})


def _tools(tools: Any) -> list[Any]:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else []
        except ValueError:
            raise BadRecordError("its tools are text that is not JSON") from None
    if tools is not None and not isinstance(tools, list):
        raise BadRecordError("its tools are no list")
    return tools or []


def _instruction(record: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if record.get("system"):
        messages.append({"role": "system", "content": _text(record["system"], 1)})
    history = record.get("history") or []
    if not isinstance(history, list):
        raise BadRecordError("its history is no list")
    for pair in history:
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRecordError("its history holds something other than pairs of question and answer")
        messages += [{"role": "user", "content": str(pair[0])}, {"role": "assistant", "content": str(pair[1])}]
    asked = "\n\n".join(filter(None, (_text(record[key], 1) for key in ("instruction", "input") if record.get(key))))
    answer = _text(record.get("output", record.get("response")), 2)
    return [*messages, {"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


def _prompt(record: dict[str, Any]) -> list[dict[str, Any]]:
    prompt = record.get("prompt")
    if prompt is None:
        return []  # chosen and rejected then hold the whole conversation
    start = [{"role": "system", "content": record["system"]}] if isinstance(record.get("system"), str) else []
    return [*start, *([{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt))]


def _answered(answer: Any, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation of a prompt and its answer. Some data sets have all of it as the answer, the prompt (or its last
    question) again beside it."""
    prompt = _prompt(record)
    if isinstance(answer, str):
        if record.get("prompt") is None:
            raise BadRecordError("its chosen answer is text, and there is no prompt")
        return [*prompt, {"role": "assistant", "content": answer}]
    messages = _messages(answer)
    system, asked = _system_apart(prompt)
    own_system, said = _system_apart(messages)
    system = own_system or system
    if said[: len(asked)] == asked:
        return [*system, *said]
    goes_on = not said or said[0]["role"] != "user" or (asked[-1]["role"] != "user" and said[0] != asked[0])
    if goes_on:
        return [*system, *asked, *said]
    if said[0] == asked[-1] and sum(each["role"] == "user" for each in said) == 1:
        return [*system, *asked[:-1], *said]  # the last question once more
    return [*system, *said]  # the whole conversation, beside its last question


def _system_apart(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages of the system that stand first, and the others."""
    n = next((index for index, each in enumerate(messages) if each["role"] != "system"), len(messages))
    return messages[:n], messages[n:]


def _check(messages: list[dict[str, Any]]) -> None:
    """Every answer says something, and there is one. What follows the last answer is taken away: nothing answers it."""
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise BadRecordError("no assistant answers in it")
    for number, message in enumerate(messages, 1):
        said = message["content"].strip() or message.get("tool_calls")
        if message["role"] == "assistant" and not said:
            raise BadRecordError(f"the assistant's message {number} is empty")
    if messages[0]["role"] == "assistant" and len(messages) == 1:
        raise BadRecordError("nothing is asked in it")
