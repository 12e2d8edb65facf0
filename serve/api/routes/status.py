"""Routes that compute nothing: health, metrics, the models, and the OpenAPI document.

Tested in tests/serve/test_several_models.py, tests/serve/test_server.py, tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

import importlib
import time
from functools import cached_property

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slm.serve.api.access_log import record_of
from slm.serve.api.errors import no_such_model
from slm.serve.api.openai.models import model_card
from slm.serve.api.openai.response_shapes import Health, Models
from slm.serve.api.routes.base import ModelRoutes
from slm.serve.config import ServerOptions
from slm.serve.pool.model_pool import Pool

_STARTED = int(time.time())


class StatusRoutes(ModelRoutes):
    """``keyed``: whether the server asks for a key."""

    def __init__(self, pool: Pool, options: ServerOptions, *, keyed: bool) -> None:
        super().__init__(pool, options)
        self._keyed = keyed

    async def health(self, request: Request) -> Response:
        """GET /health: 503 while no model is ready."""
        pool = self._pool
        states = {name: each.state for name, each in pool.models.items()}
        # A model that nobody has asked for yet is not loaded; the server is well all the same.
        down = {"restarting", "hung"} & set(states.values())
        ok = "ready" in states.values() or not down
        body = Health(status="ok" if ok else "hung" if "hung" in down else "starting")
        n_damaged = sum(each.file_check.damage is not None for each in pool.models.values())
        if n_damaged:
            body["warning"] = f"{n_damaged} model file(s) differ from what was exported; the server's log names them"
        # The route is open to everybody; the models' names are only for callers with a key.
        if pool.several and (not self._keyed or record_of(request.scope).key):
            body["models"] = dict(states)
        return JSONResponse(body, status_code=200 if ok else 503, headers=None if ok else {"Retry-After": "2"})

    async def metrics(self, _: Request) -> Response:
        """GET /metrics, in Prometheus' text format."""
        # Imported by the first request, in a thread: prometheus_client takes a tenth of a second.
        module = await run_in_threadpool(importlib.import_module, "slm.serve.api.metrics")
        headers = {"Process-Start-Time-Unix": str(_STARTED)}  # as llama-server's
        return Response(module.exposition(self._pool), media_type=module.CONTENT_TYPE, headers=headers)

    async def openapi(self, _: Request) -> Response:
        """GET /openapi.json"""
        # Made by the first request, in a thread: it takes longer than importing all the routes.
        return Response(await run_in_threadpool(lambda: self._document), media_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        from slm.serve.api.openapi import document

        return bytes(JSONResponse(document(self._options, keyed=self._keyed)).body)

    async def models(self, _: Request) -> Response:
        """GET /v1/models"""
        # In a thread: files that have changed are read again.
        cards = await run_in_threadpool(lambda: [model_card(each) for each in self._pool.models.values()])
        return JSONResponse(Models(object="list", data=cards))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/MODEL"""
        name = request.path_params["model"]
        found = self._pool.default if name == "default" else self._pool.find(name)
        if found is None:
            raise no_such_model(name, list(self._pool.models))
        return JSONResponse(await run_in_threadpool(model_card, found))
