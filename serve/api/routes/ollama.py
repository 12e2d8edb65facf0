"""Ollama's API: /api/chat, /api/generate, /api/embed, and what its clients ask beside them.

Tested in tests/serve/api/ollama/test_ollama_routes.py.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slm.data.errors import UserError
from slm.serve.api.errors import ApiError, not_loaded, request_failed
from slm.serve.api.ollama.builder import OllamaBuilder, now
from slm.serve.api.ollama.models import VERSION, running, show, tag
from slm.serve.api.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from slm.serve.api.ollama.shapes import (
    OllamaEmbed,
    OllamaEmbedding,
    OllamaModels,
    OllamaProcesses,
    OllamaVersion,
)
from slm.serve.api.routes.base import RequestContext
from slm.serve.api.routes.generate import GenerationRoutes, choices
from slm.serve.engine.protocol import Embed, Embeddings, Generate, Tokenize
from slm.serve.pool.request_stream import RequestFailedError

_POST = ["POST"]


class OllamaRoutes(GenerationRoutes):
    """Handlers of Ollama's API. A name may end in ``:latest``."""

    def routes(self) -> list[Route]:
        """All routes of this API."""
        return [
            Route("/api/version", self.version),
            Route("/api/tags", self.tags),
            Route("/api/ps", self.processes),
            Route("/api/show", self.show, methods=_POST),
            Route("/api/chat", self.ollama_chat, methods=_POST),
            Route("/api/generate", self.generate, methods=_POST),
            Route("/api/embed", self.embed, methods=_POST),
            Route("/api/embeddings", self.embeddings, methods=_POST),
        ]

    def _model_name(self, given: str | None) -> str:
        if given is not None and self._pool.find(given) is None:
            given = given.removesuffix(":latest")
        return super()._model_name(given)

    async def ollama_chat(self, request: Request) -> Response:
        """POST /api/chat"""
        body = await self._read(request, OllamaChatRequest)
        if not body.messages:
            return await self._load_or_unload(request, body, {"message": {"role": "assistant", "content": ""}})
        async with self._model(request, body.model, body.timeout_s) as context:
            return await self._reply(context, body, "chat")

    async def generate(self, request: Request) -> Response:
        """POST /api/generate"""
        body = await self._read(request, OllamaGenerateRequest)
        if not body.prompt and not body.suffix:
            return await self._load_or_unload(request, body, {"response": ""})
        async with self._model(request, body.model, body.timeout_s) as context:
            if not body.raw and not body.suffix and context.lease.chat.own:
                return await self._reply(context, body, "generate")
            return await self._continue(context, body)

    async def _reply(
        self,
        context: RequestContext,
        body: OllamaChatRequest | OllamaGenerateRequest,
        kind: Literal["chat", "generate"],
    ) -> Response:
        asked = await self._chat(context, body.as_chat(), body.ignored, self._options.truncation == "auto")
        name = body.model or context.lease.name
        builder = OllamaBuilder(model=name, kind=kind, form=asked.form, with_logprobs=body.logprobs)
        builder.dropped_messages, builder.warnings = asked.n_dropped, asked.warnings
        return await self._generate(context, asked.sequences, builder, streams=body.stream)

    async def _continue(self, context: RequestContext, body: OllamaGenerateRequest) -> Response:
        """A text without the chat template."""
        completion = body.as_completion()
        prompt: str | tuple[int, ...] = str(completion.prompt)
        if completion.suffix:
            prompt = await self._filled(context, prompt, completion)
        grammar = await self._grammar(completion)
        base = Generate(
            id="",
            prompt="",
            parse_special=body.raw,
            max_tokens=body.limit(),
            stop=completion.stops(),
            sampling=completion.sampling(context.lease.info, None if grammar is None else grammar.text),
            use_prefix_cache=completion.cache_prompt,
            speculate=completion.may_speculate,
            top_logprobs=completion.logprobs,
        )
        name = body.model or context.lease.name
        builder = OllamaBuilder(model=name, kind="generate", with_logprobs=body.logprobs)
        builder.warnings = () if grammar is None else grammar.warnings
        sequences = choices(context, base, [prompt], completion)
        return await self._generate(context, sequences, builder, streams=body.stream)

    async def _load_or_unload(self, request: Request, body: OllamaRequest, text: dict[str, Any]) -> Response:
        name = self._model_name(body.model)
        if body.unloads:
            await self._pool.unload(name)
        else:
            async with self._model(request, name, body.timeout_s):
                pass
        reason = "unload" if body.unloads else "load"
        return JSONResponse(
            {"model": body.model or name, "created_at": now(), **text, "done": True, "done_reason": reason}
        )

    async def embed(self, request: Request) -> Response:
        """POST /api/embed"""
        body = await self._read(request, OllamaEmbedRequest)
        began = time.perf_counter()
        async with self._model(request, body.model, body.timeout_s) as context:
            if body.dimensions not in (None, context.lease.info.n_embd):
                message = f"dimensions: this model's embeddings have {context.lease.info.n_embd}."
                raise ApiError(400, message, param="dimensions", code="invalid_value")
            texts = body.inputs()
            if "" in texts:
                raise ApiError(400, "input: an empty text has no embedding.", param="input", code="invalid_value")
            result, n_cut = await self._embedded(context, texts, truncates=body.truncate)
            answer = OllamaEmbed(
                model=body.model or context.lease.name,
                embeddings=[_numbers(each) for each in result.vectors] if result is not None else [],
                total_duration=round(1e9 * (time.perf_counter() - began)),
                load_duration=0,
                prompt_eval_count=result.n_tokens if result is not None else 0,
            )
            if n_cut:
                answer["truncated_inputs"] = n_cut
            # In a thread: encoding many numbers takes long.
            return await run_in_threadpool(JSONResponse, answer)

    async def embeddings(self, request: Request) -> Response:
        """POST /api/embeddings"""
        body = await self._read(request, OllamaEmbeddingsRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            result, _ = await self._embedded(context, [body.prompt], truncates=True)
            assert result is not None
            return JSONResponse(OllamaEmbedding(embedding=_numbers(result.vectors[0])))

    async def _embedded(
        self, context: RequestContext, texts: list[str], *, truncates: bool
    ) -> tuple[Embeddings | None, int]:
        """Embeddings of texts (None of no texts), and how many were cut. Raises ``ApiError``."""
        if not texts:
            return None, 0
        engine, limit = context.lease.engine, context.lease.info.context
        inputs: list[str | tuple[int, ...]] = [*texts]
        n_cut = 0
        while True:
            try:
                result: Embeddings = await self._ask(context, Embed(id=engine.next_id(), inputs=tuple(inputs)))
            except RequestFailedError as error:
                if error.code != "context_length_exceeded" or not truncates or n_cut:
                    raise request_failed(error, param="input") from None
            else:
                context.record.prompt_tokens, context.record.completion_tokens = result.n_tokens, 0
                return result, n_cut
            for i, text in enumerate(texts):
                key = engine.next_id()
                query = Tokenize(id=key, text=text, add_special=True, parse_special=False, limit=limit)
                ids = await self._ask(context, query)
                if len(ids) > limit:
                    inputs[i], n_cut = tuple(ids[:limit]), n_cut + 1

    async def tags(self, request: Request) -> Response:
        """GET /api/tags"""
        models = await run_in_threadpool(lambda: [tag(each) for each in self._pool.models.values()])
        return JSONResponse(OllamaModels(models=models))

    async def processes(self, request: Request) -> Response:
        """GET /api/ps"""
        loaded = [each for each in self._pool.models.values() if each.loaded is not None]
        return JSONResponse(OllamaProcesses(models=[running(each, idle_s=self._pool.idle_s) for each in loaded]))

    async def show(self, request: Request) -> Response:
        """POST /api/show"""
        body = await self._read(request, OllamaShowRequest)
        served = self._pool.models[self._model_name(body.model or body.name)]
        try:
            return JSONResponse(await run_in_threadpool(show, served))
        except UserError as error:
            raise not_loaded(str(error)) from None

    async def version(self, request: Request) -> Response:
        """GET /api/version"""
        return JSONResponse(OllamaVersion(version=VERSION))


def _numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
