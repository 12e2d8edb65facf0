"""Sampler chains in llama.cpp's order from a few settings, as the server makes them."""

import math
from collections.abc import Mapping
from typing import Any

from slm.llama.model import Model
from slm.llama.sampler import Sampler


def make_chain(
    model: Model,
    *,
    bias: Mapping[int, float] | None = None,
    repeat: float = 1.0,
    top_k: int = 0,
    typical_p: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
    seed: int = 0,
) -> Sampler:
    """A chain that ends in ``greedy`` for temperature 0, else in a draw with ``seed``."""
    chain = Sampler(model).logit_bias(bias or {})
    if repeat != 1:
        chain.penalties(last_n=64, repeat=repeat, frequency=0.0, presence=0.0)
    if temperature == 0:
        return chain.greedy()
    if top_k > 0:
        chain.top_k(top_k)
    if typical_p < 1:
        # Its sums are no numbers where a token has no probability at all: the banned ones go first.
        chain.top_k(model.n_vocab - sum(value == -math.inf for value in (bias or {}).values()))
        chain.typical(typical_p)
    if top_p < 1:
        chain.top_p(top_p)
    if min_p > 0:
        chain.min_p(min_p)
    return chain.temperature(temperature).dist(seed)


def label(settings: dict[str, Any]) -> str:
    """A short name of a chain's settings for pytest."""
    return ",".join(f"{k}={len(v) if isinstance(v, Mapping) else v}" for k, v in settings.items()) or "draw"
