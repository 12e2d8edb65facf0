"""Whether rules or schemas that refer to each other have a text that comes to an end.

Tested in tests/serve/grammar/test_json_schema.py, tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from slm.serve.grammar.errors import GrammarError


def closure(uses: Mapping[str, Collection[str]], holds: Callable[[str, set[str]], bool]) -> set[str]:
    """The names for which ``holds(name, found)`` when ``found`` are all such names. ``uses``: the names on which each
    depends; a name is looked at again only when one of these was found."""
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for each in used:
            users[each].append(name)
    found: set[str] = set()
    todo = list(uses)
    while todo:
        name = todo.pop()
        if name not in found and holds(name, found):
            found.add(name)
            todo += users[name]
    return found


def check_ends(schema: dict[str, Any]) -> None:
    """Raises ``GrammarError`` for a schema, as ``enforceable`` makes them, all of whose values are endless."""
    definitions = schema.get("$defs", {})
    uses = {name: _references(each) for name, each in definitions.items()}
    if not _ends(schema, closure(uses, lambda name, found: _ends(definitions[name], found))):
        raise GrammarError("the schema allows no value that comes to an end: every value must hold another of its kind")


def _references(schema: Any) -> set[str]:
    """The definitions that a schema names anywhere."""
    found, todo = set(), [schema]
    while todo:
        each = todo.pop()
        if isinstance(each, list):
            todo += each
        elif isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                found.add(each["$ref"].rpartition("/")[2])
            # A list of values may hold anything.
            todo += [value for key, value in each.items() if key not in ("enum", "const")]
    return found


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
        first, rest = schema.get("prefixItems", []), schema.get("items", {})
        return all(_ends(each, ending) for each in first[:n]) and (n <= len(first) or _ends(rest, ending))
    return True
