"""Routes that generate text: completions, chat completions, responses and Anthropic's messages.

Tested in tests/serve/test_server.py, tests/serve/api/openai/test_responses.py, tests/serve/test_structured.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slm.serve.api.access_log import record_of
from slm.serve.api.anthropic.message_builder import MessageBuilder
from slm.serve.api.anthropic.requests import MessagesRequest, chat_request
from slm.serve.api.core.fields import Prompt
from slm.serve.api.core.kept_streams import HEADER, KeptStreams
from slm.serve.api.core.messages import Message, template_messages, template_tools
from slm.serve.api.core.replies import ReplyForm, ResponseBuilder
from slm.serve.api.core.requests import (
    ChatRequest,
    CompletionRequest,
    adapter_scales,
    call_grammar,
    thoughtful_grammar,
)
from slm.serve.api.core.streaming import EventStream, collect, expire_later, stream, unless_disconnected
from slm.serve.api.errors import ApiError, request_failed
from slm.serve.api.openai.chat import ChatCompletionBuilder
from slm.serve.api.openai.completions import CompletionBuilder
from slm.serve.api.openai.response_shapes import DeletedResponse
from slm.serve.api.openai.response_store import ResponseStore, Stored
from slm.serve.api.openai.responses import ResponsesRequest
from slm.serve.api.openai.responses_output import ResponsesBuilder
from slm.serve.api.routes.base import ModelRoutes, RequestContext
from slm.serve.chat_template import THINKING, ChatTemplateError, RenderedChat
from slm.serve.config import ServerOptions
from slm.serve.engine.protocol import Detokenize, Generate, MessageHeaders, ThoughtLimit, Tokenize
from slm.serve.grammar.forms import Grammar
from slm.serve.history import HistoryWindow, prompt_limit
from slm.serve.infill import NO_FIM, InfillPrompt, infill_prompt, other_file, room_for_prompt
from slm.serve.pool.model_pool import Pool
from slm.serve.pool.request_stream import RequestFailedError
from slm.serve.tools.call_form import CHANNELS, END_OF_THINK, THINK, Reasoning
from slm.serve.tools.channels import ANALYSIS, CHANNEL, END, FINAL, LEAD, MESSAGE, START, TURN, Begins
from slm.serve.tools.written_arguments import texts_of

_ACCEPT_S = 0.1
"""The engine accepts or refuses a prompt of usual length within some milliseconds. After so long a stream begins all
the same, and a refusal becomes an event of it."""
_ADVICE = {
    False: '"truncation": "auto" drops the oldest messages instead.',
    True: "The system messages and the last turn alone are too long, and these are never dropped.",
}
"""About a conversation that does not fit the context, by whether its oldest turns may be dropped."""


@dataclass(frozen=True)
class _Chat:
    """What the engine gets of a chat, and what its reply may hold."""

    sequences: list[Generate]
    form: ReplyForm
    n_dropped: int
    """How many of the oldest messages are not in the prompt."""
    warnings: tuple[str, ...]
    """What of the request is not enforced, or does not stand where it was given."""


class JsonBody(JSONResponse):
    """A body that may repeat text of its request, in which half of a surrogate pair may be."""

    def render(self, content: Any) -> bytes:
        """The body as UTF-8, with a question mark for each such half."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


class GenerationRoutes(ModelRoutes):
    """Handlers that turn a body into sequences for the engine, and the engine's events into a response."""

    def __init__(self, pool: Pool, options: ServerOptions, store: ResponseStore, streams: KeptStreams) -> None:
        super().__init__(pool, options)
        self._store, self._streams = store, streams

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        body = await self._read(request, CompletionRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            info = context.lease.info
            prompts = body.prompts(info)
            self._check_choices(len(prompts) * body.n)
            if body.suffix:
                prompts = [await self._filled(context, each, body) for each in prompts]
            grammar = await self._grammar(body)
            base = Generate(
                id="",
                prompt="",
                add_special=body.add_special_tokens,
                parse_special=body.parse_special,
                max_tokens=body.max_tokens,
                stop=body.stops(),
                sampling=body.sampling(info, None if grammar is None else grammar.text),
                use_prefix_cache=body.cache_prompt,
                return_progress=body.wants_progress,
                speculate=body.may_speculate,
                top_logprobs=body.logprobs,
                echo=body.echo,
            )
            sequences = choices(context, base, prompts, body)
            builder = CompletionBuilder(
                model=context.lease.name,
                n_choices=len(sequences),
                n=body.n,
                with_logprobs=body.logprobs is not None,
            )
            builder.warnings = () if grammar is None else grammar.warnings
            builder.timings_per_token = body.timings_per_token
            return await self._generate(
                context,
                sequences,
                builder,
                streams=body.stream,
                include_usage=body.include_usage,
                usage_in_chunks=body.usage_in_chunks,
            )

    async def _filled(self, context: RequestContext, prompt: Prompt, body: CompletionRequest) -> tuple[int, ...]:
        """A prompt with the request's ``suffix`` behind the gap. Raises ``ApiError``."""
        if context.lease.info.fim is None:
            raise ApiError(400, f"suffix: {NO_FIM}", param="suffix", code="unsupported")
        if body.echo:
            raise ApiError(400, "echo and suffix exclude each other.", param="echo")
        made = await self._infill(context, prompt, body.suffix, body.max_tokens)
        if made.n_dropped:
            message = f"prompt and suffix have {made.n_dropped} tokens too many for the context. Shorten them."
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")
        return made.tokens

    async def _infill(
        self,
        context: RequestContext,
        before: Prompt,
        behind: str,
        max_tokens: int | None,
        others: Sequence[tuple[str, str]] = (),
    ) -> InfillPrompt:
        """The prompt for filling in between two texts, for a model that can. ``others``: name and text of files."""
        info = context.lease.info
        assert info.fim is not None
        files: list[int] = []
        prefix: list[int] = []
        for part in (before,) if isinstance(before, str) else before:
            prefix += await self._ids(context, part) if isinstance(part, str) else [part]
        for name, text in others:
            files += other_file(info.fim, await self._ids(context, name + "\n"), await self._ids(context, text))
        return infill_prompt(
            info.fim,
            before=prefix,
            behind=await self._ids(context, behind),
            others=files,
            bos=info.bos_id if info.add_bos and info.bos_id >= 0 else None,
            room=room_for_prompt(info.context, max_tokens),
        )

    async def _ids(
        self, context: RequestContext, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text."""
        if not text:
            return []
        key = context.lease.engine.next_id()
        query = Tokenize(id=key, text=text, add_special=add_special, parse_special=parse_special)
        ids: list[int] = await self._ask(context, query)
        return ids

    async def _text(self, context: RequestContext, ids: tuple[int, ...]) -> str:
        """The text of token ids."""
        text: str = await self._ask(context, Detokenize(id=context.lease.engine.next_id(), tokens=ids))
        return text

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        body = await self._read(request, ChatRequest)
        self._check_choices(body.n)
        async with self._model(request, body.model, body.timeout_s) as context:
            truncates = (body.truncation or self._options.truncation) == "auto"
            asked = await self._chat(context, body, body.ignored, truncates)
            builder = ChatCompletionBuilder(
                model=context.lease.name, n_choices=body.n, n=body.n, with_logprobs=body.logprobs, form=asked.form
            )
            builder.dropped_messages, builder.warnings = asked.n_dropped, asked.warnings
            builder.timings_per_token = body.timings_per_token
            builder.verbose = body.verbose
            return await self._generate(
                context,
                asked.sequences,
                builder,
                streams=body.stream,
                include_usage=body.include_usage,
                usage_in_chunks=body.usage_in_chunks,
                if_too_long=_ADVICE[truncates],
            )

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses"""
        body = await self._read(request, ResponsesRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            truncation = body.truncation or self._options.truncation
            truncates = truncation == "auto"
            before = self._before(request, body)
            asked = await self._chat(context, body.as_chat(before), body.ignored, truncates)

            def keep(response: Mapping[str, Any], said: Message) -> None:
                messages = (*body.conversation(before), said)
                self._store.put(Stored(owner=context.record.key, body=response, messages=messages))

            builder = ResponsesBuilder(
                model=context.lease.name,
                request=body,
                form=asked.form,
                truncation=truncation,
                sampling=context.lease.info.sampling,
                keep=keep if body.store else None,
            )
            builder.dropped_messages, builder.warnings = asked.n_dropped, asked.warnings
            builder.timings_per_token = body.timings_per_token
            return await self._generate(
                context, asked.sequences, builder, streams=body.stream, if_too_long=_ADVICE[truncates]
            )

    def _before(self, request: Request, body: ResponsesRequest) -> tuple[Message, ...]:
        """The messages of the response from which a request goes on. Raises ``ApiError``."""
        key = body.previous_response_id
        if key is None:
            return ()
        return self._store.get(key, record_of(request.scope).key, param="previous_response_id").messages

    async def response(self, request: Request) -> Response:
        """GET and DELETE /v1/responses/ID"""
        key, owner = request.path_params["id"], record_of(request.scope).key
        if request.method == "DELETE":
            self._store.delete(key, owner)
            return JsonBody(DeletedResponse(id=key, object="response", deleted=True))
        return JsonBody(self._store.get(key, owner).body)

    async def stream(self, request: Request) -> Response:
        """GET and DELETE /v1/stream?conv_id=NAME[&from=BYTES]"""
        asked, owner = request.query_params, record_of(request.scope).key
        name, skip = asked.get("conv_id", ""), asked.get("from") or "0"
        if request.method == "DELETE":
            self._streams.delete(name, owner)
            return Response(status_code=204)
        if not (skip.isdecimal() and len(skip) < 16):
            raise ApiError(400, "from must be a number of bytes.", param="from", code="invalid_value")
        kept = self._streams.get(name, owner)
        return EventStream(kept.read(int(skip)), on_end=kept.left, write_timeout_s=self._options.write_timeout_s)

    async def messages(self, request: Request) -> Response:
        """POST /v1/messages"""
        body = await self._read(request, MessagesRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            asked = await self._chat(context, chat_request(body), body.ignored, self._options.truncation == "auto")
            builder = MessageBuilder(model=context.lease.name, form=asked.form, stops=body.stop_sequences)
            builder.dropped_messages, builder.warnings = asked.n_dropped, asked.warnings
            builder.timings_per_token = body.timings_per_token
            return await self._generate(context, asked.sequences, builder, streams=body.stream)

    async def _chat(self, context: RequestContext, body: ChatRequest, ignored: list[str], truncates: bool) -> _Chat:
        """The sequences of a chat. ``ignored`` gets the names of what has no effect on this model. ``truncates``:
        whether its oldest turns may be left out."""
        chat, use = context.lease.chat, body.tool_use()
        messages, prompt = template_messages(body.messages, ignored), self._prompt(context, body, ignored)
        asked = await self._grammar(body)
        body.sampling(context.lease.info)  # what is wrong there is said before the work
        top_logprobs = body.n_top()
        n_dropped = 0
        rendered = await self._render(prompt, messages)
        if truncates:
            window = HistoryWindow(messages, prompt_limit(context.lease.info.context, body.limit()))
            while not window.counted(await self._count(context, rendered, window.limit)):
                rendered = await self._render(prompt, window.messages)
            n_dropped = window.n_dropped
            if n_dropped:
                rendered = await self._render(prompt, window.messages)
        reasoning: Reasoning = rendered.reasoning if body.separates_reasoning else "none"
        begins = rendered.begins if body.separates_reasoning else ""
        grammar, warnings = None, () if asked is None else asked.warnings
        if use is not None:
            grammar, warnings = await run_in_threadpool(call_grammar, chat.call_form, use, reasoning, asked, begins)
            if chat.call_form.between is None and body.wants_parallel:
                ignored.append("parallel_tool_calls")  # a reply of this model holds one call
        elif asked is not None:
            if (reasoning == "open" or begins == "header") and not body.own_grammar:
                grammar = await run_in_threadpool(thoughtful_grammar, asked, reasoning, begins)
            else:
                grammar = asked.text
                if reasoning == "open" and END_OF_THINK not in asked.rules:
                    reasoning = "none"  # the caller's own grammar holds from the first character on
        calls = None if use is None else chat.call_form
        texts = {} if use is None else {tool.name: texts_of(tool.parameters) for tool in use.tools}
        form = ReplyForm(calls=calls, reasoning=reasoning, texts=texts, begins=begins)
        base = Generate(
            id="",
            prompt="",
            add_special=rendered.add_special,
            parse_special=rendered.parse_special,
            literal_spans=rendered.literal_spans,
            max_tokens=body.limit(),
            stop=(*body.stops(), *chat.stop),
            stop_until="" if calls is None else calls.mark,
            headers=MessageHeaders(end=MESSAGE, opened=begins == "header", lead=LEAD) if begins else None,
            shown=CHANNELS.controls if rendered.begins else () if calls is None else calls.controls,
            thought=_thought_limit(
                body.reasoning_budget(self._options.reasoning_budget), reasoning, begins, may_call=use is not None
            ),
            sampling=body.sampling(context.lease.info, grammar),
            use_prefix_cache=body.cache_prompt,
            return_progress=body.wants_progress,
            speculate=body.may_speculate,
            top_logprobs=top_logprobs,
        )
        warnings = (*rendered.warnings, *warnings)
        return _Chat(choices(context, base, [rendered.text], body), form, n_dropped, warnings)

    def _prompt(
        self, context: RequestContext, body: ChatRequest, ignored: list[str]
    ) -> Callable[[list[dict[str, Any]]], RenderedChat]:
        """Makes a prompt of messages, with the tools and options of a request. ``ignored`` gets the names of options
        that the template does not read. Raises ``ApiError``."""
        chat, opens_turn = context.lease.chat, body.opens_turn()
        tools = template_tools(body.tools) if body.tool_use() is not None else []
        variables = body.template_options()
        reads = {where for name, (where, _) in variables.items() if chat.reads(name)}
        ignored.extend(where for where in dict.fromkeys(where for where, _ in variables.values()) if where not in reads)
        default = self._options.thinking
        options: dict[str, Any] = {} if default is None else dict.fromkeys(THINKING, default)
        options |= {name: value for name, (_, value) in variables.items()} | body.chat_template_kwargs

        def prompt(kept: list[dict[str, Any]]) -> RenderedChat:
            return chat.render(
                kept,
                tools,
                parse_special_in_content=self._options.parse_special_in_content,
                options=options,
                opens_turn=opens_turn,
                continues=body.continues,
                answers_at_once=body.answers_at_once,
            )

        return prompt

    async def _rendered(self, context: RequestContext, body: ChatRequest, ignored: list[str]) -> RenderedChat:
        """The prompt of a chat, however long it is. ``ignored``: as in ``_prompt``. Raises ``ApiError``."""
        return await self._render(self._prompt(context, body, ignored), template_messages(body.messages, ignored))

    async def _render(
        self, prompt: Callable[[list[dict[str, Any]]], RenderedChat], messages: list[dict[str, Any]]
    ) -> RenderedChat:
        try:
            # A template is a program. In a thread, a slow one cannot stop the loop.
            return await run_in_threadpool(prompt, messages)
        except ChatTemplateError as error:
            raise ApiError(400, f"{error}.", param="messages") from None

    async def _count(self, context: RequestContext, rendered: RenderedChat, limit: int | None = None) -> int:
        """Tokens of a prompt. Counting may stop above ``limit``, with a result above it. None: no limit."""
        query = Tokenize(
            id=context.lease.engine.next_id(),
            text=rendered.text,
            add_special=rendered.add_special,
            parse_special=rendered.parse_special,
            literal_spans=rendered.literal_spans,
            limit=limit,
        )
        return len(await self._ask(context, query))

    async def _grammar(self, body: CompletionRequest | ChatRequest) -> Grammar | None:
        if body.own_grammar and not self._options.grammar:
            raise ApiError(400, "grammar is turned off on this server (serve.grammar).", param="grammar")
        return await run_in_threadpool(body.constraint)

    def _check_choices(self, n: int) -> None:
        if n > self._options.max_n:
            message = f"n times the number of prompts is {n}; this server allows at most {self._options.max_n}."
            raise ApiError(400, message, param="n", code="invalid_value")

    async def _generate(
        self,
        context: RequestContext,
        sequences: list[Generate],
        builder: ResponseBuilder,
        *,
        streams: bool,
        include_usage: bool = False,
        usage_in_chunks: bool = False,
        if_too_long: str = "",
    ) -> Response:
        """``if_too_long``: added to the error where the prompt does not fit the context."""
        record, receive = context.record, context.request.receive
        builder.fingerprint = context.fingerprint
        record.stream = streams
        request_stream = context.lease.engine.submit(sequences)
        expiry = expire_later(request_stream, context.ends_at)

        def end() -> None:
            request_stream.cancel()
            usage = builder.usage()
            record.prompt_tokens, record.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            record.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
            record.finish_reason = builder.finish_reason
            context.lease.release()
            if expiry is not None:
                expiry.cancel()

        try:
            if not streams:
                await unless_disconnected(receive, collect(request_stream, builder, record))
                context.lease.engine.counters.dropped_messages += builder.dropped_messages
                whole = _with_warnings(builder.body(), builder.warnings)
                if builder.verbose and isinstance(whole, Mapping):
                    whole = {**whole, "__verbose": {"prompt": sequences[0].prompt}}
                return JsonBody(whole, headers=_warned(builder))
            # So that a refused prompt is a 400 and not a stream; what is accepted gets its headers at once.
            await unless_disconnected(receive, request_stream.accepted(_ACCEPT_S))
            events, on_end = stream(request_stream, builder, record, include_usage, usage_in_chunks), end
            name = context.request.headers.get(HEADER) if builder.media_type == EventStream.media_type else None
            if name is not None and (kept := self._streams.begin(name, record.key, events, end)) is not None:
                events, on_end = kept.read(), kept.left
            context.streams = True
            context.lease.engine.counters.dropped_messages += builder.dropped_messages
            return EventStream(
                events,
                on_end=on_end,
                write_timeout_s=self._options.write_timeout_s,
                media_type=builder.media_type,
                headers=_warned(builder),
            )
        except RequestFailedError as error:
            raise request_failed(error, if_too_long=if_too_long) from None
        finally:
            if not context.streams:
                end()


def _warned(builder: ResponseBuilder) -> dict[str, str]:
    """The header that names what of a request is not enforced."""
    if not builder.warnings:
        return {}
    said = "; ".join(builder.warnings).encode("ascii", "backslashreplace").decode()
    return {"X-Slm-Warnings": "".join(char if char.isprintable() else " " for char in said)[:1000]}


def _with_warnings(
    body: Mapping[str, Any] | Sequence[Mapping[str, Any]], warnings: Sequence[str]
) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
    """A body that names what is not enforced; of a list of responses, each does."""
    if not warnings:
        return body
    if isinstance(body, Mapping):
        return {**body, "warnings": list(warnings)}
    return [{**each, "warnings": list(warnings)} for each in body]


def _thought_limit(tokens: int | None, reasoning: Reasoning, begins: Begins, *, may_call: bool) -> ThoughtLimit | None:
    if tokens is None or reasoning == "none":
        return None
    if begins:
        # Without its answer's channel it could go on in another message of reasoning. With tools the model chooses
        # between answer and call; where it reasons again instead, it has to answer, or to call where it must.
        answer, call = f"{END}{TURN}{FINAL}", f"{END}{TURN}{CHANNEL}commentary{CHANNELS.prefix}"
        return ThoughtLimit(
            tokens=tokens,
            opened=False,
            begin=ANALYSIS,
            ends=(END, START, CHANNEL),
            written=END if may_call else answer,
            again=(answer, call) if may_call else (answer,),
        )
    return ThoughtLimit(tokens=tokens, opened=reasoning == "open", begin=THINK, ends=(END_OF_THINK,))


def choices(
    context: RequestContext,
    base: Generate,
    prompts: Iterable[Prompt],
    body: CompletionRequest | ChatRequest,
) -> list[Generate]:
    """``body.n`` sequences for each prompt, the seed of each one higher. Each prompt draws its own seed, unless the
    request gives one."""
    out = []
    lease = context.lease
    adapters = lease.adapter_scales if body.lora is None else adapter_scales(body.lora, lease.info)
    for prompt in prompts:
        seed = secrets.randbits(32) if body.is_random(lease.info) else base.sampling.seed
        for i in range(body.n):
            out.append(
                replace(
                    base,
                    id=lease.engine.next_id(),
                    prompt=prompt,
                    adapters=adapters,
                    slot=body.id_slot,
                    n_keep=body.n_keep,
                    n_discard=body.n_discard,
                    sampling=replace(base.sampling, seed=seed + i),
                    deadline_s=context.seconds_left,
                )
            )
    return out
