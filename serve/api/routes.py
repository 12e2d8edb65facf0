"""What each route does. Bodies are validated here; everything that touches a model happens in its engine process."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from serve.api.access_log import Record, record_of
from serve.api.errors import ApiError, no_such_model, out_of_time, request_failed
from serve.api.http import EventStream, Json, read_body, unless_disconnected
from serve.api.metrics import CONTENT_TYPE, exposition
from serve.api.openai.completions import Answer, ChatAnswer, CompletionAnswer, embedding_body
from serve.api.openai.parsing import Body, parse
from serve.api.openai.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    Routed,
    TokenizeRequest,
    check_tokens,
)
from serve.api.openai.responses import ResponsesAnswer, ResponsesRequest
from serve.api.openai.streaming import collect, end_in_time, stream
from serve.chat_template import ChatTemplateError
from serve.config import ServerOptions
from serve.engine.messages import Detokenize, Embed, Generate, Query, Tokenize
from serve.pool.model_pool import Lease, Pool, model_card
from serve.pool.request_stream import RequestFailedError


@dataclasses.dataclass(kw_only=True)
class _Use:
    """A request with the model that it has for as long as it lasts."""

    request: Request
    record: Record
    lease: Lease
    ends_at: float | None
    """When its time is over, on the loop's clock."""
    streams: bool = False
    """Whether the lease is now the stream's to give back."""

    @property
    def seconds_left(self) -> float | None:
        return None if self.ends_at is None else self.ends_at - asyncio.get_running_loop().time()


class Routes:
    """The handlers, over a pool of models."""

    def __init__(self, pool: Pool, options: ServerOptions, *, keyed: bool) -> None:
        self._pool, self._options, self._keyed = pool, options, keyed

    def routes(self) -> list[Route]:
        """All of them; ``serve.api.openai.openapi`` describes them."""
        return [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.schema),
            Route("/tokenizer_info", self.tokenizer_info),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    # -- facts ---------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        pool = self._pool
        states = {name: each.state for name, each in pool.models.items()}
        body: dict[str, Any] = {"status": "ok"}
        headers = None
        # Models that nobody has asked for yet are no reason to send people elsewhere.
        ok = "ready" in states.values() or all(state != "restarting" for state in states.values())
        if not ok:
            body, headers = {"status": "starting"}, {"Retry-After": "2"}
        # The route is open to everybody; names of models are for those who have a key.
        if pool.several and (not self._keyed or record_of(request.scope).key):
            body["models"] = states
        return Json(body, status_code=200 if ok else 503, headers=headers)

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(exposition(self._pool), media_type=CONTENT_TYPE)

    async def schema(self, _: Request) -> Response:
        # Made when somebody asks: it takes longer than the rest of the routes together.
        return Response(await run_in_threadpool(lambda: self._schema), media_type="application/json")

    @cached_property
    def _schema(self) -> bytes:
        from serve.api.openai.openapi import document

        return Json(document(self._options, keyed=self._keyed)).body

    async def models(self, _: Request) -> Response:
        return Json({"object": "list", "data": [model_card(each) for each in self._pool.models.values()]})

    async def model(self, request: Request) -> Response:
        return Json(model_card(self._pool.models[self._named(request.path_params["model"])]))

    # -- generation ----------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        body = await self._body(request, CompletionRequest)
        async with self._using(request, body) as use:
            info = use.lease.info
            prompts = body.prompts(info)
            self._check_choices(len(prompts) * body.n)
            sampling = body.sampling(info, await self._constraint(body))
            base = Generate(
                id="",
                prompt="",
                max_tokens=body.max_tokens,
                stop=body.stops(),
                sampling=sampling,
                # Who names a seed wants the same text again, which rounding could spoil.
                use_prefix_cache=body.seed is None,
                speculate=body.may_speculate,
                top_logprobs=body.logprobs,
                echo=body.echo,
            )
            requests = [_choice(use, base, prompt, i) for prompt in prompts for i in range(body.n)]
            answer = CompletionAnswer(
                model=use.lease.name, n_choices=len(requests), n=body.n, with_logprobs=body.logprobs is not None
            )
            return await self._run(use, requests, answer, streams=body.stream, include_usage=body.include_usage)

    async def chat(self, request: Request) -> Response:
        body = await self._body(request, ChatRequest)
        self._check_choices(body.n)
        async with self._using(request, body) as use:
            requests = await self._chat_requests(use, body)
            answer = ChatAnswer(model=use.lease.name, n_choices=body.n, n=body.n, with_logprobs=body.logprobs)
            return await self._run(use, requests, answer, streams=body.stream, include_usage=body.include_usage)

    async def responses(self, request: Request) -> Response:
        body = await self._body(request, ResponsesRequest)
        async with self._using(request, body) as use:
            requests = await self._chat_requests(use, body.as_chat())
            answer = ResponsesAnswer(model=use.lease.name, request=body)
            return await self._run(use, requests, answer, streams=body.stream)

    async def _chat_requests(self, use: _Use, body: ChatRequest) -> list[Generate]:
        chat = use.lease.chat
        sampling = body.sampling(use.lease.info, await self._constraint(body))
        top_logprobs = body.n_top()
        messages = [
            {"role": "system" if each.role == "developer" else each.role, "content": each.text()}
            for each in body.messages
        ]
        try:
            # A template is a program: in a thread, it cannot stop the loop.
            text, add_special = await run_in_threadpool(chat.render, messages)
        except ChatTemplateError as error:
            raise ApiError(400, f"{error}.", param="messages") from None
        base = Generate(
            id="",
            prompt="",
            add_special=add_special,
            parse_special=chat.own,
            max_tokens=body.limit(),
            stop=(*body.stops(), *chat.stop),
            sampling=sampling,
            use_prefix_cache=body.seed is None,
            speculate=body.may_speculate,
            top_logprobs=top_logprobs,
        )
        return [_choice(use, base, text, i) for i in range(body.n)]

    async def _constraint(self, body: CompletionRequest | ChatRequest) -> str | None:
        if body.grammar is None and body.response_format is None:
            return None
        if body.grammar is not None and not self._options.grammar:
            raise ApiError(400, "grammar is turned off on this server (serve.grammar).", param="grammar")
        return await run_in_threadpool(body.constraint)

    async def _run(
        self, use: _Use, requests: list[Generate], answer: Answer, *, streams: bool, include_usage: bool = False
    ) -> Response:
        record, receive = use.record, use.request.receive
        record.submitted, record.stream = time.perf_counter(), streams
        request_stream = use.lease.engine.submit(requests)
        backstop = end_in_time(request_stream, use.ends_at)

        def end() -> None:
            request_stream.cancel()
            record.count(answer)
            use.lease.release()
            if backstop is not None:
                backstop.cancel()

        try:
            if not streams:
                await unless_disconnected(receive, collect(request_stream, answer, record))
                return Json(answer.body())
            # The status line waits for the first event, so that a refused prompt is a 400 and no stream.
            first = await unless_disconnected(receive, request_stream.next_events())
            use.streams = True
            return EventStream(
                stream(request_stream, answer, first, record, include_usage),
                on_end=end,
                write_timeout_s=self._options.write_timeout_s,
            )
        finally:
            if not use.streams:
                end()

    # -- embeddings and tokens -----------------------------------------------------------------------------

    async def embeddings(self, request: Request) -> Response:
        body = await self._body(request, EmbeddingRequest)
        async with self._using(request, body) as use:
            question = Embed(id=use.lease.engine.next_id(), inputs=body.inputs(use.lease.info))
            try:
                answer = await self._ask(use, question)
            except RequestFailedError as error:
                raise request_failed(error, param="input") from None
            use.record.prompt_tokens, use.record.completion_tokens = answer.n_tokens, 0
            # Many numbers: written in a thread.
            return await run_in_threadpool(lambda: Json(embedding_body(answer, use.lease.name, body.encoding_format)))

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request, TokenizeRequest)
        text, add_special, parse_special = body.text()
        async with self._using(request, body) as use:
            question = Tokenize(
                id=use.lease.engine.next_id(), text=text, add_special=add_special, parse_special=parse_special
            )
            tokens = await self._ask(use, question)
            return Json({"tokens": tokens, "count": len(tokens), "max_model_len": use.lease.info.context})

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request, DetokenizeRequest)
        async with self._using(request, body) as use:
            tokens = tuple(body.tokens)
            check_tokens(tokens, use.lease.info, "tokens")
            question = Detokenize(id=use.lease.engine.next_id(), tokens=tokens)
            text = await self._ask(use, question)
            return Json({"content": text, "prompt": text})

    async def tokenizer_info(self, request: Request) -> Response:
        name = request.query_params.get("model") or None
        async with self._using(request, Routed(model=name)) as use:
            info = use.lease.info
            return Json(
                {
                    "model": use.lease.name,
                    "bos_token": info.bos or None,
                    "eos_token": info.eos or None,
                    "add_bos_token": info.add_bos,
                    "chat_template": info.chat_template,
                }
            )

    async def _ask(self, use: _Use, question: Query) -> Any:
        try:
            async with asyncio.timeout_at(use.ends_at):
                return await unless_disconnected(use.request.receive, use.lease.engine.ask(question))
        except TimeoutError:
            raise out_of_time("The request's time is over, and there is no answer yet.") from None

    # -- models --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _using(self, request: Request, body: Any) -> AsyncIterator[_Use]:
        """The request's model, loaded if need be, and held until the end (of the stream, where one is begun)."""
        record, name = record_of(request.scope), self._named(body.model)
        record.model = name
        seconds = self._seconds(body.timeout_s)
        ends_at = asyncio.get_running_loop().time() + seconds if seconds else None
        lease = self._pool.ready(name)
        if lease is None:
            try:
                async with asyncio.timeout_at(ends_at):
                    lease = await unless_disconnected(request.receive, self._pool.lease(name))
            except TimeoutError:
                raise out_of_time(f"{name} could not be loaded in the request's time.") from None
        use = _Use(request=request, record=record, lease=lease, ends_at=ends_at)
        try:
            yield use
        finally:
            if not use.streams:
                lease.release()

    def _seconds(self, given: float | None) -> float | None:
        most = self._options.request_timeout_s
        if given is None:
            return most or None
        if most and given > most:
            message = f"timeout_s is {given:g}; this server gives a request at most {most:g} seconds."
            raise ApiError(400, message, param="timeout_s", code="invalid_value")
        return given

    async def _body(self, request: Request, cls: type[Body]) -> Body:
        options = self._options
        raw = await read_body(request, max_bytes=options.max_body_bytes, timeout_s=options.body_timeout_s)
        return parse(cls, raw)

    def _named(self, model: str | None) -> str:
        if model is None or model == "default":
            return self._pool.default.name
        if model not in self._pool.models:
            raise no_such_model(model, list(self._pool.models))
        return model

    def _check_choices(self, n: int) -> None:
        if n > self._options.max_n:
            message = f"n times the number of prompts is {n}; this server makes at most {self._options.max_n}."
            raise ApiError(400, message, param="n", code="invalid_value")


def _choice(use: _Use, base: Generate, prompt: str | tuple[int, ...], i: int) -> Generate:
    sampling = dataclasses.replace(base.sampling, seed=base.sampling.seed + i)
    left = use.seconds_left
    return dataclasses.replace(
        base,
        id=use.lease.engine.next_id(),
        prompt=prompt,
        sampling=sampling,
        deadline_s=None if left is None else max(left, 0.0),
    )
