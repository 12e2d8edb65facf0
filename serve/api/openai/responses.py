"""/v1/responses, OpenAI's newer form of a chat: request and response bodies.

The server stores nothing: every request holds the whole conversation, and ``previous_response_id`` and the like are
refused. A request is turned into a chat request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from serve.api.errors import ApiError, Error
from serve.api.openai.blocks import Block, BlockBuilder
from serve.api.openai.chat import ReplyForm
from serve.api.openai.fields import ModelRequest, Number
from serve.api.openai.messages import (
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
from serve.api.openai.requests import (
    MAX_MESSAGES,
    ChatRequest,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    TextFormat,
    TruncationField,
)
from serve.api.openai.response_shapes import (
    IncompleteDetails,
    InputTokensDetails,
    OutputFunctionCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningPart,
    Response,
    ResponseStatus,
    ResponseUsage,
)
from serve.api.openai.strict import Strict
from serve.config import Truncation


class ContentPart(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] = Field(default=[])
    logprobs: list[Any] | None = None


class InputMessage(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(max_length=1024, fail_fast=True)]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def as_chat(self) -> Message:
        """The message as the chat route takes it."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return Message(role=self.role, content="".join(parts))


class FunctionCallItem(Strict):
    type: Literal["function_call"]
    call_id: str = Field(max_length=256)
    name: ToolName
    arguments: str = Field(description="a JSON object, as text")
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Strict):
    type: Literal["function_call_output"]
    call_id: str = Field(max_length=256)
    output: str
    id: str | None = None
    status: str | None = None


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] = Field(default=[])
    content: Annotated[list[ReasoningText], Field(max_length=1024, fail_fast=True)] | None = None
    encrypted_content: None = None
    status: str | None = None


InputItem = InputMessage | FunctionCallItem | FunctionCallOutput | ReasoningItem


class FlatTool(Strict):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_chat(self) -> Tool:
        """The tool as the chat route takes it."""
        function = Function(name=self.name, description=self.description, parameters=self.parameters or {})
        return Tool(type="function", function=function)


class FlatNamedTool(Strict):
    type: Literal["function"]
    name: ToolName


class FlatJsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: str = Field(max_length=256)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    format: Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")] = TextFormat(
        type="text"
    )


class ResponsesRequest(ModelRequest):
    """POST /v1/responses"""

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="most tokens to generate; default: until the context is full"
    )
    temperature: Number = Field(default=1.0, ge=0, le=10)
    top_p: Number = Field(default=1.0, ge=0, le=1)
    stream: bool = False
    text: TextOptions = TextOptions()
    truncation: TruncationField = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    parallel_tool_calls: bool = True

    def as_chat(self) -> ChatRequest:
        """The same as a chat request. Raises ``ApiError`` for more messages than a chat may have."""
        messages = [Message(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            messages.append(Message(role="user", content=self.input))
        else:
            messages.extend(_messages(self.input))
            if not messages:
                raise ApiError(400, "input: it holds no message.", param="input", code="invalid_value")
            if len(messages) > MAX_MESSAGES:
                message = f"input: with instructions, at most {MAX_MESSAGES - 1} messages."
                raise ApiError(400, message, param="input", code="invalid_value")
        response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat
        if isinstance(self.text.format, FlatJsonSchemaFormat):
            inner = JsonSchema.model_validate({"name": self.text.format.name, "schema": self.text.format.schema_})
            response_format = JsonSchemaFormat(type="json_schema", json_schema=inner)
        else:
            response_format = self.text.format
        return ChatRequest(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=response_format,
            stream=self.stream,
            truncation=self.truncation,
            tools=[each.as_chat() for each in self.tools],
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
        )


def _choice(given: Any) -> ToolChoice | None:
    if isinstance(given, FlatNamedTool):
        return NamedTool(type="function", function=FunctionName(name=given.name))
    return given


def _messages(items: Sequence[InputItem]) -> list[Message]:
    """The items as chat messages: calls and reasoning belong to the assistant's message next to them."""
    out: list[Message] = []
    known: set[str] = set()
    thought: str | None = None
    for i, item in enumerate(items):
        if isinstance(item, ReasoningItem):
            thought = "".join(part.text for part in item.content or ()) or None
        elif isinstance(item, FunctionCallOutput):
            if item.call_id not in known:
                message = f"input.{i}: no call before it has the id {item.call_id[:100]!r}."
                raise ApiError(400, message, param="input", code="invalid_value")
            out.append(Message(role="tool", content=item.output, tool_call_id=item.call_id))
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


class ResponsesBuilder(BlockBuilder):
    """Reasoning, a message and function calls, whole or as the events of a stream."""

    id_prefix: ClassVar[str] = "resp"

    def __init__(self, *, model: str, request: ResponsesRequest, form: ReplyForm, truncation: Truncation) -> None:
        super().__init__(model=model, form=form)
        self._request, self._truncation = request, truncation
        self._sequence_number = 0

    def body(self) -> Response:
        """The response as it is now."""
        choice = self._choices[0]
        status = self._status()
        request = self._request
        response = Response(
            id=self.id.replace("-", "_", 1),
            object="response",
            created_at=self.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            background=False,
            error=None,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata={},
            model=self.model,
            output=[self._item(each) for each in self._blocks],
            parallel_tool_calls=request.parallel_tool_calls,
            previous_response_id=None,
            reasoning={"effort": None, "summary": None},
            store=False,
            temperature=request.temperature,
            text=request.text.model_dump(by_alias=True, exclude_none=True),
            tool_choice=self._tool_choice(),
            tools=[
                {"strict": True, "description": None, "parameters": {}, **each.model_dump(exclude_none=True)}
                for each in request.tools
            ],
            top_p=request.top_p,
            truncation=self._truncation,
            usage=self._response_usage() if choice.finish else None,
        )
        if self.dropped_messages:
            response["dropped_messages"] = self.dropped_messages
        return response

    def _tool_choice(self) -> str | dict[str, str]:
        given = self._request.tool_choice
        if isinstance(given, FlatNamedTool):
            return given.model_dump()
        return given or ("auto" if self._request.tools else "none")

    def _status(self) -> ResponseStatus:
        match self._choices[0].finish:
            case None:
                return "in_progress"
            case "length":
                return "incomplete"
            case _:
                return "completed"

    def _response_usage(self) -> ResponseUsage:
        usage = self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return ResponseUsage(
            input_tokens=usage["prompt_tokens"],
            input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=0),
            output_tokens=usage["completion_tokens"],
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self.n_reasoning),
            total_tokens=usage["total_tokens"],
        )

    def _item(self, block: Block) -> OutputMessage | OutputReasoning | OutputFunctionCall:
        last = block is self._blocks[-1]
        status: ResponseStatus = "in_progress" if not block.done else self._status() if last else "completed"
        text = block.text if block.done else ""
        match block.kind:
            case "reasoning":
                return OutputReasoning(
                    type="reasoning",
                    id=f"rs_{block.id}",
                    summary=[],
                    content=[ReasoningPart(type="reasoning_text", text=text)] if block.done else [],
                    status=status,
                )
            case "call":
                return OutputFunctionCall(
                    type="function_call",
                    id=f"fc_{block.id}",
                    call_id=f"call_{block.id}",
                    name=block.name,
                    arguments=text,
                    status=status,
                )
        return OutputMessage(
            type="message",
            id=f"msg_{block.id}",
            status=status,
            role="assistant",
            content=[_output_text(text)] if block.done else [],
        )

    def _begun(self) -> list[dict[str, Any]]:
        body = self.body()
        return [self._event("response.created", response=body), self._event("response.in_progress", response=body)]

    def _opened(self, index: int, block: Block) -> list[dict[str, Any]]:
        events = [self._event("response.output_item.added", output_index=index, item=self._item(block))]
        if block.kind == "content":
            part: Any = _output_text("")
            events.append(self._event("response.content_part.added", **self._position(index, block), part=part))
        elif block.kind == "reasoning":
            part = ReasoningPart(type="reasoning_text", text="")
            events.append(self._event("response.content_part.added", **self._position(index, block), part=part))
        return events

    def _grown(self, index: int, block: Block, text: str) -> list[dict[str, Any]]:
        position = self._position(index, block)
        match block.kind:
            case "reasoning":
                return [self._event("response.reasoning_text.delta", **position, delta=text)]
            case "call":
                return [self._event("response.function_call_arguments.delta", **position, delta=text)]
        return [self._event("response.output_text.delta", **position, delta=text, logprobs=[])]

    def _closed(self, index: int, block: Block) -> list[dict[str, Any]]:
        position, text = self._position(index, block), block.text
        part: Any = None
        match block.kind:
            case "call":
                named = {"name": block.name, "arguments": text}
                events = [self._event("response.function_call_arguments.done", **position, **named)]
            case "reasoning":
                part = ReasoningPart(type="reasoning_text", text=text)
                events = [self._event("response.reasoning_text.done", **position, text=text)]
            case _:
                part = _output_text(text)
                events = [self._event("response.output_text.done", **position, text=text, logprobs=[])]
        if part is not None:
            events.append(self._event("response.content_part.done", **position, part=part))
        events.append(self._event("response.output_item.done", output_index=index, item=self._item(block)))
        return events

    def _ended(self) -> list[dict[str, Any]]:
        kind = "response.completed" if self._status() == "completed" else "response.incomplete"
        return [self._event(kind, response=self.body())]

    def error_chunk(self, error: Error) -> dict[str, Any]:
        """The last event of a stream that fails."""
        detail = error["error"]
        return self._event("error", code=detail["code"], message=detail["message"], param=detail["param"])

    def _position(self, index: int, block: Block) -> dict[str, Any]:
        prefix = {"content": "msg", "reasoning": "rs", "call": "fc"}[block.kind]
        place = {"item_id": f"{prefix}_{block.id}", "output_index": index}
        return place if block.kind == "call" else {**place, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._sequence_number += 1
        return {"type": kind, "sequence_number": self._sequence_number - 1, **fields}


def _output_text(text: str) -> OutputText:
    return OutputText(type="output_text", text=text, annotations=[], logprobs=[])
