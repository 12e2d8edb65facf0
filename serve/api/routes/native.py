"""llama-server's own routes: completions, filling in, templates, token counts, slots and properties.

Tested in tests/serve/api/native/test_completion.py, tests/serve/api/native/test_native_routes.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slm.serve.api.anthropic.requests import CountTokensRequest, chat_request
from slm.serve.api.anthropic.response_shapes import AnthropicTokens
from slm.serve.api.core.fields import Prompt
from slm.serve.api.core.replies import encode_event
from slm.serve.api.core.requests import ChatRequest, adapter_scales
from slm.serve.api.core.streaming import EventStream
from slm.serve.api.errors import ApiError, no_such_model, not_loaded
from slm.serve.api.native.completion import NativeBuilder, generation_settings
from slm.serve.api.native.requests import (
    AdapterChange,
    InfillRequest,
    ModelChange,
    NativeCompletionRequest,
    Parts,
    SlotChange,
)
from slm.serve.api.native.shapes import (
    InputTokens,
    LoadedAdapter,
    Loading,
    Props,
    RenderedPrompt,
    Slot,
    SlotChanged,
    SlotTimings,
    Success,
)
from slm.serve.api.openai.responses import ResponsesRequest
from slm.serve.api.routes.base import RequestContext
from slm.serve.api.routes.generate import GenerationRoutes, JsonBody, choices
from slm.serve.engine.protocol import Generate, ListSlots, SlotAction, SlotMoved
from slm.serve.infill import NO_FIM
from slm.serve.pool.model_pool import ModelNotLoadedError
from slm.serve.pool.request_stream import QueueFullError

_ACTIONS: dict[str, Literal["save", "restore", "erase"]] = {"save": "save", "restore": "restore", "erase": "erase"}


class NativeRoutes(GenerationRoutes):
    """Handlers of what llama-server offers beside OpenAI's routes."""

    async def completion(self, request: Request) -> Response:
        """POST /completion"""
        body = await self._read(request, NativeCompletionRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            parts = body.parts(context.lease.info)
            self._check_choices(len(parts) * body.n)
            prompts = [each[0] if len(each) == 1 and isinstance(each[0], str) else each for each in parts]
            texts = [await self._shown(context, each) for each in parts]
            return await self._complete(context, body, prompts, texts)

    async def infill(self, request: Request) -> Response:
        """POST /infill"""
        body = await self._read(request, InfillRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            self._check_choices(body.n)
            if context.lease.info.fim is None:
                raise ApiError(501, NO_FIM, code="unsupported")
            others = [(each.filename, each.text) for each in body.input_extra]
            prompt = await self._infill(
                context, body.input_prefix + body.prompt, body.input_suffix, body.limit(), others
            )
            text = await self._shown(context, prompt.tokens)
            return await self._complete(context, body, [prompt.tokens], [text], n_dropped=prompt.n_dropped)

    async def _complete(
        self,
        context: RequestContext,
        body: NativeCompletionRequest,
        prompts: Sequence[Prompt],
        texts: list[str],
        n_dropped: int = 0,
    ) -> Response:
        grammar = await self._grammar(body)
        sampling = body.sampling(context.lease.info, None if grammar is None else grammar.text)
        base = Generate(
            id="",
            prompt="",
            parse_special=True,
            max_tokens=body.limit(),
            stop=body.stops(),
            sampling=sampling,
            use_prefix_cache=body.cache_prompt,
            speculate=body.may_speculate,
            top_logprobs=body.n_probs or None,
            return_tokens=body.return_tokens or body.stream,
            return_progress=body.wants_progress,
        )
        builder = NativeBuilder(
            model=context.lease.name,
            prompts=texts,
            n=body.n,
            with_logprobs=body.n_probs > 0,
            settings=generation_settings(
                sampling,
                max_tokens=body.limit(),
                endings=context.lease.info.endings,
                stop=list(body.stops()),
                stream=body.stream,
                n_probs=body.n_probs,
                grammar=body.grammar or sampling.grammar or "",
            ),
            return_tokens=body.return_tokens,
            fields=body.response_fields,
            n_dropped=n_dropped,
        )
        builder.warnings = () if grammar is None else grammar.warnings
        builder.timings_per_token = body.timings_per_token
        return await self._generate(context, choices(context, base, prompts, body), builder, streams=body.stream)

    async def _shown(self, context: RequestContext, parts: Parts) -> str:
        """A prompt as ``prompt`` of a response shows it."""
        if len(parts) == 1 and isinstance(parts[0], str):
            info = context.lease.info
            return info.bos + parts[0] if info.add_bos and not parts[0].startswith(info.bos) else parts[0]
        shown = ""
        ids: list[int] = []
        for part in (*parts, ""):
            if isinstance(part, int):
                ids.append(part)
                continue
            if ids:
                shown += await self._text(context, tuple(ids))
                ids = []
            shown += part
        return shown

    async def apply_template(self, request: Request) -> Response:
        """POST /apply-template"""
        body = await self._read(request, ChatRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            return JsonBody(RenderedPrompt(prompt=(await self._rendered(context, body, body.ignored)).text))

    async def count_chat(self, request: Request) -> Response:
        """POST /v1/chat/completions/input_tokens"""
        body = await self._read(request, ChatRequest)
        return await self._counted(request, body, body)

    async def count_response(self, request: Request) -> Response:
        """POST /v1/responses/input_tokens"""
        body = await self._read(request, ResponsesRequest)
        return await self._counted(request, body, body.as_chat(self._before(request, body)))

    async def _counted(self, request: Request, body: Any, chat: ChatRequest) -> Response:
        async with self._model(request, body.model, body.timeout_s) as context:
            n = await self._count(context, await self._rendered(context, chat, body.ignored))
            return JSONResponse(InputTokens(object="response.input_tokens", input_tokens=n))

    async def count_message(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens"""
        body = await self._read(request, CountTokensRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            n = await self._count(context, await self._rendered(context, chat_request(body), body.ignored))
            return JSONResponse(AnthropicTokens(input_tokens=n))

    async def props(self, request: Request) -> Response:
        """GET /props[?model=MODEL]: of a model that is not loaded, what its file says."""
        served = self._pool.models[self._model_name(request.query_params.get("model") or None)]
        info = served.loaded.info if served.loaded is not None else None
        body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}]})
        params = {} if info is None else generation_settings(body.sampling(info), max_tokens=None)
        if info is None or info.sampling.seed is None:
            params["seed"] = -1
        return JSONResponse(
            Props(
                default_generation_settings={
                    "n_ctx": info.context if info is not None else served.facts().context(served.config.context),
                    "params": params,
                },
                total_slots=served.config.slots,
                model_alias=served.name,
                model_path=str(served.path),
                chat_template=(info.chat_template or "") if info is not None else "",
                modalities={"vision": False, "audio": False},
                bos_token=info.bos if info is not None else "",
                eos_token=info.eos if info is not None else "",
                build_info=f"slm-{metadata.version('slm')}",
                is_sleeping=info is None,
            )
        )

    async def slots(self, request: Request) -> Response:
        """GET /slots[?model=MODEL][&fail_on_no_slot=1]"""
        name = self._model_name(request.query_params.get("model") or None)
        if self._pool.models[name].loaded is None:
            return JSONResponse([])
        async with self._model(request, name, None) as context:
            engine = context.lease.engine
            states = await self._ask(context, ListSlots(id=engine.next_id()))
            if request.query_params.get("fail_on_no_slot") and all(each.processing for each in states):
                raise ApiError(503, "Every slot is in use.", type="server_error", code="no_slot")
            return JSONResponse(
                [
                    Slot(
                        id=i,
                        n_ctx=context.lease.info.context,
                        is_processing=each.processing,
                        n_prompt_tokens=each.n_prompt,
                        n_decoded=each.n_generated,
                        n_cached=each.n_held,
                    )
                    for i, each in enumerate(states)
                ]
            )

    async def adapters(self, request: Request) -> Response:
        """GET and POST /lora-adapters[?model=MODEL]"""
        body = await self._read(request, AdapterChange) if request.method == "POST" else None
        name = request.query_params.get("model") if body is None else body.model
        async with self._model(request, name or None, None) as context:
            info, served = context.lease.info, self._pool.models[context.lease.name]
            if body is not None:
                served.adapter_scales = adapter_scales(body.adapters, info)
                return JSONResponse(Success(success=True))
            scales = served.adapter_scales or tuple(scale for _, scale in info.adapters)
            paths = [path for path, _ in info.adapters]
            return JSONResponse([LoadedAdapter(id=i, path=paths[i], scale=each) for i, each in enumerate(scales)])

    async def change_slot(self, request: Request) -> Response:
        """POST /slots/SLOT?action=save|restore|erase"""
        body, action = await self._read(request, SlotChange), _ACTIONS.get(request.query_params.get("action", ""))
        if action is None:
            message = "action in the address must be save, restore or erase."
            raise ApiError(400, message, param="action", code="invalid_value")
        number = request.path_params["slot"]
        if not number.isascii() or not number.isdigit() or len(number) > 4:
            raise ApiError(400, f"{number[:20]!r} is no slot's number.", param="slot", code="invalid_value")
        path = ""
        if action != "erase":
            if self._options.slot_save_path is None:
                message = "This server saves no slots: it was started without serve.slot_save_path=FOLDER."
                raise ApiError(501, message, code="unsupported")
            if not body.filename:
                raise ApiError(400, "filename is missing.", param="filename", code="missing")
            path = str(Path(self._options.slot_save_path).expanduser().absolute() / body.filename)
        async with self._model(request, body.model, body.timeout_s) as context:
            query = SlotAction(id=context.lease.engine.next_id(), slot=int(number), action=action, path=path)
            return JSONResponse(_slot_changed(query, body.filename, await self._ask(context, query)))

    async def load(self, request: Request) -> Response:
        """POST /models/load"""
        body = await self._read(request, ModelChange)
        if body.stream:
            events = self._loading(body.model)
            return EventStream(events, on_end=lambda: None, write_timeout_s=self._options.write_timeout_s)
        await self._pulled(request, body.model, None)
        async with self._model(request, self._named(body.model), None):
            return JSONResponse(Success(success=True))

    async def _loading(self, model: str) -> AsyncIterator[bytes]:
        """The events of a model that is downloaded, where it has to be, and loaded."""
        try:
            source = self._pool.source
            if source is not None and source.may(model):
                async for completed, total in source.progress_of(model):
                    yield encode_event(Loading(status="downloading", completed=completed, total=total))
            name = self._named(model)
            yield encode_event(Loading(status="loading"))
            (await self._pool.lease(name)).release()
            yield encode_event(Success(success=True))
        except ApiError as error:
            yield encode_event(error.body)
        except (ModelNotLoadedError, QueueFullError) as error:
            yield encode_event(not_loaded(str(error)).body)

    async def unload(self, request: Request) -> Response:
        """POST /models/unload"""
        name = self._named((await self._read(request, ModelChange)).model)
        if not await self._pool.unload(name):
            raise ApiError(400, f"{name} is not loaded.", param="model", code="model_not_loaded")
        return JSONResponse(Success(success=True))

    def _named(self, model: str) -> str:
        """The model's name. Unlike in a request for text, no other model stands in for an unknown one."""
        found = self._pool.default if model == "default" else self._pool.find(model)
        if found is None:
            raise no_such_model(model, list(self._pool.models))
        return found.name


def _slot_changed(asked: SlotAction, filename: str, did: SlotMoved) -> SlotChanged:
    n, ms = did.n_tokens, 1000 * did.seconds
    match asked.action:
        case "erase":
            return SlotChanged(id_slot=asked.slot, n_erased=n)
        case "save":
            times = SlotTimings(save_ms=ms)
            return SlotChanged(id_slot=asked.slot, filename=filename, n_saved=n, n_written=did.n_bytes, timings=times)
    times = SlotTimings(restore_ms=ms)
    return SlotChanged(id_slot=asked.slot, filename=filename, n_restored=n, n_read=did.n_bytes, timings=times)
