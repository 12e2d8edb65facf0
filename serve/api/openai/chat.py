"""/v1/chat/completions: response bodies, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable

from serve.api.openai.response_builder import ResponseBuilder, finite, token_text
from serve.api.openai.response_shapes import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    TopLogprob,
)
from serve.engine.messages import Delta, FinishReason, PrefillDone, StoppedBy, TokenLogprob


class ChatCompletionBuilder(ResponseBuilder):
    """The next message of a chat, in ``n`` choices."""

    id_prefix = "chatcmpl"

    def body(self) -> ChatCompletion:
        """The body of the whole response."""
        body = ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            choices=self._whole_choices(),
            usage=self.usage(),
        )
        if self.dropped_messages:
            body["dropped_messages"] = self.dropped_messages
        return body

    def usage_chunk(self) -> ChatCompletionChunk:
        """The last chunk of a stream whose client asked for usage."""
        chunk = self._chunk([])
        chunk["usage"] = self.usage()
        return chunk

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[ChatCompletionChunk]:
        """The chunks of a stream that an event makes: the role comes first, the finish reason alone and last."""
        if isinstance(event, PrefillDone):
            first = self._choice_chunk(index, ChatDelta(role="assistant", content=""))
            if self.dropped_messages:
                first["dropped_messages"] = self.dropped_messages
            return [first]
        chunks = []
        if event.text or event.logprobs:
            logprobs = self._logprobs(event.logprobs)
            chunks.append(self._choice_chunk(index, {"content": event.text}, logprobs))
        if event.finish:
            chunks.append(self._choice_chunk(index, ChatDelta(), None, event.finish, event.stopped_by))
        return chunks

    def _whole_choices(self) -> list[ChatChoice]:
        choices = []
        for index, choice in enumerate(self._choices):
            assert choice.finish is not None
            whole = ChatChoice(
                index=index,
                message=ChatMessage(role="assistant", content="".join(choice.text), refusal=None),
                logprobs=self._logprobs(choice.logprobs),
                finish_reason=choice.finish,
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
        finish: FinishReason | None = None,
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


def _top_logprob(piece: bytes, logprob: float) -> TopLogprob:
    return {"token": token_text(piece), "bytes": list(piece), "logprob": finite(logprob)}
