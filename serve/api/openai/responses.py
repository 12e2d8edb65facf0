"""/v1/responses, OpenAI's newer form of a chat: the request body, which is turned into a chat request.

A request holds the whole conversation, or what follows an earlier response (``previous_response_id``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

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
    text_parts,
)
from slm.serve.api.core.requests import (
    MAX_MESSAGES,
    ChatRequest,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    ReasoningOptions,
    SamplingFields,
    StreamOptions,
    TextFormat,
    TruncationField,
)
from slm.serve.api.errors import ApiError


class ContentPart(Strict):
    place = "input.content"

    type: Literal["text"]
    text: str
    annotations: list[Any] = Field(default=[])
    logprobs: list[Any] | None = None


Content = Annotated[
    str | Annotated[list[ContentPart], Field(max_length=1024, fail_fast=True)], BeforeValidator(text_parts)
]


def _joined(content: str | list[ContentPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class InputMessage(Strict):
    place = "input"

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def as_chat(self) -> Message:
        """The message as the chat route takes it."""
        return Message(role=self.role, content=_joined(self.content))


class FunctionCallItem(Strict):
    place = "input"

    type: Literal["function_call"]
    call_id: str = Field(max_length=256)
    name: ToolName
    arguments: str = Field(description="a JSON object, as text")
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Strict):
    place = "input"

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=256)
    output: Content
    id: str | None = None
    status: str | None = None


class ReasoningText(Strict):
    place = "input.content"

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    place = "input"

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] = Field(default=[])
    content: Annotated[list[ReasoningText], Field(max_length=1024, fail_fast=True)] | None = None
    encrypted_content: str | None = Field(default=None, description="accepted, without effect")
    status: str | None = None


def _item_type(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _item_type,
        custom_error_type="item_type",
        custom_error_message="its type must be message, function_call, function_call_output or reasoning",
    ),
]


class FlatTool(Strict):
    place = "tools"

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_chat(self) -> Tool:
        """The tool as the chat route takes it."""
        function = Function(
            name=self.name, description=self.description, parameters=self.parameters or {}, strict=self.strict
        )
        return Tool(type="function", function=function)


class FlatNamedTool(Strict):
    place = "tool_choice"

    type: Literal["function"]
    name: ToolName


class FlatJsonSchemaFormat(Strict):
    place = "text.format"

    type: Literal["json_schema"]
    name: str = Field(default="", max_length=256)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    place = "text"

    format: Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")] = TextFormat(
        type="text"
    )
    verbosity: str | None = Field(
        default=None, max_length=32, description="given to the chat template, where it reads that"
    )


_LOGPROBS = "message.output_text.logprobs"


class ResponsesRequest(SamplingFields):
    """POST /v1/responses"""

    route = "responses"

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = Field(default=None, description="of this request only, as in OpenAI's API")
    previous_response_id: str | None = Field(
        default=None, max_length=256, description="go on from this response; the server keeps the newest ones"
    )
    store: bool = Field(default=True, description="false: no request can go on from the response")
    max_output_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="most tokens to generate; default: until the context is full"
    )
    stream: bool = False
    stream_options: StreamOptions | None = Field(default=None, description="accepted, without effect")
    reasoning: ReasoningOptions | None = Field(
        default=None, description="its effort is given to the chat template, where it reads that; none: no reasoning"
    )
    include: list[str] = Field(
        default=[], max_length=64, description="accepted, without effect, but for log-probabilities, which are refused"
    )
    text: TextOptions = TextOptions()
    truncation: TruncationField = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    parallel_tool_calls: bool = True

    @classmethod
    def adapted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Also without a limit of -1."""
        given = super().adapted(given)
        return {key: each for key, each in given.items() if key != "max_output_tokens" or each != -1}

    def conversation(self, before: Sequence[Message] = ()) -> list[Message]:
        """The messages, without the instructions, behind those of an earlier response. Raises ``ApiError``."""
        if isinstance(self.input, str):
            return [*before, Message(role="user", content=self.input)]
        return _messages(self.input, before)

    def as_chat(self, before: Sequence[Message] = ()) -> ChatRequest:
        """The same as a chat request, behind the messages of an earlier response. Raises ``ApiError`` for more messages
        than a chat may have."""
        if _LOGPROBS in self.include:
            message = f"include: {_LOGPROBS} is not supported; /v1/chat/completions has log-probabilities."
            raise ApiError(400, message, param="include", code="unsupported")
        messages = [Message(role="system", content=self.instructions)] if self.instructions else []
        messages += self.conversation(before)
        if not messages:
            raise ApiError(400, "input: it holds no message.", param="input", code="invalid_value")
        if len(messages) > MAX_MESSAGES:
            message = f"input: with instructions and earlier turns, at most {MAX_MESSAGES - 1} messages."
            raise ApiError(400, message, param="input", code="invalid_value")
        response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat
        if isinstance(self.text.format, FlatJsonSchemaFormat):
            inner = JsonSchema.model_validate(
                {
                    "name": self.text.format.name,
                    "schema": self.text.format.schema_,
                    "strict": self.text.format.strict,
                }
            )
            response_format = JsonSchemaFormat(type="json_schema", json_schema=inner)
        else:
            response_format = self.text.format
        given = "parallel_tool_calls" in self.model_fields_set
        calls: dict[str, Any] = {"parallel_tool_calls": self.parallel_tool_calls} if given else {}
        return ChatRequest(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            **self.sampling_fields(),
            response_format=response_format,
            stream=self.stream,
            truncation=self.truncation,
            tools=[each.as_chat() for each in self.tools],
            tool_choice=_choice(self.tool_choice),
            **calls,
            reasoning=self.reasoning,
            verbosity=self.text.verbosity,
            # An assistant's last message is one that was given, not one that was begun.
            continue_final_message=False,
        )


def _choice(given: Any) -> ToolChoice | None:
    if isinstance(given, FlatNamedTool):
        return NamedTool(type="function", function=FunctionName(name=given.name))
    return given


def _messages(items: Sequence[InputItem], before: Sequence[Message]) -> list[Message]:
    """The items as chat messages: calls and reasoning belong to the assistant's message next to them."""
    out = list(before)
    known = {call.id for each in before for call in each.tool_calls or () if call.id is not None}
    thought: str | None = None
    for i, item in enumerate(items):
        if isinstance(item, ReasoningItem):
            thought = "".join(part.text for part in item.content or ()) or None
        elif isinstance(item, FunctionCallOutput):
            if item.call_id not in known:
                message = f"input.{i}: no call before it has the id {item.call_id[:100]!r}."
                raise ApiError(400, message, param="input", code="invalid_value")
            out.append(Message(role="tool", content=_joined(item.output), tool_call_id=item.call_id))
        elif isinstance(item, FunctionCallItem):
            known.add(item.call_id)
            function = CalledFunction(name=item.name, arguments=item.arguments)
            call = ToolCall(id=item.call_id, function=function)
            if out and out[-1].role == "assistant":
                out[-1] = out[-1].model_copy(update={"tool_calls": [*(out[-1].tool_calls or ()), call]})
            else:
                out.append(Message(role="assistant", tool_calls=[call], reasoning_content=thought))
            thought = None
        else:
            said = item.as_chat()
            if item.role == "assistant" and thought:
                said = said.model_copy(update={"reasoning_content": thought})
            out.append(said)
            thought = None
    return out
