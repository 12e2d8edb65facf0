"""/v1/completions: response bodies, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slm.serve.api.core.replies import ResponseBuilder, finite, prompt_progress, token_text
from slm.serve.api.openai.response_shapes import Completion, CompletionChoice, CompletionLogprobs
from slm.serve.engine.protocol import Delta, PrefillDone, PrefillProgress, TokenLogprob


class CompletionBuilder(ResponseBuilder):
    """Completions of one prompt or several."""

    id_prefix = "cmpl"

    def body(self) -> Completion:
        """The body of the whole response."""
        body = self._with_usage(self._completion(self._whole_choices()))
        body["timings"] = self.timings()
        return body

    def usage_chunk(self) -> Completion:
        """The last chunk of a stream where the client asked for usage."""
        return self._with_usage(self._completion([]))

    def progress_chunk(self, index: int, event: PrefillProgress) -> Completion:
        """The chunk about how much of a prompt is computed."""
        chunk = self._completion([{"index": index, "text": "", "logprobs": None, "finish_reason": None}])
        chunk["prompt_progress"] = prompt_progress(event)
        return chunk

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[Completion]:
        """The chunk of a stream that an event makes; a prompt makes one only where it is echoed."""
        if isinstance(event, PrefillDone):
            if not event.text:
                return []
            text, entries, finish, stopped_by = event.text, list(event.logprobs), None, None
        else:
            prefill = self._choices[index].prefill
            assert prefill is not None
            text, finish, stopped_by = event.text, event.finish, event.stopped_by
            entries = _shifted(event.logprobs, len(prefill.text))
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": _logprobs(entries) if self._with_logprobs else None,
            "finish_reason": finish,
        }
        if stopped_by is not None:
            choice["stopped_by"] = stopped_by
        chunk = self._completion([choice])
        if finish and self._all_finished:
            chunk["timings"] = self.timings()
        return [chunk]

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        # Here and above literals, which are made faster than by calling the type: this runs for every token.
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _with_usage(self, completion: Completion) -> Completion:
        completion["usage"] = self.usage()
        return completion

    def _whole_choices(self) -> list[CompletionChoice]:
        choices = []
        for index, choice in enumerate(self._choices):
            assert choice.prefill is not None
            echoed = choice.prefill.text
            entries = [*choice.prefill.logprobs, *_shifted(choice.logprobs, len(echoed))]
            whole = CompletionChoice(
                index=index,
                text=echoed + "".join(choice.text),
                logprobs=_logprobs(entries) if self._with_logprobs else None,
                finish_reason=choice.finish,
            )
            if choice.stopped_by is not None:
                whole["stopped_by"] = choice.stopped_by
            choices.append(whole)
        return choices


def _shifted(entries: Iterable[TokenLogprob], by: int) -> list[TokenLogprob]:
    return [replace(each, offset=each.offset + by) for each in entries] if by else list(entries)


def _logprobs(entries: list[TokenLogprob]) -> CompletionLogprobs:
    tops: list[dict[str, float] | None] = []
    for entry in entries:
        if entry.logprob is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        # Tokens that are no whole characters may share a spelling: the likelier one keeps it.
        for piece, logprob in [*((piece, value) for _, piece, value in entry.top), (entry.piece, entry.logprob)]:
            top.setdefault(token_text(piece), finite(logprob))
        tops.append(top)
    return CompletionLogprobs(
        tokens=[token_text(entry.piece) for entry in entries],
        token_logprobs=[None if entry.logprob is None else finite(entry.logprob) for entry in entries],
        top_logprobs=tops,
        text_offset=[entry.offset for entry in entries],
    )
