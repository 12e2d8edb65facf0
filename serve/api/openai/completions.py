"""From engine events to OpenAI's response bodies, whole or in chunks. No HTTP in here."""

from __future__ import annotations

import base64
import secrets
import struct
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from serve.engine.messages import Delta, Embeddings, FinishReason, PrefillDone, TokenLogprob

_LOWEST = -9999.0  # JSON has no minus infinity


@dataclass(kw_only=True)
class _Choice:
    prompted: PrefillDone | None = None
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    n_tokens: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    finish: FinishReason | None = None


class Answer:
    """What all kinds share: identity, choices and usage. Choice i belongs to prompt i // n."""

    named_events = False
    """Whether the events of a stream carry their type as a name."""
    ends_in_done = True
    """Whether a stream that succeeds ends in ``[DONE]``."""
    prefix: str
    whole: str
    part: str

    def __init__(self, *, model: str, n_choices: int, n: int, with_logprobs: bool) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model, self._n, self._with_logprobs = model, n, with_logprobs
        self._choices = [_Choice() for _ in range(n_choices)]

    def take(self, index: int, event: PrefillDone | Delta) -> None:
        """Remembers an event."""
        choice = self._choices[index]
        if isinstance(event, PrefillDone):
            choice.prompted = event
            return
        choice.text.append(event.text)
        choice.logprobs.extend(event.logprobs)
        choice.n_tokens = max(choice.n_tokens, event.completion_tokens)
        choice.n_drafted, choice.n_accepted = event.drafted_tokens, event.accepted_tokens
        choice.finish = event.finish

    def usage(self) -> dict[str, Any]:
        """Token counts so far; a prompt counts once, however many choices it has."""
        prompts = [choice.prompted for choice in self._choices[:: self._n]]
        n_prompt = sum(each.prompt_tokens for each in prompts if each is not None)
        n_cached = sum(each.cached_tokens for each in prompts if each is not None)
        n_completion = sum(choice.n_tokens for choice in self._choices)
        usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "prompt_tokens_details": {"cached_tokens": n_cached},
        }
        n_drafted = sum(choice.n_drafted for choice in self._choices)
        if n_drafted:
            n_accepted = sum(choice.n_accepted for choice in self._choices)
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": n_accepted,
                "rejected_prediction_tokens": n_drafted - n_accepted,
            }
        return usage

    @property
    def finish_reason(self) -> str | None:
        """Why the choices ended, each reason once; None while none has."""
        return ",".join(sorted({choice.finish for choice in self._choices if choice.finish})) or None

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        return {**self._head(self.whole), "choices": self._whole_choices(), "usage": self.usage()}

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for usage."""
        return {**self._head(self.part), "choices": [], "usage": self.usage()}

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The chunks of a stream that an event makes; ``take`` must have had it before."""
        raise NotImplementedError

    def failure_chunk(self, error: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of a stream that fails; ``error`` is the body of an error."""
        return error

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _whole_choices(self) -> list[dict[str, Any]]:
        raise NotImplementedError


class CompletionAnswer(Answer):
    """/v1/completions"""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def _whole_choices(self) -> list[dict[str, Any]]:
        choices = []
        for index, choice in enumerate(self._choices):
            assert choice.prompted is not None
            before = choice.prompted.text
            entries = [*choice.prompted.logprobs, *_shifted(choice.logprobs, len(before))]
            choices.append(
                {
                    "index": index,
                    "text": before + "".join(choice.text),
                    "logprobs": _completion_logprobs(entries) if self._with_logprobs else None,
                    "finish_reason": choice.finish,
                }
            )
        return choices

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The chunks of a stream that an event makes."""
        if isinstance(event, PrefillDone):
            if not event.text:
                return []
            text, entries, finish = event.text, list(event.logprobs), None
        else:
            prompted = self._choices[index].prompted
            assert prompted is not None
            text, finish = event.text, event.finish
            entries = _shifted(event.logprobs, len(prompted.text))
        choice = {
            "index": index,
            "text": text,
            "logprobs": _completion_logprobs(entries) if self._with_logprobs else None,
            "finish_reason": finish,
        }
        return [{**self._head(self.part), "choices": [choice]}]


class ChatAnswer(Answer):
    """/v1/chat/completions"""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _whole_choices(self) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
                "logprobs": self._logprobs(choice.logprobs),
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(self._choices)
        ]

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The chunks of a stream that an event makes: the role first, the reason to end alone and last."""
        if isinstance(event, PrefillDone):
            return [self._chunk(index, {"role": "assistant", "content": ""})]
        out = []
        if event.text or event.logprobs:
            out.append(self._chunk(index, {"content": event.text}, self._logprobs(event.logprobs)))
        if event.finish:
            out.append(self._chunk(index, {}, None, event.finish))
        return out

    def _chunk(
        self, index: int, delta: dict[str, str], logprobs: Any = None, finish: FinishReason | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head(self.part), "choices": [choice]}

    def _logprobs(self, entries: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        content = []
        for entry in entries:
            assert entry.logprob is not None
            if entry.is_eog:
                continue  # OpenAI's chat tells only of tokens that the message consists of
            top = [_chat_entry(piece, logprob) for _, piece, logprob in entry.top]
            content.append({**_chat_entry(entry.piece, entry.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", errors="replace")


def _chat_entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(piece), "bytes": list(piece), "logprob": max(logprob, _LOWEST)}


def _shifted(entries: list[TokenLogprob] | tuple[TokenLogprob, ...], by: int) -> list[TokenLogprob]:
    return [replace(each, offset=each.offset + by) for each in entries]


def _completion_logprobs(entries: list[TokenLogprob]) -> dict[str, Any]:
    tops: list[dict[str, float] | None] = []
    for entry in entries:
        if entry.logprob is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        # Pieces that are no whole characters may share a spelling: the likelier one keeps it.
        for piece, logprob in [*((piece, value) for _, piece, value in entry.top), (entry.piece, entry.logprob)]:
            top.setdefault(_text(piece), max(logprob, _LOWEST))
        tops.append(top)
    return {
        "tokens": [_text(entry.piece) for entry in entries],
        "token_logprobs": [None if entry.logprob is None else max(entry.logprob, _LOWEST) for entry in entries],
        "top_logprobs": tops,
        "text_offset": [entry.offset for entry in entries],
    }


def embedding_body(answer: Embeddings, model: str, encoding: Literal["float", "base64"]) -> dict[str, Any]:
    """/v1/embeddings; base64 is of little-endian float32, as OpenAI has it."""
    data = []
    for index, vector in enumerate(answer.vectors):
        numbers = (
            base64.b64encode(vector).decode()
            if encoding == "base64"
            else list(struct.unpack(f"<{len(vector) // 4}f", vector))
        )
        data.append({"object": "embedding", "index": index, "embedding": numbers})
    usage = {"prompt_tokens": answer.n_tokens, "total_tokens": answer.n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
