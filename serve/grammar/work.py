"""How much work a grammar may be, and the thread that does it.

The limits count steps of llguidance, not seconds: a grammar that passes on one machine passes on every other.

Tested in tests/serve/grammar/test_gbnf.py, tests/serve/engine/test_constraints.py.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from slm.serve.grammar.errors import GrammarError

LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=200_000,
    max_lexer_states=100_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""Compiling takes some hundredths of a second at most, a mask up to some hundredths too; most take 10 to 40 µs."""
_STACK_BYTES = 256 << 20
"""llguidance reads references, groups and rules recursively. This stack holds the deepest that fit into a request's
64 KiB; only what is used of it takes memory."""


def deep_thread(name: str, initializer: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """A thread with a stack for llguidance's deepest recursions, which would end the process on another thread."""
    pool = ThreadPoolExecutor(1, name, initializer=initializer)
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool.submit(int).result()
    finally:
        threading.stack_size(before)
    return pool


@functools.cache
def _checker() -> ThreadPoolExecutor:
    return deep_thread("check-grammar")


@functools.lru_cache(maxsize=256)
def problem(grammar: str) -> str:
    """Why llguidance cannot use a grammar; "" where it can. Checked grammars are remembered."""
    return _checker().submit(_problem, grammar).result()


def problem_of_schema(schema: Any) -> str:
    """The same for a JSON Schema."""
    return problem(json.dumps({"grammars": [{"json_schema": schema}]}))


def _problem(grammar: str) -> str:
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return first_line(messages[0]) if failed and messages else ""


def check(grammar: str) -> str:
    """The grammar. Raises ``GrammarError`` for one that cannot be used."""
    if said := problem(grammar):
        raise GrammarError(said)
    return grammar


def first_line(message: str) -> str:
    """What a message of llguidance says, without the state that it appends."""
    first, _, rest = message.strip().partition("\n")
    _, found, reason = rest.rpartition("error: ")
    said = f"{first} {reason.strip()}" if first.endswith(":") and found else first
    return said.partition("\n")[0].removesuffix(".")[:300]
