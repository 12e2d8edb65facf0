"""Routes for embeddings and tokens: each is a query that the engine process answers at once.

Tested in tests/serve/api/openai/test_embeddings.py, tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slm.serve.api.core.fields import check_tokens
from slm.serve.api.core.token_requests import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from slm.serve.api.errors import request_failed
from slm.serve.api.openai.embeddings import embedding_body
from slm.serve.api.openai.response_shapes import Text, TokenizerInfo, TokenPiece, Tokens
from slm.serve.api.routes.base import ModelRoutes
from slm.serve.engine.protocol import Detokenize, Embed, Tokenize
from slm.serve.pool.request_stream import RequestFailedError


class TokenRoutes(ModelRoutes):
    """Handlers that ask the engine one query."""

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        body = await self._read(request, EmbeddingRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            lease = context.lease
            query = Embed(id=lease.engine.next_id(), inputs=body.inputs(lease.info))
            try:
                result = await self._ask(context, query)
            except RequestFailedError as error:
                raise request_failed(error, param="input") from None
            context.record.prompt_tokens, context.record.completion_tokens = result.n_tokens, 0
            # In a thread: encoding many numbers takes long.
            return await run_in_threadpool(
                lambda: JSONResponse(embedding_body(result, lease.name, body.encoding_format))
            )

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize"""
        body = await self._read(request, TokenizeRequest)
        text, add_special, parse_special = body.text()
        async with self._model(request, body.model, body.timeout_s) as context:
            lease = context.lease
            query = Tokenize(
                id=lease.engine.next_id(),
                text=text,
                add_special=add_special,
                parse_special=parse_special,
                with_pieces=body.with_pieces,
            )
            tokens = await self._ask(context, query)
            if body.with_pieces:
                tokens = [TokenPiece(id=token, piece=_piece(raw)) for token, raw in tokens]
            return JSONResponse(Tokens(tokens=tokens, count=len(tokens), max_model_len=lease.info.context))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize"""
        body = await self._read(request, DetokenizeRequest)
        async with self._model(request, body.model, body.timeout_s) as context:
            lease, tokens = context.lease, tuple(body.tokens)
            check_tokens(tokens, lease.info, "tokens")
            text = await self._ask(context, Detokenize(id=lease.engine.next_id(), tokens=tokens))
            return JSONResponse(Text(content=text, prompt=text))

    async def tokenizer_info(self, request: Request) -> Response:
        """GET /tokenizer_info[?model=MODEL]"""
        name = request.query_params.get("model") or None
        async with self._model(request, name, None) as context:
            info = context.lease.info
            return JSONResponse(
                TokenizerInfo(
                    model=context.lease.name,
                    bos_token=info.bos or None,
                    eos_token=info.eos or None,
                    add_bos_token=info.add_bos,
                    chat_template=info.chat_template,
                )
            )


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
