"""Routes that compare texts by their embeddings: /rerank and /v1/score.

Tested in tests/serve/api/native/test_native_routes.py.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slm.serve.api.errors import request_failed
from slm.serve.api.native.requests import RerankRequest, ScoreRequest
from slm.serve.api.native.shapes import Rank, RankResult, RankUsage, ScoreResult, Scores
from slm.serve.api.routes.base import ModelRoutes, RequestContext
from slm.serve.engine.messages import Embed
from slm.serve.pool.request_stream import RequestFailedError


class RankingRoutes(ModelRoutes):
    """Scores are cosines of the texts' embeddings, from -1 to 1."""

    async def rerank(self, request: Request) -> Response:
        """POST /rerank"""
        body = await self._read(request, RerankRequest)
        passages = body.passages()
        async with self._model(request, body.model, body.timeout_s) as context:
            vectors, usage = await self._embedded(context, [body.query, *passages], "documents")
            scores = vectors[1:] @ vectors[0]
            best = sorted(range(len(passages)), key=lambda i: -scores[i])[: body.top_n]
            if body.texts is not None:
                rows: list[dict[str, Any]] = [{"index": i, "score": float(scores[i])} for i in best]
                if body.return_text:
                    rows = [{**row, "text": passages[row["index"]]} for row in rows]
                return JSONResponse(rows)
            results = [RankResult(index=i, relevance_score=float(scores[i])) for i in best]
            if body.return_documents:
                for result in results:
                    result["document"] = {"text": passages[result["index"]]}
            return JSONResponse(Rank(object="list", model=context.lease.name, results=results, usage=usage))

    async def score(self, request: Request) -> Response:
        """POST /v1/score"""
        body = await self._read(request, ScoreRequest)
        pairs = body.pairs()
        async with self._model(request, body.model, body.timeout_s) as context:
            # A text that is in many pairs is computed once.
            numbers = {text: i for i, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
            vectors, usage = await self._embedded(context, list(numbers), "text_2")
            scores = [float(vectors[numbers[one]] @ vectors[numbers[other]]) for one, other in pairs]
            return JSONResponse(
                Scores(
                    id=f"score-{secrets.token_hex(12)}",
                    object="list",
                    created=int(time.time()),
                    model=context.lease.name,
                    data=[ScoreResult(index=i, object="score", score=score) for i, score in enumerate(scores)],
                    usage=usage,
                )
            )

    async def _embedded(self, context: RequestContext, texts: list[str], param: str) -> tuple[np.ndarray, RankUsage]:
        """Embeddings of length 1, float32 [n, n_embd], and the tokens that they took. Raises ``ApiError``."""
        try:
            result = await self._ask(context, Embed(id=context.lease.engine.next_id(), inputs=tuple(texts)))
        except RequestFailedError as error:
            raise request_failed(error, param=param) from None
        context.record.prompt_tokens, context.record.completion_tokens = result.n_tokens, 0
        usage = RankUsage(prompt_tokens=result.n_tokens, total_tokens=result.n_tokens)
        return np.stack([np.frombuffer(each, "<f4") for each in result.vectors]), usage
