"""What the servers are asked: prompts, and the requests of each workload."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.data.tales.story import story
from slm.serve.bench.config import BenchOptions
from slm.serve.bench.limit import Rates

_PEOPLE = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "is_member": {"type": "boolean"},
            "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        },
        "required": ["name", "age", "is_member", "hobbies"],
        "additionalProperties": False,
    },
}
"""A list that no reply ends, so that all replies have the same number of tokens."""
_SPARE = 16
"""Tokens of the context that stay free: words have different numbers of tokens."""


class Prompts:
    """Texts that begin differently, so that no cache helps: cut from a file, or made up."""

    def __init__(self, options: BenchOptions) -> None:
        self._rng = random.Random(options.seed)
        self._n_words = options.prompt_words
        if options.text is None:
            stories = (story(options.seed, i) for i in range(200 + options.prefix_tokens // 50))
            words = " ".join(stories).split()
        else:
            try:
                words = Path(options.text).read_text("utf-8", "replace").split()
            except OSError as error:
                raise UserError(f"bench.text={options.text} cannot be read ({error.strerror})") from None
        if len(words) < 2 * max(options.prompt_words, options.prefix_tokens):
            of_what = "the embedded stories have" if options.text is None else f"bench.text={options.text} has"
            raise UserError(f"{of_what} {len(words)} words: too few to cut prompts from; give a longer bench.text")
        self._words = words

    def take(self, n_words: int | None = None) -> str:
        """The next prompt: ``n_words`` words in a row, ``bench.prompt_words`` by default."""
        n_words = n_words or self._n_words
        start = self._rng.randrange(len(self._words) - n_words)
        return " ".join(self._words[start : start + n_words])


def mean_tokens(model: Path, texts: list[str]) -> float:
    """Tokens of a text by the model's tokenizer, on average."""
    from slm.llama.model import Model

    with Model(model, vocab_only=True) as vocab:
        return sum(len(vocab.tokenize(each, add_special=True, parse_special=False)) for each in texts) / len(texts)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement of a server."""

    key: str
    """``plain``, ``open``, ``prefix``, ``json``, ``repeat`` or ``busy``."""
    n: float
    """Clients, or for ``open`` the arrival rate as a part of the limit."""
    bodies: list[list[dict[str, Any]]]
    """The requests of each client, in order."""
    arrivals: list[float] | None = None
    """Seconds from the start to each request of an open loop."""
    n_busy: int = 0
    """Other processes that each keep a core busy meanwhile."""


def cases(
    options: BenchOptions, prompts: Prompts, limit: list[Rates], prompt_tokens: float, *, context: int
) -> list[Case]:
    """The measurements of each server. ``limit`` and the mean ``prompt_tokens`` set the rates of the open loop. A
    shared prefix is shortened to what the model's ``context`` leaves for it."""
    body = _RequestMaker(options, prompts)
    found: list[Case] = []

    def add(key: str, make: Callable[[], dict[str, Any]]) -> None:
        for n in options.extra_clients:
            bodies = [[make() for _ in range(_rounds(options, n))] for _ in range(n)]
            found.append(Case(key=key, n=n, bodies=bodies))

    for key, clients, n_busy in (("plain", options.clients, 0), ("busy", options.busy, 1)):
        for n in clients:
            rounds = _rounds(options, n)
            if n_busy:
                rate = min(limit, key=lambda each: abs(each.batch - n)).workload(prompt_tokens, options.new_tokens)
                rounds = max(rounds, ceil(options.busy_s * rate / options.new_tokens / n))
            bodies = [[body() for _ in range(rounds)] for _ in range(n)]
            found.append(Case(key=key, n=n, bodies=bodies, n_busy=n_busy))
    best = max(each.workload(prompt_tokens, options.new_tokens) for each in limit) / options.new_tokens
    rng = random.Random(options.seed)
    for part in options.open:
        n = max(options.requests, round(part * best * options.open_s))
        arrivals = list(accumulate(rng.expovariate(part * best) for _ in range(n)))
        found.append(Case(key="open", n=part, bodies=[[body() for _ in range(n)]], arrivals=arrivals))
    if "prefix" in options.extra:
        # A word is a token or more. What follows the prefix has 20 words.
        tokens_per_word = prompt_tokens / options.prompt_words
        room = max(1, context - options.new_tokens - round(30 * tokens_per_word) - _SPARE)
        if room < options.prefix_tokens:
            print(f"the shared prefix has {room:,} tokens: a context of {context:,} leaves no more", file=sys.stderr)
        prefix = prompts.take(max(1, round(min(options.prefix_tokens, room) / tokens_per_word)))
        add("prefix", lambda: body(f"{prefix}\n\n{prompts.take(20)}"))
    if "json" in options.extra:
        add("json", lambda: body(json_schema=_PEOPLE, ignore_eos=False))
    if "repeat" in options.extra:
        add("repeat", lambda: body(" ".join([prompts.take(12)] * 8), temperature=0.0))
    return found


def _rounds(options: BenchOptions, n: int) -> int:
    """Requests of each of ``n`` clients."""
    return max(options.rounds, ceil(options.requests / n))


class _RequestMaker:
    """Makes the body of a request: a prompt (a fresh one by default) and the sampling that every server gets."""

    def __init__(self, options: BenchOptions, prompts: Prompts) -> None:
        self._options, self._prompts = options, prompts

    def __call__(self, prompt: str | None = None, **changes: Any) -> dict[str, Any]:
        options = self._options
        return {
            "prompt": self._prompts.take() if prompt is None else prompt,
            "max_tokens": options.new_tokens,
            "temperature": options.temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "min_p": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | changes
