"""The messages and tools of a chat request, and what the chat template and the grammar get of them.

Tested in tests/serve/test_tool_calls.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slm.serve.api.errors import ApiError
from slm.serve.api.openai.fields import Strict
from slm.serve.tools.call_grammar import CallableTool, ToolUse

MAX_TOOLS = 128
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class TextPart(Strict):
    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    name: ToolName
    arguments: str = Field(description="a JSON object, as text")


class ToolCall(Strict):
    id: str | None = Field(default=None, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(default=None, description="accepted, without effect")


class Function(Strict):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] = Field(
        default={}, description="JSON Schema of an object; the docs say what is enforced"
    )
    strict: bool | None = Field(
        default=None, description="true: refuse a schema that cannot be enforced whole, instead of naming what is not"
    )


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: ToolName


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(max_length=1024, fail_fast=True)] | None = Field(
        default=None, description="null only next to tool_calls"
    )
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        default=None, description="of the assistant"
    )
    tool_call_id: str | None = Field(default=None, max_length=256, description="of a tool: the call that it answers")
    reasoning_content: str | None = Field(default=None, description="of the assistant; the template decides on it")
    # What OpenAI's client sends back with a reply, always empty here.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
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


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as a chat template takes them. Raises ``ApiError`` for calls and results that do not fit."""
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for i, each in enumerate(messages):
        message: dict[str, Any] = {
            "role": "system" if each.role == "developer" else each.role,
            "content": each.text(),
        }
        if each.tool_calls:
            message["tool_calls"] = [
                _call(call, f"messages.{i}.tool_calls.{j}") for j, call in enumerate(each.tool_calls)
            ]
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


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        text = f"{where}.function.arguments: not a JSON object."
        raise ApiError(400, text, param="messages", code="invalid_value")
    made = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return made if call.id is None else {"id": call.id, **made}


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
