"""All routes of the API in one table; ``serve/api/openapi.py`` describes them.

Tested in tests/serve/api/openai/test_openapi.py, tests/serve/api/test_api_keys.py.
"""

from __future__ import annotations

from starlette.routing import Route

from slm.serve.api.routes.generation import GenerationRoutes
from slm.serve.api.routes.status import StatusRoutes
from slm.serve.api.routes.tokens import TokenRoutes
from slm.serve.config import ServerOptions
from slm.serve.pool.model_pool import Pool


def api_routes(pool: Pool, options: ServerOptions, *, keyed: bool) -> list[Route]:
    """The routes over a pool of models. ``keyed``: whether the server asks for a key."""
    status = StatusRoutes(pool, options, keyed=keyed)
    generation = GenerationRoutes(pool, options)
    tokens = TokenRoutes(pool, options)
    return [
        Route("/health", status.health),
        Route("/metrics", status.metrics),
        Route("/openapi.json", status.openapi),
        Route("/tokenizer_info", tokens.tokenizer_info),
        Route("/v1/models", status.models),
        Route("/v1/models/{model:path}", status.model),
        Route("/v1/completions", generation.completions, methods=["POST"]),
        Route("/v1/chat/completions", generation.chat, methods=["POST"]),
        Route("/v1/responses", generation.responses, methods=["POST"]),
        Route("/v1/messages", generation.messages, methods=["POST"]),
        Route("/v1/embeddings", tokens.embeddings, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
    ]
