"""Routes that compare texts: /rerank and /v1/score.

Tested in tests/serve/api/native/test_native_routes.py.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slm.serve.api.errors import request_failed
from slm.serve.api.native.requests import RerankRequest, ScoreRequest
from slm.serve.api.native.shapes import Rank, RankResult, RankUsage, ScoreResult, Scores
from slm.serve.api.routes.base import ModelRoutes, RequestContext
from slm.serve.engine.protocol import Embed, RankForm, Tokenize
from slm.serve.pool.request_stream import RequestFailedError


class RankingRoutes(ModelRoutes):
    """A score is what a reranking model says of a pair; of any other model, the cosine of the texts' embeddings."""

    async def rerank(self, request: Request) -> Response:
        """POST /rerank"""
        body = await self._read(request, RerankRequest)
        passages = body.passages()
        async with self._model(request, body.model, body.timeout_s) as context:
            pairs = [(body.query, each) for each in passages]
            scores, usage = await self._scores(context, pairs, "documents")
            best = sorted(range(len(passages)), key=lambda i: -scores[i])[: body.top_n]
            if body.texts is not None:
                rows: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in best]
                if body.return_text:
                    rows = [{**row, "text": passages[row["index"]]} for row in rows]
                return JSONResponse(rows)
            results = [RankResult(index=i, relevance_score=scores[i]) for i in best]
            if body.return_documents:
                for result in results:
                    result["document"] = {"text": passages[result["index"]]}
            return JSONResponse(Rank(object="list", model=context.lease.name, results=results, usage=usage))

    async def score(self, request: Request) -> Response:
        """POST /v1/score"""
        body = await self._read(request, ScoreRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            scores, usage = await self._scores(context, body.pairs(), "text_2")
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

    async def _scores(
        self, context: RequestContext, pairs: list[tuple[str, str]], param: str
    ) -> tuple[list[float], RankUsage]:
        """The score of each pair, and the tokens that they took. Raises ``ApiError``."""
        form = context.lease.info.ranking
        if form is not None:
            vectors, usage = await self._embedded(context, await self._pairs(context, form, pairs), param)
            return [float(each[0]) for each in vectors], usage
        # A text that is in many pairs is computed once.
        numbers = {text: i for i, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        vectors, usage = await self._embedded(context, list(numbers), param)
        return [float(vectors[numbers[one]] @ vectors[numbers[other]]) for one, other in pairs], usage

    async def _pairs(
        self, context: RequestContext, form: RankForm, pairs: list[tuple[str, str]]
    ) -> list[str | tuple[int, ...]]:
        """Each pair as the reranking model takes it."""

        async def ids(text: str, *, parse_special: bool = False) -> list[int]:
            key = context.lease.engine.next_id()
            query = Tokenize(id=key, text=text, add_special=False, parse_special=parse_special)
            found: list[int] = await self._ask(context, query)
            return found

        if form.template:
            parts = re.split(r"(\{query\}|\{document\})", form.template)
            given = [{"{query}": one, "{document}": other} for one, other in pairs]
            texts = ["".join(of.get(part, part) for part in parts) for of in given]
            return [tuple(await ids(text, parse_special=True)) for text in texts]
        known = {text: await ids(text) for text in dict.fromkeys(text for pair in pairs for text in pair)}
        return [(*form.before, *known[one], *form.between, *known[other], *form.behind) for one, other in pairs]

    async def _embedded(
        self, context: RequestContext, inputs: Sequence[str | tuple[int, ...]], param: str
    ) -> tuple[np.ndarray, RankUsage]:
        """What the model makes of each input, float32 [n, n_embd or n_scores], and the tokens that they took. Raises
        ``ApiError``."""
        try:
            result = await self._ask(context, Embed(id=context.lease.engine.next_id(), inputs=tuple(inputs)))
        except RequestFailedError as error:
            raise request_failed(error, param=param) from None
        context.record.prompt_tokens, context.record.completion_tokens = result.n_tokens, 0
        usage = RankUsage(prompt_tokens=result.n_tokens, total_tokens=result.n_tokens)
        return np.stack([np.frombuffer(each, "<f4") for each in result.vectors]), usage
