"""Whether a value can fit two schemas of a ``oneOf``.

Tested in tests/serve/grammar/test_json_schema.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

from slm.serve.grammar.errors import GrammarError

_MAX_COMPARISONS = 50_000
"""Pairs of values or schemas that are compared at most. So many take a fraction of a second; above it, schemas count
as overlapping."""
_MAX_DEPTH = 32
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_COMBINING = {"anyOf", "oneOf", "allOf", "$ref"}


class Overlap:
    """``find``: the schema that a reference leads to; raises ``GrammarError`` where it leads nowhere."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find
        self._n_compared = 0

    def pair(self, schemas: list[Any]) -> tuple[int, int] | None:
        """Two schemas of which it is not certain that no value fits both; None where there are none."""
        for (i, a), (j, b) in combinations(enumerate(schemas), 2):
            if not self._disjoint(a, b):
                return i, j
        return None

    def _disjoint(self, a: Any, b: Any, depth: int = 0) -> bool:
        if a is False or b is False:
            return True
        a, b = self._resolved(a), self._resolved(b)
        if a is None or b is None or depth > _MAX_DEPTH:
            return False
        values_a, values_b = _values(a), _values(b)
        self._n_compared += len(values_a or "x") * len(values_b or "x")
        if self._n_compared > _MAX_COMPARISONS:
            return False
        if values_a is not None and values_b is not None:
            return not any(_same(x, y) for x in values_a for y in values_b)
        kinds_a, kinds_b = _possible(a), _possible(b)
        if not any(_overlap(x, y) for x in kinds_a for y in kinds_b):
            return True
        if kinds_a != {"object"} or kinds_b != {"object"}:
            return False
        in_both = _names(a) & _names(b)
        return any(self._disjoint(a["properties"][name], b["properties"][name], depth + 1) for name in sorted(in_both))

    def _resolved(self, schema: Any) -> dict[str, Any] | None:
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict):
                return None
            if not isinstance(schema.get("$ref"), str):
                return schema
            try:
                schema = self._find(schema["$ref"])
            except GrammarError:
                return None
        return None


def _names(schema: dict[str, Any]) -> set[str]:
    """The properties that every object of a schema has, and that it describes."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return set()
    return properties.keys() & {name for name in required if isinstance(name, str)}


def _possible(schema: dict[str, Any]) -> set[str]:
    """The types that a value of a schema may have."""
    values = _values(schema)
    if values is not None:
        return {kind for kind in _TYPES for each in values if _is_a(each, kind)}
    given = schema.get("type")
    if given is None and not schema.keys().isdisjoint({"properties"}) and schema.keys().isdisjoint(_COMBINING):
        return {"object"}  # as it is generated
    kinds = [given] if isinstance(given, str) else given
    if schema.get("nullable") is True or not isinstance(kinds, list):
        return set(_TYPES)
    return {kind for kind in kinds if isinstance(kind, str)}


def _values(schema: dict[str, Any]) -> list[Any] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _is_a(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "number": number,
        "integer": number and (isinstance(value, int) or value.is_integer()),
        "boolean": isinstance(value, bool),
        "null": value is None,
    }[kind]


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _overlap(a: str, b: str) -> bool:
    return a == b or {a, b} == {"number", "integer"}
