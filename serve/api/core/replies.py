"""Replies in the making, from the engine's events of a request to the body of a response or the chunks of a stream.

``ResponseBuilder`` holds what all APIs share: identity, choices and usage. ``BlockBuilder`` is for those with
replies of blocks (reasoning, text, tool calls). Each API derives its own. Nothing here knows of HTTP.

Tested in tests/serve/api/openai/test_completions.py, tests/serve/api/openai/test_chat.py.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from slm.serve.api.core.shapes import (
    CompletionTokensDetails,
    PromptProgress,
    PromptTokensDetails,
    Timings,
    Usage,
)
from slm.serve.api.errors import Error
from slm.serve.engine.protocol import Delta, FinishReason, PrefillDone, PrefillProgress, StoppedBy, TokenLogprob
from slm.serve.tools.call_form import CallForm, Reasoning
from slm.serve.tools.channels import Begins, ChannelReader
from slm.serve.tools.reply_reader import Piece, Reader, ReplyReader

# One encoder for all: `json.dumps` with its own options makes a new one for every call.
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(kw_only=True)
class Choice:
    """What is known of one choice so far."""

    prefill: PrefillDone | None = None
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    n_tokens: int = 0
    n_reasoning: int = 0
    """Tokens up to the event in which the reasoning ended."""
    n_drafted: int = 0
    n_accepted: int = 0
    n_dropped: int = 0
    decode_s: float = 0.0
    finish: FinishReason | None = None
    stopped_by: StoppedBy | None = None
    stop_string: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReplyForm:
    """What a reply's text may hold besides content."""

    calls: CallForm | None = None
    """The form of tool calls; None where there can be none."""
    reasoning: Reasoning = "none"
    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By function, the parameters that are texts whatever they look like."""
    begins: Begins = ""
    """Where it begins, if its messages have channels that are split off."""

    def reader(self) -> Reader:
        """Takes a reply of this form apart."""
        if self.begins:
            return ChannelReader(self.begins, calls=self.calls is not None)
        return ReplyReader(self.calls, self.reasoning, self.texts)


@dataclass(kw_only=True)
class Call:
    """A tool call as far as it is known."""

    id: str
    name: str
    arguments: str = ""


@dataclass(kw_only=True)
class Message:
    """What a reply's text has become so far."""

    reader: Reader
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def take(self, event: Delta) -> list[Piece]:
        """Adds what an event brings; returns it in pieces."""
        pieces = self.reader.push(event.text, last=event.finish is not None)
        for piece in pieces:
            match piece.kind:
                case "content":
                    self.content.append(piece.text)
                case "reasoning":
                    self.reasoning.append(piece.text)
                case "call":
                    self.calls.append(Call(id=f"call_{secrets.token_hex(12)}", name=piece.text))
                case "arguments":
                    self.calls[-1].arguments += piece.text
        return pieces


class ResponseBuilder(ABC):
    """``n``: choices for each prompt, so that choice ``i`` belongs to prompt ``i // n``."""

    named_events: ClassVar[bool] = False
    """Whether the events of a stream carry their type as a name."""
    ends_in_done: ClassVar[bool] = True
    """Whether a stream that succeeds ends in ``[DONE]``."""
    media_type: ClassVar[str] = "text/event-stream"
    """Media type of a stream."""
    ping: ClassVar[bytes] = b": ping\n\n"
    """What a stream sends while there is nothing to say: a comment, which clients skip."""
    id_prefix: ClassVar[str]

    def __init__(self, *, model: str, n_choices: int, n: int, with_logprobs: bool) -> None:
        self.id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model, self._n, self._with_logprobs = model, n, with_logprobs
        self._choices = [Choice() for _ in range(n_choices)]
        self.fingerprint = ""
        """Hash of the model and of the software that computes it."""
        self.dropped_messages = 0
        """Messages dropped from a conversation longer than the context."""
        self.warnings: tuple[str, ...] = ()
        """What the request asked for and does not get."""
        self.verbose = False
        """Whether a whole response has the prompt's text."""
        self.timings_per_token = False
        """Whether every event of a stream has the timings so far."""

    def add(self, index: int, event: PrefillDone | Delta) -> None:
        """Takes an event of choice ``index``."""
        choice = self._choices[index]
        if isinstance(event, PrefillDone):
            choice.prefill = event
            return
        choice.text.append(event.text)
        choice.logprobs.extend(event.logprobs)
        choice.n_tokens = max(choice.n_tokens, event.completion_tokens)
        choice.n_drafted, choice.n_accepted = event.drafted_tokens, event.accepted_tokens
        choice.n_dropped, choice.decode_s = event.dropped_tokens, event.decode_s
        choice.finish, choice.stopped_by = event.finish, event.stopped_by
        choice.stop_string = event.stop_string

    def usage(self) -> Usage:
        """Token counts so far; a prompt counts once, however many choices it has."""
        prompts = [choice.prefill for choice in self._choices[:: self._n]]
        n_prompt = sum(each.prompt_tokens for each in prompts if each is not None)
        n_cached = sum(each.cached_tokens for each in prompts if each is not None)
        n_completion = sum(choice.n_tokens for choice in self._choices)
        usage = Usage(
            prompt_tokens=n_prompt,
            completion_tokens=n_completion,
            total_tokens=n_prompt + n_completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=n_cached),
        )
        details = CompletionTokensDetails()
        n_drafted = sum(choice.n_drafted for choice in self._choices)
        if n_drafted:
            n_accepted = sum(choice.n_accepted for choice in self._choices)
            details["accepted_prediction_tokens"] = n_accepted
            details["rejected_prediction_tokens"] = n_drafted - n_accepted
        if n_dropped := sum(choice.n_dropped for choice in self._choices):
            details["dropped_tokens"] = n_dropped
        if self.n_reasoning:
            details["reasoning_tokens"] = self.n_reasoning
        if details:
            usage["completion_tokens_details"] = details
        return usage

    def timings(self, index: int | None = None) -> Timings:
        """Tokens and milliseconds so far, of one choice or of all, in llama-server's shape. Choices run next to each
        other: their tokens are added up, and the longest one's time counts."""
        choices = self._choices if index is None else [self._choices[index]]
        prompts = [each.prefill for each in choices[:: self._n] if each.prefill is not None]
        n_cached = sum(each.cached_tokens for each in prompts)
        n_prompt = sum(each.prompt_tokens for each in prompts) - n_cached
        n_predicted = sum(choice.n_tokens for choice in choices)
        # A choice's first token comes with the end of its prompt.
        n_steps = sum(max(choice.n_tokens - 1, 0) for choice in choices)
        prefills = [choice.prefill.prefill_s for choice in choices if choice.prefill is not None]
        prompt_ms = 1000 * max(prefills, default=0.0)
        predicted_ms = 1000 * max(choice.decode_s for choice in choices)
        timings = _timings(n_cached, n_prompt, prompt_ms, n_predicted, n_steps, predicted_ms)
        n_drafted = sum(choice.n_drafted for choice in choices)
        if n_drafted:
            timings["draft_n"] = n_drafted
            timings["draft_n_accepted"] = sum(choice.n_accepted for choice in choices)
        return timings

    @property
    def _all_finished(self) -> bool:
        return all(choice.finish for choice in self._choices)

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning, in APIs that split it off."""
        return sum(choice.n_reasoning for choice in self._choices)

    @property
    def finish_reason(self) -> str | None:
        """Why the choices ended, each reason once, joined by commas; None while none has ended."""
        return ",".join(sorted({choice.finish for choice in self._choices if choice.finish})) or None

    def encode(self, chunk: Mapping[str, Any]) -> bytes:
        """A chunk as it is sent."""
        return encode_event(chunk, chunk["type"] if self.named_events else None)

    @abstractmethod
    def body(self) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        """The body of the whole response."""

    @abstractmethod
    def chunks(self, index: int, event: PrefillDone | Delta) -> Sequence[Mapping[str, Any]]:
        """The chunks of a stream that an event makes. The event must have been given to ``add``."""

    def usage_chunk(self) -> Mapping[str, Any]:
        """The last chunk of a stream where the client asked for usage, in APIs where it can ask."""
        raise NotImplementedError

    def progress_chunk(self, index: int, event: PrefillProgress) -> Mapping[str, Any]:
        """The chunk about how much of a prompt is computed, in APIs where a request can ask for it."""
        raise NotImplementedError

    def progress_chunks(self, index: int, event: PrefillProgress) -> Sequence[Mapping[str, Any]]:
        """The chunks of a stream that such an event makes."""
        return [self.progress_chunk(index, event)]

    def error_chunk(self, error: Error) -> Mapping[str, Any]:
        """The last chunk of a stream that fails."""
        return error


BlockKind = Literal["reasoning", "content", "call"]


@dataclass(kw_only=True)
class Block:
    """A part of a reply."""

    kind: BlockKind
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    name: str = ""
    """The function's, for a call."""
    text: str = ""
    """For a call, its arguments."""
    done: bool = False


class BlockBuilder(ResponseBuilder):
    """One reply. A stream reports each block when it begins, grows and ends, one block after the other."""

    named_events = True
    ends_in_done = False

    def __init__(self, *, model: str, form: ReplyForm) -> None:
        super().__init__(model=model, n_choices=1, n=1, with_logprobs=False)
        self._reader = form.reader()
        self._blocks: list[Block] = []
        self._events: list[dict[str, Any]] = []
        """The event that was added last."""

    def add(self, index: int, event: PrefillDone | Delta) -> None:
        """Takes an event of the only choice."""
        super().add(index, event)
        if isinstance(event, PrefillDone):
            self._events = self._begun()
            if self._reader.plain:
                self._events += self._open("content")
        else:
            self._events = self._take(event)

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The events of a stream that an event of the engine makes."""
        return self._events

    def _take(self, event: Delta) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for piece in self._reader.push(event.text, last=event.finish is not None):
            if piece.kind == "call":
                events += self._open("call", piece.text)
                continue
            if piece.kind != "arguments" and (not self._blocks or self._blocks[-1].kind != piece.kind):
                events += self._open(piece.kind)
            if piece.kind == "reasoning":
                self._choices[0].n_reasoning = event.completion_tokens
            block = self._blocks[-1]
            block.text += piece.text
            events += self._grown(len(self._blocks) - 1, block, piece.text)
        if event.finish is not None:
            if not self._blocks:
                events += self._open("content")
            events += self._close(len(self._blocks) - 1) + self._ended()
        return events

    def _open(self, kind: BlockKind, name: str = "") -> list[dict[str, Any]]:
        self._blocks.append(Block(kind=kind, name=name))
        closing = self._close(len(self._blocks) - 2)  # now that it is no longer the last one
        return closing + self._opened(len(self._blocks) - 1, self._blocks[-1])

    def _close(self, index: int) -> list[dict[str, Any]]:
        if index < 0 or self._blocks[index].done:
            return []
        self._blocks[index].done = True
        return self._closed(index, self._blocks[index])

    @abstractmethod
    def _begun(self) -> list[dict[str, Any]]:
        """The first events of a stream."""

    @abstractmethod
    def _opened(self, index: int, block: Block) -> list[dict[str, Any]]:
        """The events of a block that begins."""

    @abstractmethod
    def _grown(self, index: int, block: Block, text: str) -> list[dict[str, Any]]:
        """The events of a text that was added to a block."""

    @abstractmethod
    def _closed(self, index: int, block: Block) -> list[dict[str, Any]]:
        """The events of a block that ends."""

    @abstractmethod
    def _ended(self) -> list[dict[str, Any]]:
        """The last events of a stream."""


def encode_event(value: Any, name: str | None = None) -> bytes:
    """One event with ``value`` as JSON."""
    head = f"event: {name}\ndata: " if name else "data: "
    # Half of a surrogate pair may be in what a response repeats of its request.
    return f"{head}{_encode_json(value)}\n\n".encode("utf-8", "replace")


def _ratio(amount: float, by: float) -> float:
    return amount / by if by else 0.0


def prompt_progress(event: PrefillProgress) -> PromptProgress:
    """An event in llama-server's form."""
    return PromptProgress(
        total=event.prompt_tokens,
        cache=event.cached_tokens,
        processed=event.processed,
        time_ms=round(1000 * event.seconds),
    )


def prompt_timings(event: PrefillProgress) -> Timings:
    """The figures of a prompt that is being computed."""
    n = event.processed - event.cached_tokens
    ms = 1000 * event.seconds if n else 0.0
    return _timings(event.cached_tokens, n, ms, 0, 0, 0.0)


def _timings(
    n_cached: int, n_prompt: int, prompt_ms: float, n_predicted: int, n_steps: int, predicted_ms: float
) -> Timings:
    """``n_steps``: the predicted tokens without each choice's first, to which ``predicted_ms`` belong."""
    return Timings(
        cache_n=n_cached,
        prompt_n=n_prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, n_prompt),
        prompt_per_second=_ratio(1000 * n_prompt, prompt_ms),
        predicted_n=n_predicted,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, n_steps),
        predicted_per_second=_ratio(1000 * n_steps, predicted_ms),
    )


def token_text(piece: bytes) -> str:
    """A token's bytes as text; bytes that are no whole character become U+FFFD."""
    return piece.decode("utf-8", errors="replace")


def finite(logprob: float) -> float:
    """A log-probability as JSON can express it."""
    return max(logprob, _LOWEST_LOGPROB)
