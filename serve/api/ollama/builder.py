"""/api/chat and /api/generate: response bodies in Ollama's form, whole or as lines of JSON.

Tested in tests/serve/api/ollama/test_ollama_builder.py.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from slm.serve.api.core.replies import Message, ReplyForm, ResponseBuilder, finite, token_text
from slm.serve.api.errors import Error
from slm.serve.api.ollama.shapes import OllamaLogprob, OllamaTotals
from slm.serve.engine.protocol import Delta, PrefillDone, TokenLogprob
from slm.serve.tools.reply_reader import Piece

_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class OllamaBuilder(ResponseBuilder):
    """One reply: a message of /api/chat, or a text of /api/generate (``kind``)."""

    ends_in_done = False
    media_type = "application/x-ndjson"
    ping = b""  # lines of JSON have no comments
    id_prefix = "ollama"

    def __init__(
        self, *, model: str, kind: Literal["chat", "generate"], form: ReplyForm | None = None, with_logprobs: bool
    ) -> None:
        super().__init__(model=model, n_choices=1, n=1, with_logprobs=with_logprobs)
        form = form or ReplyForm()
        self._kind = kind
        self._message = Message(reader=form.reader())
        self._pieces: list[Piece] = []
        """The event that was added last."""
        self._n_sent_calls = 0
        self._began = time.perf_counter()

    def add(self, index: int, event: PrefillDone | Delta) -> None:
        """Takes an event of the only choice."""
        super().add(index, event)
        if isinstance(event, Delta):
            self._pieces = self._message.take(event)

    def encode(self, chunk: Mapping[str, Any]) -> bytes:
        """A chunk as a line."""
        return _encode_json(chunk).encode("utf-8", "replace") + b"\n"

    def body(self) -> dict[str, Any]:
        """The whole response."""
        said = self._message
        body = self._line(
            content="".join(said.content),
            thinking="".join(said.reasoning),
            calls=_calls(said, 0, len(said.calls)),
            done=True,
        )
        body |= self._totals()
        if self._with_logprobs:
            body["logprobs"] = _logprobs(self._choices[0].logprobs)
        return body

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[Mapping[str, Any]]:
        """The lines that an event makes: text as it comes, a call when it is whole, and at last the totals."""
        if isinstance(event, PrefillDone):
            return []
        lines: list[dict[str, Any]] = []
        for piece in self._pieces:
            if piece.kind == "content":
                lines.append(self._line(content=piece.text))
            elif piece.kind == "reasoning":
                lines.append(self._line(thinking=piece.text))
        # A call is whole when another one begins, or the reply ends.
        n_whole = len(self._message.calls) - (event.finish is None)
        calls = _calls(self._message, self._n_sent_calls, n_whole)
        self._n_sent_calls = max(self._n_sent_calls, n_whole)
        if calls:
            lines.append(self._line(calls=calls))
        if self._with_logprobs and event.logprobs:
            if not lines:
                lines.append(self._line())
            lines[0]["logprobs"] = _logprobs(event.logprobs)
        if event.finish:
            lines.append({**self._line(done=True), **self._totals()})
        return [*lines]

    def error_chunk(self, error: Error) -> Mapping[str, Any]:
        """The last line of a stream that fails."""
        return error_body(error)

    def _line(
        self,
        *,
        content: str = "",
        thinking: str = "",
        calls: Sequence[Mapping[str, Any]] = (),
        done: bool = False,
    ) -> dict[str, Any]:
        head = {"model": self.model, "created_at": now()}
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = calls
        if self._kind == "chat":
            return {**head, "message": {"role": "assistant", "content": content, **more}, "done": done}
        return {**head, "response": content, **more, "done": done}

    def _totals(self) -> OllamaTotals:
        choice = self._choices[0]
        prefill = choice.prefill
        return OllamaTotals(
            done_reason=choice.finish or "stop",
            total_duration=_nanoseconds(time.perf_counter() - self._began),
            load_duration=0,
            prompt_eval_count=prefill.prompt_tokens if prefill is not None else 0,
            prompt_eval_duration=_nanoseconds(prefill.prefill_s if prefill is not None else 0.0),
            eval_count=choice.n_tokens,
            eval_duration=_nanoseconds(choice.decode_s),
        )


def error_body(error: Error) -> dict[str, Any]:
    """An error in Ollama's form."""
    return {"error": error["error"]["message"]}


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)


def _calls(message: Message, first: int, end: int) -> list[dict[str, Any]]:
    """Calls with their arguments as objects. One that was cut off is none."""
    out = []
    for i, call in enumerate(message.calls[first:end], first):
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            continue
        out.append({"id": call.id, "function": {"index": i, "name": call.name, "arguments": arguments}})
    return out


def _logprobs(entries: Iterable[TokenLogprob]) -> list[OllamaLogprob]:
    out: list[OllamaLogprob] = []
    for entry in entries:
        if entry.is_eog:
            continue
        assert entry.logprob is not None
        whole = _logprob(entry.piece, entry.logprob)
        whole["top_logprobs"] = [_logprob(piece, logprob) for _, piece, logprob in entry.top]
        out.append(whole)
    return out


def _logprob(piece: bytes, logprob: float) -> OllamaLogprob:
    return {"token": token_text(piece), "bytes": list(piece), "logprob": finite(logprob)}
