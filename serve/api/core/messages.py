"""The messages and tools of a chat request, and what the chat template and the grammar get of them.

Tested in tests/serve/test_tool_calls.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import from_json

from slm.serve.api.core.fields import Strict
from slm.serve.api.errors import ApiError
from slm.serve.tools.call_grammar import CallableTool, ToolUse

MAX_TOOLS = 128
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class TextPart(Strict):
    place = "messages.content"

    type: Literal["text"]
    text: str


_TEXT_PARTS = ("text", "input_text", "output_text")
"""What the APIs call a part of text."""


def text_parts(content: Any) -> Any:
    """A message's content with its parts in one spelling. Raises ``ValueError`` for a part that is no text."""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return content
    return [_text_part(each) for each in content]


def _text_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    kind = part.get("type", "text")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise ValueError(f"a part of the type {kind[:40]!r} is not supported; this server reads text")
    return {**part, "type": "text" if isinstance(kind, str) else kind}


class CalledFunction(Strict):
    place = "messages.tool_calls.function"

    name: ToolName
    arguments: str = Field(description="a JSON object, as text")

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Also with the object itself, and without arguments."""
        arguments = given.get("arguments", "")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**given, "arguments": arguments}


class ToolCall(Strict):
    place = "messages.tool_calls"

    id: str | None = Field(default=None, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(default=None, description="accepted, without effect")


class Function(Strict):
    place = "tools.function"

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] = Field(
        default={}, description="JSON Schema of an object; the docs say what is enforced"
    )
    strict: bool | None = Field(
        default=None, description="true: refuse a schema that cannot be enforced whole, instead of naming what is not"
    )


class Tool(Strict):
    place = "tools"

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    place = "tool_choice.function"

    name: ToolName


class NamedTool(Strict):
    place = "tool_choice"

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class Message(Strict):
    place = "messages"

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(max_length=1024, fail_fast=True)] | None, BeforeValidator(text_parts)
    ] = Field(default=None, description="null only of the assistant and of a tool")
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        default=None, description="of the assistant"
    )
    tool_call_id: str | None = Field(default=None, max_length=256, description="of a tool: the call that it answers")
    reasoning_content: str | None = Field(default=None, description="of the assistant; the template decides on it")
    # What OpenAI's client sends back with a reply, always empty here.
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, description="accepted, without effect")

    also = ("reasoning", "thinking", "refusal")

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """With reasoning by one of its names, and with a refusal as the content."""
        thoughts = [given.pop(name, None) for name in ("reasoning", "thinking")]
        refusal = given.pop("refusal", None)
        if given.get("role") != "assistant":
            return given  # nobody else reasons
        for each in thoughts:
            if isinstance(each, str) and each:
                given.setdefault("reasoning_content", each)
        if isinstance(refusal, str) and not given.get("content"):
            given["content"] = refusal
        return given

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and self.role not in ("assistant", "tool"):
            raise ValueError("content is missing")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content):
            raise ValueError("tool_calls and reasoning_content belong to the assistant")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError("tool_call_id belongs to the role tool")
        return self

    def text(self) -> str:
        """The content, its parts joined."""
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


def template_messages(messages: Sequence[Message], ignored: list[str] | None = None) -> list[dict[str, Any]]:
    """The messages as a chat template takes them. Raises ``ApiError`` for calls and results that do not fit.

    Arguments that were cut off are completed; ``ignored`` then gets the name of what was lost.
    """
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for i, each in enumerate(messages):
        message: dict[str, Any] = {
            "role": "system" if each.role == "developer" else each.role,
            "content": each.text(),
        }
        if each.tool_calls:
            made = [_call(call, f"messages.{i}.tool_calls.{j}") for j, call in enumerate(each.tool_calls)]
            message["tool_calls"] = [call for call, _ in made]
            for j, (_, cut) in enumerate(made):
                if cut and ignored is not None:
                    ignored.append(f"messages.{i}.tool_calls.{j}.function.arguments.end")
            names |= {call.id: call.function.name for call in each.tool_calls if call.id is not None}
        if each.reasoning_content:
            message["reasoning_content"] = each.reasoning_content
        if each.role == "tool":
            if each.tool_call_id is not None:
                if each.tool_call_id not in names:
                    text = f"messages.{i}: no call before it has the id {each.tool_call_id[:100]!r}."
                    raise ApiError(400, text, param="messages", code="invalid_value")
                message |= {"tool_call_id": each.tool_call_id, "name": names[each.tool_call_id]}
            if each.name:
                message["name"] = each.name
        out.append(message)
    return out


def _call(call: ToolCall, where: str) -> tuple[dict[str, Any], bool]:
    """A call as a template takes it, and whether its arguments had to be completed."""
    text, cut = call.function.arguments.strip() or "{}", False
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments, cut = _completed(text), True
    if not isinstance(arguments, dict):
        message = f"{where}.function.arguments: not a JSON object."
        raise ApiError(400, message, param="messages", code="invalid_value")
    made = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return (made if call.id is None else {"id": call.id, **made}), cut


def _completed(text: str) -> Any:
    """The value of a JSON text that was cut off, as ``max_tokens`` does: what is whole of it. None for other text."""
    try:
        return from_json(text, allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        return None


def tool_use(tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool) -> ToolUse | None:
    """Which tools a reply may call; None where it may call none. Raises ``ApiError``."""
    names = [each.function.name for each in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiError(400, f"tools: there are two named {twice!r}.", param="tools", code="invalid_value")
    if not tools and choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice asks for a call, but there are no tools.", param="tool_choice")
    if not tools or choice == "none":
        return None
    wanted = choice.function.name if isinstance(choice, NamedTool) else None
    if wanted is not None and wanted not in names:
        text = f"tool_choice: there is no tool {wanted!r}; there are {', '.join(names[:20])}."
        raise ApiError(400, text, param="tool_choice", code="invalid_value")
    return ToolUse(
        tools=tuple(
            CallableTool(
                name=each.function.name, parameters=each.function.parameters, strict=bool(each.function.strict)
            )
            for each in tools
            if wanted in (None, each.function.name)
        ),
        required=choice == "required" or wanted is not None,
        parallel=parallel and wanted is None,
    )


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as a chat template takes them."""
    return [each.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for each in tools]
