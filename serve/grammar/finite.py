"""Whether a schema has a value that comes to an end: one that must hold itself has none.

Tested in tests/serve/grammar/test_json_schema.py.
"""

from __future__ import annotations

from typing import Any

from slm.serve.grammar.errors import GrammarError


def check_ends(schema: dict[str, Any]) -> None:
    """Raises ``GrammarError`` for a schema, as ``enforceable`` makes them, all of whose values are endless."""
    definitions = schema.get("$defs", {})
    ending: set[str] = set()
    while found := {name for name, each in definitions.items() if name not in ending and _ends(each, ending)}:
        ending |= found
    if not _ends(schema, ending):
        raise GrammarError("the schema allows no value that comes to an end: every value must hold another of its kind")


def _ends(schema: Any, ending: set[str]) -> bool:
    """Whether some value ends, when those of the definitions ``ending`` do."""
    if not isinstance(schema, dict):
        return bool(schema)
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in ending:
        return False
    if "anyOf" in schema and not any(_ends(each, ending) for each in schema["anyOf"]):
        return False
    if not all(_ends(each, ending) for each in schema.get("allOf", ())):
        return False
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        more = schema.get("additionalProperties", {})
        return all(_ends(properties.get(name, more), ending) for name in schema.get("required", ()))
    if schema.get("type") == "array" and (n := schema.get("minItems", 0)):
        first = schema.get("prefixItems", [])
        return all(_ends(each, ending) for each in first[:n]) and (n <= len(first) or _ends(schema.get("items", {}), ending))
    return True
