"""The Jinja environment of chat templates: sandboxed, with the filters and globals that published templates use.

A template is a program from a file that anybody may have made. Nothing promises that a template ends soon.

Tested in tests/data/chat/test_template.py, tests/serve/test_chat_template.py.
"""

from __future__ import annotations

import json
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_SIZE = 1_000_000
"""Largest result of ``*`` or ``**`` in a template, in characters, items or bits."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses large products and powers: Python computes each in one step, and nothing could interrupt it."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The value of ``left operator right``."""
        if operator == "**":
            # Bits of the base times the exponent.
            size = left.bit_length() * right if isinstance(left, int) and isinstance(right, int) else 0
        else:
            sizes = [len(each) if hasattr(each, "__len__") else each for each in (left, right)]
            numbers = all(isinstance(each, int | float) for each in (left, right))
            size = 0 if numbers else sizes[0] * sizes[1]
        if size > _MAX_SIZE:
            raise SecurityError(f"the result of {operator} would be too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``, with which a template marks what the assistant says: the text
    inside is the text. Which tokens are learned is found without it (``slm.data.chat.tokens``)."""

    tags = {"generation"}  # noqa: RUF012 (the library's own declaration is of an instance)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """A fresh environment; white space around blocks is removed as transformers and llama.cpp do."""
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], autoescape=False)
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, and no model was trained on that. The arguments are transformers'."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else min(indent, 32),
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
