"""/v1/responses: the response body, whole or as the events of a stream.

Tested in tests/serve/api/openai/test_responses.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, ClassVar

from slm.serve.api.core.messages import CalledFunction, Message, ToolCall
from slm.serve.api.core.replies import Block, BlockBuilder, ReplyForm, prompt_progress
from slm.serve.api.errors import Error
from slm.serve.api.openai.response_shapes import (
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
from slm.serve.api.openai.responses import FlatNamedTool, ResponsesRequest
from slm.serve.config import Truncation
from slm.serve.engine.protocol import PrefillProgress, SamplingDefaults

_TEXTS = ("content", "reasoning")


class ResponsesBuilder(BlockBuilder):
    """Reasoning, a message and function calls, whole or as the events of a stream."""

    id_prefix: ClassVar[str] = "resp"

    def __init__(
        self,
        *,
        model: str,
        request: ResponsesRequest,
        form: ReplyForm,
        truncation: Truncation,
        sampling: SamplingDefaults,
        keep: Callable[[Response, Message], None] | None = None,
    ) -> None:
        """``keep`` takes the response and the reply as a message when it has ended."""
        super().__init__(model=model, form=form)
        self._request, self._truncation, self._sampling, self._keep = request, truncation, sampling, keep
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
            previous_response_id=request.previous_response_id,
            reasoning={"effort": None if request.reasoning is None else request.reasoning.effort, "summary": None},
            store=request.store,
            temperature=self._sampling.temperature if request.temperature is None else request.temperature,
            text=request.text.model_dump(by_alias=True, exclude_none=True),
            tool_choice=self._tool_choice(),
            tools=[
                {"strict": True, "description": None, "parameters": {}, **each.model_dump(exclude_none=True)}
                for each in request.tools
            ],
            top_p=self._sampling.top_p if request.top_p is None else request.top_p,
            truncation=self._truncation,
            usage=self._response_usage() if choice.finish else None,
        )
        if self.dropped_messages:
            response["dropped_messages"] = self.dropped_messages
        if self.warnings:
            response["warnings"] = list(self.warnings)
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

    def progress_chunks(self, index: int, event: PrefillProgress) -> list[dict[str, Any]]:
        """The events about how much of the prompt is computed."""
        begun = self._begun()
        progress = prompt_progress(event)
        return [*begun, self._event("response.in_progress", response=self.body(), prompt_progress=progress)]

    def _begun(self) -> list[dict[str, Any]]:
        if self._sequence_number:
            return []  # reports about the prompt came first
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
        body = self.body()
        if self._keep is not None:
            self._keep(body, self._said())
        return [self._event(kind, response=body)]

    def _said(self) -> Message:
        """The reply as a message of a later request. A call that was cut off is none."""
        texts = {kind: "".join(each.text for each in self._blocks if each.kind == kind) for kind in _TEXTS}
        calls = [
            ToolCall(id=f"call_{each.id}", function=CalledFunction(name=each.name, arguments=each.text))
            for each in self._blocks
            if each.kind == "call" and _is_object(each.text)
        ]
        return Message(
            role="assistant",
            content=texts["content"],
            reasoning_content=texts["reasoning"] or None,
            tool_calls=calls or None,
        )

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


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _output_text(text: str) -> OutputText:
    return OutputText(type="output_text", text=text, annotations=[], logprobs=[])
