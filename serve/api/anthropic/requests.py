"""The request body of /v1/messages, and the same as a chat request.

Tested in tests/serve/api/anthropic/test_messages.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from slm.serve.api.core.fields import Strict
from slm.serve.api.core.messages import (
    MAX_TOOLS,
    CalledFunction,
    Function,
    FunctionName,
    Message,
    NamedTool,
    Tool,
    ToolCall,
    ToolChoice,
    ToolName,
)
from slm.serve.api.core.requests import (
    MAX_MESSAGES,
    MAX_STOPS,
    ChatRequest,
    JsonSchema,
    JsonSchemaFormat,
    SamplingFields,
    StopString,
    Thinking,
)
from slm.serve.api.errors import ApiError

_MAX_BLOCKS = 1024


class TextBlock(Strict):
    place = "messages.content"

    type: Literal["text"]
    text: str
    citations: None = None


class ToolUseBlock(Strict):
    place = "messages.content"

    type: Literal["tool_use"]
    id: str = Field(max_length=256)
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(Strict):
    place = "messages.content"

    type: Literal["tool_result"]
    tool_use_id: str = Field(max_length=256)
    content: str | Annotated[list[TextBlock], Field(max_length=_MAX_BLOCKS, fail_fast=True)] = ""
    is_error: bool = False


class ThinkingBlock(Strict):
    place = "messages.content"

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Strict):
    """Reasoning that only Anthropic can read: it is left out, and named."""

    place = "messages.content"

    type: Literal["redacted_thinking"]
    data: str


ContentBlock = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock, Field(discriminator="type")
]


class InputMessage(Strict):
    place = "messages"

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(max_length=_MAX_BLOCKS, fail_fast=True)]


class AnthropicTool(Strict):
    place = "tools"

    type: Literal["custom"] = "custom"
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON Schema of an object; the docs list what is supported")
    strict: bool = Field(default=False, description="true: refuse a schema that cannot be enforced whole")


class AnthropicToolChoice(Strict):
    place = "tool_choice"

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool = False


class SchemaFormat(Strict):
    place = "output_config.format"

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema; the docs list what is supported")


class OutputConfig(Strict):
    place = "output_config"

    effort: str | None = Field(
        default=None, max_length=32, description="reasoning_effort for the chat template, where it reads that"
    )
    format: SchemaFormat | None = Field(default=None, description="the reply's form")


class MessagesRequest(SamplingFields):
    """POST /v1/messages"""

    route = "messages"

    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_tokens: int = Field(ge=1, le=2**31 - 1)
    system: str | Annotated[list[TextBlock], Field(max_length=_MAX_BLOCKS, fail_fast=True)] = ""
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] = Field(default=[])
    stream: bool = False
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default=[])
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = Field(
        default=None, description="becomes enable_thinking for the chat template, where it reads that"
    )
    output_config: OutputConfig | None = None
    output_format: SchemaFormat | None = Field(default=None, description="an older form of output_config.format")

    def as_chat(self) -> ChatRequest:
        """The same as a chat request. A last message of the assistant is continued."""
        messages = [Message(role="system", content=_text(self.system))] if _text(self.system) else []
        for i, each in enumerate(self.messages):
            messages += _messages(each)
            blocks = () if isinstance(each.content, str) else each.content
            redacted = [j for j, block in enumerate(blocks) if isinstance(block, RedactedThinkingBlock)]
            self.ignored.extend(f"messages.{i}.content.{j}" for j in redacted)
        last = messages[-1]
        continues = last.role == "assistant" and not last.tool_calls and bool(last.text().strip())
        choice = self.tool_choice
        one = choice is not None and choice.disable_parallel_tool_use
        calls: dict[str, Any] = {"parallel_tool_calls": False} if one else {}
        return ChatRequest(
            messages=messages,
            max_completion_tokens=self.max_tokens,
            **self.sampling_fields(),
            stop=self.stop_sequences,
            stream=self.stream,
            tools=[_tool(each) for each in self.tools],
            tool_choice=None if choice is None else _choice(choice),
            **calls,
            thinking=self.thinking,
            reasoning_effort=None if self.output_config is None else self.output_config.effort,
            response_format=self._format(),
            continue_final_message=continues,
        )

    def _format(self) -> JsonSchemaFormat | None:
        given = self.output_format if self.output_config is None else self.output_config.format or self.output_format
        if given is None:
            return None
        return JsonSchemaFormat(
            type="json_schema", json_schema=JsonSchema.model_validate({"name": "reply", "schema": given.schema_})
        )


class CountTokensRequest(MessagesRequest):
    """POST /v1/messages/count_tokens"""

    max_tokens: int = Field(default=1, ge=1, le=2**31 - 1, description="accepted, without effect")


def chat_request(body: MessagesRequest) -> ChatRequest:
    """The body as a chat request. Raises ``ApiError`` for what has no place in one."""
    choice = body.tool_choice
    if choice is not None and choice.type == "tool" and choice.name is None:
        raise ApiError(400, "tool_choice: name is missing.", param="tool_choice", code="missing_required_parameter")
    try:
        return body.as_chat()
    except ValidationError as error:
        said = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"messages: {said}.", param="messages", code="invalid_value") from None


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(each.text for each in content)


def _messages(message: InputMessage) -> list[Message]:
    """One message of blocks as chat messages: each result of a tool becomes a separate message, before the text."""
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    results, texts, thoughts, calls = [], [], [], []
    for block in message.content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = CalledFunction(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False))
                calls.append(ToolCall(id=block.id, function=function))
            case ToolResultBlock():
                text = _text(block.content)
                said = f"Error: {text}" if block.is_error else text
                results.append(Message(role="tool", content=said, tool_call_id=block.tool_use_id))
    if results and not texts and not calls:
        return results
    thought = "".join(thoughts) or None
    own = {"content": "".join(texts), "tool_calls": calls or None, "reasoning_content": thought}
    # Blocks of the wrong role are refused as the chat route refuses them.
    return [*results, Message.model_validate({"role": message.role, **own})]


def _tool(tool: AnthropicTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return Tool(type="function", function=function)


def _choice(given: AnthropicToolChoice) -> ToolChoice:
    match given.type:
        case "any":
            return "required"
        case "tool":
            return NamedTool(type="function", function=FunctionName(name=given.name or ""))
        case "auto":
            return "auto"
        case "none":
            return "none"
