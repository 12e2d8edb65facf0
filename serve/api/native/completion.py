"""/completion and /infill: response bodies in llama-server's form, whole or in events.

Tested in tests/serve/api/native/test_completion.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slm.serve.api.core.replies import Choice, ResponseBuilder, finite, prompt_progress, token_text
from slm.serve.api.native.shapes import NativeChunk, NativeCompletion, StopType, TokenProbability
from slm.serve.engine.protocol import Delta, PrefillDone, PrefillProgress, SamplingParams, TokenLogprob

_NO_SLOT = -1


class NativeBuilder(ResponseBuilder):
    """One or several completions. ``prompts``: the text of each. ``settings``: what ``generation_settings`` says.

    ``fields``: only these fields of a whole response; empty: all.
    """

    ends_in_done = False
    id_prefix = "cmpl"

    def __init__(
        self,
        *,
        model: str,
        prompts: Sequence[str],
        n: int,
        with_logprobs: bool,
        settings: Mapping[str, Any],
        return_tokens: bool = False,
        fields: Sequence[str] = (),
        n_dropped: int = 0,
    ) -> None:
        super().__init__(model=model, n_choices=len(prompts) * n, n=n, with_logprobs=with_logprobs)
        self._prompts, self._settings, self._fields = prompts, settings, fields
        self._return_tokens, self._n_dropped = return_tokens, n_dropped
        self._tokens: list[list[int]] = [[] for _ in self._choices]

    def add(self, index: int, event: PrefillDone | Delta) -> None:
        """Takes an event of choice ``index``."""
        super().add(index, event)
        if isinstance(event, Delta):
            self._tokens[index].extend(event.tokens)

    def body(self) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        """The response: a list where there are several choices."""
        bodies = [self._whole(index) for index in range(len(self._choices))]
        return bodies if len(bodies) > 1 else bodies[0]

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[Mapping[str, Any]]:
        """The events of a stream that an event of the engine makes; the last one of a choice has no text."""
        if isinstance(event, PrefillDone):
            return []
        choice = self._choices[index]
        chunks: list[Mapping[str, Any]] = []
        if event.text or event.tokens or event.finish is None:
            chunk = NativeChunk(
                index=index,
                content=event.text,
                tokens=list(event.tokens),
                stop=False,
                id_slot=_NO_SLOT,
                tokens_predicted=event.completion_tokens,
                tokens_evaluated=_prompt_tokens(choice),
            )
            if self._with_logprobs:
                chunk["completion_probabilities"] = _probabilities(event.logprobs)
            chunks.append({**chunk})
        if event.finish:
            chunks.append(self._whole(index, text=False))
        return chunks

    def progress_chunk(self, index: int, event: PrefillProgress) -> Mapping[str, Any]:
        """The event about how much of a prompt is computed."""
        chunk = NativeChunk(
            index=index,
            content="",
            tokens=[],
            stop=False,
            id_slot=_NO_SLOT,
            tokens_predicted=0,
            tokens_evaluated=event.prompt_tokens,
            prompt_progress=prompt_progress(event),
        )
        return {**chunk}

    def _whole(self, index: int, *, text: bool = True) -> Mapping[str, Any]:
        choice = self._choices[index]
        said = "".join(choice.text)
        body = NativeCompletion(
            index=index,
            content=said if text else "",
            tokens=self._tokens[index] if text and self._return_tokens else [],
            id_slot=_NO_SLOT,
            stop=True,
            model=self.model,
            tokens_predicted=choice.n_tokens,
            tokens_evaluated=_prompt_tokens(choice),
            generation_settings={**self._settings},
            prompt=self._prompts[index // self._n],
            has_new_line="\n" in said,
            truncated=choice.stopped_by == "context" or choice.n_dropped > 0,
            stop_type=_stop_type(choice),
            stopping_word=choice.stop_string or "",
            tokens_cached=choice.prefill.cached_tokens if choice.prefill is not None else 0,
            timings=self.timings(index),
        )
        if text and self._with_logprobs:
            body["completion_probabilities"] = _probabilities(choice.logprobs)
        if self._n_dropped:
            body["dropped_prompt_tokens"] = self._n_dropped
        return _picked({**body}, self._fields) if self._fields else {**body}


def _prompt_tokens(choice: Choice) -> int:
    return choice.prefill.prompt_tokens if choice.prefill is not None else 0


def _stop_type(choice: Choice) -> StopType:
    if choice.finish is None:
        return "none"
    if choice.finish == "length":
        return "limit"
    return "eos" if choice.stop_string is None else "word"


def _picked(body: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Only these fields of a body; what it has not is left out."""
    out = {}
    for name in fields:
        value: Any = body
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            out[name] = value
    return out


def _probabilities(entries: Iterable[TokenLogprob]) -> list[TokenProbability]:
    out = []
    for entry in entries:
        assert entry.logprob is not None
        whole = _probability(entry.token, entry.piece, entry.logprob)
        whole["top_logprobs"] = [_probability(*each) for each in entry.top]
        out.append(whole)
    return out


def _probability(token: int, piece: bytes, logprob: float) -> TokenProbability:
    return TokenProbability(id=token, token=token_text(piece), bytes=list(piece), logprob=finite(logprob))


def generation_settings(
    sampling: SamplingParams, *, max_tokens: int | None, endings: Sequence[int] = (), **more: Any
) -> dict[str, Any]:
    """What a response says of the options that made its text, under llama-server's names. ``endings``: the model's
    tokens that end a text."""
    settings = asdict(sampling)
    settings["typ_p"] = settings["typical_p"]
    settings["logit_bias"] = [{"token": token, "bias": finite(bias)} for token, bias in sampling.logit_bias]
    if sampling.ignore_eos:
        settings["logit_bias"] += [{"token": token, "bias": None} for token in endings]
    settings["grammar"] = sampling.grammar or ""
    settings |= {"adaptive_target": -1.0, "adaptive_decay": 0.0}  # there is no adaptive sampling
    n = -1 if max_tokens is None else max_tokens
    return {**settings, "max_tokens": n, "n_predict": n, **more}
