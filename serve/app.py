"""The HTTP routes. Bodies are validated here; everything that touches the model happens in the engine process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response

from serve.chat import ChatPrompt, ChatTemplateError
from serve.config import ServerOptions
from serve.errors import ApiError, engine_down, error_body, queue_full, request_failed
from serve.http import DONE, EventStream, Json, RequireKey, read_body, sse, unless_disconnected
from serve.messages import Delta, Detokenize, Embed, Generate, ModelInfo, Prompted, Tokenize
from serve.metrics import CONTENT_TYPE, exposition
from serve.page import add_page, is_page
from serve.protocol import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
    check_tokens,
    parse,
)
from serve.responses import Answer, ChatAnswer, CompletionAnswer, embedding_body
from serve.stateless import ResponsesAnswer, ResponsesRequest
from serve.supervisor import EngineDownError, QueueFullError, RequestFailedError, Supervisor, Ticket

_BODIES: list[type[BaseModel]] = [
    CompletionRequest,
    ChatRequest,
    ResponsesRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
]


def make_app(supervisor: Supervisor, options: ServerOptions, *, name: str, keys: list[str]) -> FastAPI:
    """The application over a started supervisor, which it closes when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await supervisor.close()

    app = FastAPI(title="slm", lifespan=lifespan, openapi_url="/openapi.json")
    if keys:
        app.add_middleware(RequireKey, keys=keys, is_open=lambda path: path == "/health" or is_page(path))
    if options.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=options.cors_origins, allow_methods=["*"], allow_headers=["*"])
    _answer_errors(app)
    _Routes(app, supervisor, options, name)
    add_page(app)
    app.openapi = lambda: _openapi(app)
    return app


class _Routes:
    def __init__(self, app: FastAPI, supervisor: Supervisor, options: ServerOptions, name: str) -> None:
        assert supervisor.info is not None
        self._supervisor, self._options, self._name = supervisor, options, name
        self._info: ModelInfo = supervisor.info
        self._chat = ChatPrompt(self._info)
        self._created = int(time.time())
        get, post = app.get, app.post
        get("/health", summary="Whether the engine is ready")(self.health)
        get("/metrics", summary="Figures for Prometheus")(self.metrics)
        get("/v1/models", summary="The model served")(self.models)
        get("/v1/models/{model:path}", summary="One model")(self.model)
        post("/v1/completions", **_takes(CompletionRequest))(self.completions)
        post("/v1/chat/completions", **_takes(ChatRequest))(self.chat)
        post("/v1/responses", **_takes(ResponsesRequest))(self.responses)
        post("/v1/embeddings", **_takes(EmbeddingRequest))(self.embeddings)
        post("/tokenize", **_takes(TokenizeRequest))(self.tokenize)
        post("/detokenize", **_takes(DetokenizeRequest))(self.detokenize)

    # -- facts ---------------------------------------------------------------------------------------------

    async def health(self) -> Response:
        if self._supervisor.ready:
            return Json({"status": "ok"})
        return Json({"status": "starting"}, status_code=503, headers={"Retry-After": "2"})

    async def metrics(self) -> Response:
        return PlainTextResponse(exposition(self._supervisor), media_type=CONTENT_TYPE)

    async def models(self) -> Response:
        return Json({"object": "list", "data": [self._model_card()]})

    async def model(self, model: str) -> Response:
        self._check_model(model)
        return Json(self._model_card())

    def _model_card(self) -> dict[str, Any]:
        info = self._info
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "slm",
            "meta": {
                "architecture": info.architecture,
                "n_params": info.n_params,
                "size_bytes": info.size_bytes,
                "n_vocab": info.n_vocab,
                "n_embd": info.n_embd,
                "n_ctx_train": info.n_ctx_train,
                "context": info.context,
                "chat_template": self._chat.own,
            },
        }

    # -- generation ----------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        body = await self._body(request, CompletionRequest)
        prompts = body.prompts(self._info)
        self._check_choices(len(prompts) * body.n)
        sampling = body.sampling(self._info, await self._constraint(body))
        base = Generate(
            id="",
            prompt="",
            max_tokens=body.max_tokens,
            stop=body.stops(),
            sampling=sampling,
            # Who names a seed wants the same text again, which rounding could spoil.
            from_cache=body.seed is None,
            top_logprobs=body.logprobs,
            echo=body.echo,
        )
        requests = [self._choice(base, prompt, i) for prompt in prompts for i in range(body.n)]
        answer = CompletionAnswer(
            model=self._name, n_choices=len(requests), n=body.n, with_logprobs=body.logprobs is not None
        )
        return await self._run(request, requests, answer, stream=body.stream, include_usage=body.include_usage)

    async def chat(self, request: Request) -> Response:
        body = await self._body(request, ChatRequest)
        self._check_choices(body.n)
        requests = await self._chat_requests(body)
        answer = ChatAnswer(model=self._name, n_choices=body.n, n=body.n, with_logprobs=body.logprobs)
        return await self._run(request, requests, answer, stream=body.stream, include_usage=body.include_usage)

    async def responses(self, request: Request) -> Response:
        body = await self._body(request, ResponsesRequest)
        requests = await self._chat_requests(body.as_chat())
        return await self._run(request, requests, ResponsesAnswer(model=self._name, request=body), stream=body.stream)

    async def _chat_requests(self, body: ChatRequest) -> list[Generate]:
        sampling = body.sampling(self._info, await self._constraint(body))
        top_logprobs = body.n_top()
        messages = [
            {"role": "system" if each.role == "developer" else each.role, "content": each.text()}
            for each in body.messages
        ]
        try:
            # A template is a program: in a thread, it cannot stop the loop.
            text, add_special = await run_in_threadpool(self._chat.render, messages)
        except ChatTemplateError as error:
            raise ApiError(400, f"{error}.", param="messages") from None
        base = Generate(
            id="",
            prompt="",
            add_special=add_special,
            parse_special=self._chat.own,
            max_tokens=body.limit(),
            stop=(*body.stops(), *self._chat.stop),
            sampling=sampling,
            from_cache=body.seed is None,
            top_logprobs=top_logprobs,
        )
        return [self._choice(base, text, i) for i in range(body.n)]

    async def _constraint(self, body: CompletionRequest | ChatRequest) -> str | None:
        if body.grammar is None and body.response_format is None:
            return None
        if body.grammar is not None and not self._options.grammar:
            raise ApiError(400, "grammar is turned off on this server (serve.grammar).", param="grammar")
        return await run_in_threadpool(body.constraint)

    def _choice(self, base: Generate, prompt: str | tuple[int, ...], i: int) -> Generate:
        sampling = dataclasses.replace(base.sampling, seed=base.sampling.seed + i)
        return dataclasses.replace(base, id=self._supervisor.next_id(), prompt=prompt, sampling=sampling)

    async def _run(
        self,
        request: Request,
        requests: list[Generate],
        answer: Answer,
        *,
        stream: bool,
        include_usage: bool = False,
    ) -> Response:
        ticket = self._supervisor.submit(requests)
        handed_over = False
        try:
            if not stream:
                await unless_disconnected(request.receive, _collect(ticket, answer))
                return Json(answer.body())
            # The status line waits for the first event, so that a refused prompt is a 400 and no stream.
            first = await unless_disconnected(request.receive, ticket.next_events())
            handed_over = True
            return EventStream(
                _stream(ticket, answer, first, include_usage),
                on_end=ticket.cancel,
                write_timeout_s=self._options.write_timeout_s,
            )
        finally:
            if not handed_over:
                ticket.cancel()

    # -- embeddings ----------------------------------------------------------------------------------------

    async def embeddings(self, request: Request) -> Response:
        body = await self._body(request, EmbeddingRequest)
        question = Embed(id=self._supervisor.next_id(), inputs=body.inputs(self._info))
        try:
            answer = await unless_disconnected(request.receive, self._supervisor.ask(question))
        except RequestFailedError as error:
            raise request_failed(error, param="input") from None
        # Many numbers: written in a thread.
        return await run_in_threadpool(lambda: Json(embedding_body(answer, self._name, body.encoding_format)))

    # -- tokens --------------------------------------------------------------------------------------------

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request, TokenizeRequest)
        question = Tokenize(
            id=self._supervisor.next_id(),
            text=body.content,
            add_special=body.add_special,
            parse_special=body.parse_special,
        )
        return Json({"tokens": await self._supervisor.ask(question)})

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request, DetokenizeRequest)
        tokens = tuple(body.tokens)
        check_tokens(tokens, self._info, "tokens")
        question = Detokenize(id=self._supervisor.next_id(), tokens=tokens)
        return Json({"content": await self._supervisor.ask(question)})

    # -- checks --------------------------------------------------------------------------------------------

    async def _body(self, request: Request, cls: type[Body]) -> Body:
        options = self._options
        raw = await read_body(request, max_bytes=options.max_body_bytes, timeout_s=options.body_timeout_s)
        body = parse(cls, raw)
        if body.model is not None:
            self._check_model(body.model)
        return body

    def _check_model(self, model: str) -> None:
        if model not in (self._name, "default"):
            raise ApiError(
                404,
                f"There is no model {model[:100]!r} here; this server has {self._name!r}.",
                param="model",
                code="model_not_found",
            )

    def _check_choices(self, n: int) -> None:
        if n > self._options.max_n:
            message = f"n times the number of prompts is {n}; this server makes at most {self._options.max_n}."
            raise ApiError(400, message, param="n", code="invalid_value")


async def _collect(ticket: Ticket, answer: Answer) -> None:
    while not ticket.done:
        for index, event in await ticket.next_events():
            answer.take(index, event)


async def _stream(
    ticket: Ticket,
    answer: Answer,
    events: list[tuple[int, Prompted | Delta]],
    include_usage: bool,
) -> AsyncIterator[bytes]:
    """Bodies of server-sent events; one per engine step, so that a step is one write."""

    def encode(chunk: dict[str, Any]) -> bytes:
        return sse(chunk, chunk["type"] if answer.named_events else None)

    while True:
        parts = []
        for index, event in events:
            answer.take(index, event)
            parts.extend(encode(chunk) for chunk in answer.chunks(index, event))
        if parts:
            yield b"".join(parts)
        if ticket.done:
            break
        try:
            events = await ticket.next_events()
        except RequestFailedError as error:
            yield encode(answer.failure_chunk(error_body(error)))
            return  # and no [DONE]: that means success
    ending = (encode(answer.usage_chunk()) if include_usage else b"") + (DONE if answer.ends_in_done else b"")
    if ending:
        yield ending


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def _(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestFailedError)
    async def _(_: Request, error: RequestFailedError) -> Response:
        return request_failed(error).response()

    @app.exception_handler(QueueFullError)
    async def _(_: Request, error: QueueFullError) -> Response:
        return queue_full(str(error)).response()

    @app.exception_handler(EngineDownError)
    async def _(_: Request, error: EngineDownError) -> Response:
        return engine_down(str(error)).response()

    @app.exception_handler(ClientDisconnect)
    async def _(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path[:200]}: {error.detail}."
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(Exception)
    async def _(_: Request, error: Exception) -> Response:
        # Starlette re-raises it afterwards, so that the traceback is in the log.
        return ApiError(500, "The server made a mistake; its log has more.", type="server_error").response()


def _takes(cls: type[BaseModel]) -> dict[str, Any]:
    """Bodies are read by hand (limits, OpenAI's error shape), so the schema must be told what they are."""
    schema = {"$ref": f"#/components/schemas/{cls.__name__}"}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"summary": (cls.__doc__ or "").strip(), "openapi_extra": {"requestBody": body}}


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        _, models = models_json_schema(
            [(cls, "validation") for cls in _BODIES], ref_template="#/components/schemas/{model}"
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(models["$defs"])
        app.openapi_schema = schema
    return app.openapi_schema
