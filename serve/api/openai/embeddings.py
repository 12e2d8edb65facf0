"""/v1/embeddings: response bodies."""

from __future__ import annotations

import base64
import struct
from typing import Literal

from slm.serve.api.openai.response_shapes import Embedding, Embeddings, EmbeddingUsage
from slm.serve.engine import protocol


def embedding_body(result: protocol.Embeddings, model: str, encoding: Literal["float", "base64"]) -> Embeddings:
    """The body. ``base64`` encodes little-endian float32, as OpenAI does."""
    data = []
    for index, vector in enumerate(result.vectors):
        numbers: list[float] | str
        if encoding == "base64":
            numbers = base64.b64encode(vector).decode()
        else:
            numbers = list(struct.unpack(f"<{len(vector) // 4}f", vector))
        data.append(Embedding(object="embedding", index=index, embedding=numbers))
    usage = EmbeddingUsage(prompt_tokens=result.n_tokens, total_tokens=result.n_tokens)
    return Embeddings(object="list", data=data, model=model, usage=usage)
