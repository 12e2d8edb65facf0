"""/v1/chat/completions: response bodies, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable

from slm.serve.api.core.replies import Call, Message, ReplyForm, ResponseBuilder, finite, prompt_progress, token_text
from slm.serve.api.openai.response_shapes import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatFinishReason,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    ResponseToolCall,
    TopLogprob,
)
from slm.serve.engine.protocol import Delta, PrefillDone, PrefillProgress, StoppedBy, TokenLogprob
from slm.serve.tools.reply_reader import Piece


class ChatCompletionBuilder(ResponseBuilder):
    """The next message of a chat, in ``n`` choices."""

    id_prefix = "chatcmpl"

    def __init__(
        self, *, model: str, n_choices: int, n: int, with_logprobs: bool, form: ReplyForm | None = None
    ) -> None:
        super().__init__(model=model, n_choices=n_choices, n=n, with_logprobs=with_logprobs)
        form = form or ReplyForm()
        self._messages = [Message(reader=form.reader()) for _ in range(n_choices)]
        self._pieces: list[Piece] = []
        """The event that was added last."""

    def add(self, index: int, event: PrefillDone | Delta) -> None:
        """Takes an event of choice ``index``."""
        super().add(index, event)
        if isinstance(event, Delta):
            self._pieces = self._messages[index].take(event)
            if any(piece.kind == "reasoning" for piece in self._pieces):
                self._choices[index].n_reasoning = event.completion_tokens

    def body(self) -> ChatCompletion:
        """The body of the whole response."""
        body = ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=self._whole_choices(),
            usage=self.usage(),
            timings=self.timings(),
        )
        if self.dropped_messages:
            body["dropped_messages"] = self.dropped_messages
        return body

    def usage_chunk(self) -> ChatCompletionChunk:
        """The last chunk of a stream where the client asked for usage."""
        chunk = self._chunk([])
        chunk["usage"], chunk["timings"] = self.usage(), self.timings()
        return chunk

    def progress_chunk(self, index: int, event: PrefillProgress) -> ChatCompletionChunk:
        """The chunk about how much of the prompt is computed."""
        chunk = self._choice_chunk(index, ChatDelta())
        chunk["prompt_progress"] = prompt_progress(event)
        return chunk

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[ChatCompletionChunk]:
        """The chunks of a stream that an event makes: the role comes first, the finish reason alone and last."""
        if isinstance(event, PrefillDone):
            first = self._choice_chunk(index, ChatDelta(role="assistant", content=None))
            if self.dropped_messages:
                first["dropped_messages"] = self.dropped_messages
            return [first]
        deltas = self._deltas(index)
        logprobs = self._logprobs(event.logprobs)
        if event.logprobs and not deltas:
            deltas = [{"content": ""}]
        chunks = []
        for i, delta in enumerate(deltas):
            chunks.append(self._choice_chunk(index, delta, None if i else logprobs))
        if event.finish:
            last = self._choice_chunk(index, ChatDelta(), None, self._finish(index), event.stopped_by)
            if self._all_finished:
                last["timings"] = self.timings()
            chunks.append(last)
        return chunks

    def _deltas(self, index: int) -> list[ChatDelta]:
        """What the pieces of the last event are in a stream."""
        deltas: list[ChatDelta] = []
        calls = self._messages[index].calls
        at = len(calls) - 1 - sum(piece.kind == "call" for piece in self._pieces)
        for piece in self._pieces:
            match piece.kind:
                case "content":
                    deltas.append({"content": piece.text})
                case "reasoning":
                    deltas.append({"reasoning_content": piece.text})
                case "call":
                    at += 1
                    function = {"name": piece.text, "arguments": ""}
                    begun = {"index": at, "id": calls[at].id, "type": "function", "function": function}
                    deltas.append({"tool_calls": [begun]})  # type: ignore[list-item]
                case "arguments":
                    deltas.append({"tool_calls": [{"index": at, "function": {"arguments": piece.text}}]})
        return deltas

    def _finish(self, index: int) -> ChatFinishReason:
        finish = self._choices[index].finish
        assert finish is not None
        message = self._messages[index]
        return "tool_calls" if finish == "stop" and message.calls and not message.reader.in_call else finish

    def _whole_choices(self) -> list[ChatChoice]:
        choices = []
        for index, (choice, message) in enumerate(zip(self._choices, self._messages, strict=True)):
            content = "".join(message.content)
            said = ChatMessage(role="assistant", content=content or (None if message.calls else ""), refusal=None)
            if message.reasoning:
                said["reasoning_content"] = "".join(message.reasoning)
            if message.calls:
                said["tool_calls"] = [_call(each) for each in message.calls]
            whole = ChatChoice(
                index=index,
                message=said,
                logprobs=self._logprobs(choice.logprobs),
                finish_reason=self._finish(index),
            )
            if choice.stopped_by is not None:
                whole["stopped_by"] = choice.stopped_by
            choices.append(whole)
        return choices

    def _choice_chunk(
        self,
        index: int,
        delta: ChatDelta,
        logprobs: ChatLogprobs | None = None,
        finish: ChatFinishReason | None = None,
        stopped_by: StoppedBy | None = None,
    ) -> ChatCompletionChunk:
        choice: ChatChunkChoice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        if stopped_by is not None:
            choice["stopped_by"] = stopped_by
        return self._chunk([choice])

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        # Here and above literals, which are made faster than by calling the type: this runs for every token.
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _logprobs(self, entries: Iterable[TokenLogprob]) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        content: list[ChatLogprob] = []
        for entry in entries:
            assert entry.logprob is not None
            if entry.is_eog:
                continue  # OpenAI's chat reports only tokens that are part of the message
            top = [_top_logprob(piece, logprob) for _, piece, logprob in entry.top]
            content.append({**_top_logprob(entry.piece, entry.logprob), "top_logprobs": top})
        return ChatLogprobs(content=content, refusal=None)


def _call(call: Call) -> ResponseToolCall:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _top_logprob(piece: bytes, logprob: float) -> TopLogprob:
    return {"token": token_text(piece), "bytes": list(piece), "logprob": finite(logprob)}
