"""All routes of the API in one table; ``serve/api/openapi.py`` describes them.

Tested in tests/serve/api/openai/test_openapi.py, tests/serve/api/test_api_keys.py.
"""

from __future__ import annotations

from starlette.routing import Route

from slm.serve.api.core.kept_streams import KeptStreams
from slm.serve.api.openai.response_store import ResponseStore
from slm.serve.api.routes.generate import GenerationRoutes
from slm.serve.api.routes.native import NativeRoutes
from slm.serve.api.routes.ollama import OllamaRoutes
from slm.serve.api.routes.ranking import RankingRoutes
from slm.serve.api.routes.status import StatusRoutes
from slm.serve.api.routes.tokens import TokenRoutes
from slm.serve.config import ServerOptions
from slm.serve.pool.model_pool import Pool

_POST = ["POST"]


def api_routes(pool: Pool, options: ServerOptions, *, keyed: bool) -> list[Route]:
    """The routes over a pool of models. ``keyed``: whether the server asks for a key."""
    status = StatusRoutes(pool, options, keyed=keyed)
    kept = ResponseStore(), KeptStreams()
    generation, native = GenerationRoutes(pool, options, *kept), NativeRoutes(pool, options, *kept)
    tokens, ranking = TokenRoutes(pool, options), RankingRoutes(pool, options)
    routes = [
        Route("/health", status.health),
        Route("/metrics", status.metrics),
        Route("/openapi.json", status.openapi),
        Route("/tokenizer_info", tokens.tokenizer_info),
        Route("/props", native.props),
        Route("/slots", native.slots),
        Route("/slots/{slot}", native.change_slot, methods=_POST),
        Route("/lora-adapters", native.adapters, methods=["GET", "POST"]),
        Route("/v1/models", status.models),
        Route("/models/load", native.load, methods=_POST),
        Route("/models/unload", native.unload, methods=_POST),
        Route("/v1/models/{model:path}", status.model),
        Route("/v1/completions", generation.completions, methods=_POST),
        Route("/v1/chat/completions", generation.chat, methods=_POST),
        Route("/v1/chat/completions/input_tokens", native.count_chat, methods=_POST),
        Route("/v1/responses", generation.responses, methods=_POST),
        Route("/v1/responses/input_tokens", native.count_response, methods=_POST),
        Route("/v1/responses/{id}", generation.response, methods=["GET", "DELETE"]),
        Route("/v1/stream", generation.stream, methods=["GET", "DELETE"]),
        Route("/v1/messages", generation.messages, methods=_POST),
        Route("/v1/messages/count_tokens", native.count_message, methods=_POST),
        Route("/v1/embeddings", tokens.embeddings, methods=_POST),
        Route("/v1/rerank", ranking.rerank, methods=_POST),
        Route("/v1/score", ranking.score, methods=_POST),
        Route("/completion", native.completion, methods=_POST),
        Route("/infill", native.infill, methods=_POST),
        Route("/apply-template", native.apply_template, methods=_POST),
        Route("/tokenize", tokens.tokenize, methods=_POST),
        Route("/detokenize", tokens.detokenize, methods=_POST),
        *OllamaRoutes(pool, options, *kept).routes(),
    ]
    return [*routes, *(_renamed(each, path) for each in routes for path in other_paths(each.path))]


_OTHER_PATHS = {
    # llama-server's own form has this name, too.
    "/v1/completions": (),
    "/completion": ("/completions",),
    "/health": ("/v1/health",),
    "/v1/rerank": ("/rerank", "/reranking", "/v1/reranking"),
}


def other_paths(path: str) -> tuple[str, ...]:
    """More paths of a route. Most of those under /v1 are also there without it."""
    if path in _OTHER_PATHS:
        return _OTHER_PATHS[path]
    return (path.removeprefix("/v1"),) if path.startswith("/v1/") else ()


def _renamed(route: Route, path: str) -> Route:
    return Route(path, route.endpoint, methods=sorted(route.methods or ()))
