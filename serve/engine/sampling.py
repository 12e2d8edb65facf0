"""Sampling parameters to llama.cpp's sampler chain, and logits to log-probabilities."""

from __future__ import annotations

import math

import numpy as np

from serve.engine.messages import SamplingParams
from slm.llama.model import Model
from slm.llama.sampler import Sampler


def make_sampler(model: Model, params: SamplingParams, prompt: list[int], *, context: int) -> Sampler:
    """One sequence's sampler chain, in llama.cpp's order: grammar, logit bias, penalties, top-k, typical, top-p,
    min-p, temperature, draw.

    The frequency and presence penalties count the reply's tokens. The repeat penalty also counts the prompt's, within
    its window; where it is on, the three share that window. ``context``: most tokens of the sequence. Raises
    ``LlamaError`` for values out of range.
    """
    chain = Sampler(model)
    try:
        if params.grammar is not None:
            chain.grammar(params.grammar)
        bias = dict(params.logit_bias)
        if params.ignore_eos and model.eos >= 0:
            bias[model.eos] = -math.inf
        chain.logit_bias(bias)
        repeats = params.repeat_penalty != 1.0
        if repeats or params.frequency_penalty or params.presence_penalty:
            chain.penalties(
                last_n=params.repeat_last_n if repeats else context,
                repeat=params.repeat_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
            )
        if params.temperature == 0:
            chain.greedy()
        else:
            if params.top_k > 0:
                chain.top_k(params.top_k)
            if params.typical_p < 1:
                # Its sums are NaN where a token has no probability at all, so banned tokens are removed first.
                chain.top_k(model.n_vocab - sum(value == -math.inf for value in bias.values()))
                chain.typical(params.typical_p)
            if params.top_p < 1:
                chain.top_p(params.top_p)
            if params.min_p > 0:
                chain.min_p(params.min_p)
            chain.temperature(max(params.temperature, 1e-3))
            # llama.cpp reads the last 32-bit value as "any seed".
            chain.dist(params.seed % (2**32 - 1))
        if repeats:
            for token in prompt[-params.repeat_last_n :] if params.repeat_last_n > 0 else []:
                chain.accept(token)
    except BaseException:
        chain.close()
        raise
    return chain


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
