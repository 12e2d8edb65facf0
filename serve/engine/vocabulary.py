"""The text of tokens, and log-probabilities with that text.

Tested in tests/serve/engine/test_engine.py, tests/serve/engine/test_sampling.py.
"""

from __future__ import annotations

import numpy as np

from slm.llama.model import Model
from slm.serve.engine.protocol import TokenLogprob


class Vocabulary:
    """The bytes of a model's tokens; each is read from the model once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pieces: dict[int, bytes] = {}

    def piece(self, token: int) -> bytes:
        """What the token adds to a text; nothing for a control token. Raises ``LlamaError`` for a bad token id."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._model.token_to_piece(token)
        return piece

    def label(self, token: int) -> bytes:
        """As ``piece``, but a control token shows its name."""
        return self.piece(token) or self._model.token_to_piece(token, special=True)

    def logprob(self, token: int, logprobs: np.ndarray, n_top: int, *, offset: int) -> TokenLogprob:
        """The entry of a token that was picked from a row of log-probabilities, float [n_vocab], with the ``n_top``
        most likely ones; ``offset``: characters of text before it."""
        top = tuple((each, self.label(each), float(logprobs[each])) for each in most_likely(logprobs, n_top))
        return TokenLogprob(
            token=token, piece=self.label(token), logprob=float(logprobs[token]), top=top, offset=offset
        )

    def first_logprob(self, token: int) -> TokenLogprob:
        """The entry of a prompt's first token, which nothing precedes."""
        return TokenLogprob(token=token, piece=self.label(token), logprob=None, top=(), offset=0)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Logits, float32 [..., n_vocab], to natural log-probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def most_likely(logprobs: np.ndarray, n: int) -> list[int]:
    """Ids of the ``n`` highest entries of one row, float [n_vocab], highest first (equal ones by id)."""
    if n <= 0:
        return []
    n = min(n, len(logprobs))
    ids = np.argpartition(-logprobs, n - 1)[:n]
    return sorted((int(i) for i in ids), key=lambda i: (-logprobs[i], i))
