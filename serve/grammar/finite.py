"""Whether rules or schemas that refer to each other have a text that comes to an end, and what of a schema has none.

Tested in tests/serve/grammar/test_json_schema.py, tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.work import problem_of_schema

_MAPS = ("properties", "patternProperties", "$defs")
_LISTS = ("anyOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


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


def possible(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, as ``enforceable`` makes them, without references to definitions that no value fits: llguidance refuses
    a schema with such a reference, also where a value needs none of them. Raises ``GrammarError`` where no value fits
    the whole, or all are endless."""
    endless = _definitions(schema).keys() - _ending(schema)
    schema = _without(schema, endless)
    if "nsatisfiable" in problem_of_schema(schema):
        while dead := {name for name, each in _definitions(schema).items() if _impossible(each, _definitions(schema))}:
            schema = _without(schema, dead)
            schema = _without(schema, _definitions(schema).keys() - _ending(schema))
    if not isinstance(schema, dict) or not _ends(schema, _ending(schema)):
        raise GrammarError("the schema allows no value that comes to an end: every value must hold another of its kind")
    return schema


def _ending(schema: Any) -> set[str]:
    """The definitions of which some value ends."""
    definitions = _definitions(schema)
    uses = {name: _references(each) for name, each in definitions.items()}
    return closure(uses, lambda name, found: _ends(definitions[name], found))


def _definitions(schema: Any) -> dict[str, Any]:
    return schema.get("$defs", {}) if isinstance(schema, dict) else {}


def _impossible(definition: Any, definitions: Mapping[str, Any]) -> bool:
    """Whether no value fits, also where each of the definitions to which it refers holds no more than its type."""

    def looser(schema: dict[str, Any]) -> Any:
        target = definitions.get(_target(schema["$ref"])) if "$ref" in schema else None
        if target is None:
            return schema
        return {key: value for key, value in target.items() if key in ("type", "enum", "const")} if target else target

    return "nsatisfiable" in problem_of_schema(_changed(definition, looser))


def _without(schema: Any, dead: Collection[str]) -> Any:
    """Without some definitions; False, which no value fits, stands for each reference to one."""
    if not dead or not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in _definitions(schema).items() if name not in dead}
    whole = {**schema, "$defs": kept} if kept else {key: each for key, each in schema.items() if key != "$defs"}
    return _changed(whole, lambda each: False if "$ref" in each and _target(each["$ref"]) in dead else each)


def loosened(schema: dict[str, Any], said: str) -> tuple[dict[str, Any], list[str]]:
    """A schema of which llguidance ``said`` that it cannot combine one that holds itself with others: without these
    others. With the places where they were, as paths in the schema; none where it said something else."""
    named = re.search(r"circular references.*/(\w+)", said)
    definitions = _definitions(schema)
    if named is None or named[1] not in definitions:
        return schema, []
    uses = {name: _references(each) for name, each in definitions.items()}
    holding = closure(uses, lambda name, found: name == named[1] or not found.isdisjoint(uses[name]))
    places: list[str] = []

    def alone(each: dict[str, Any], place: str) -> dict[str, Any]:
        if "$ref" in each and len(each) > 1 and _target(each["$ref"]) in holding:
            places.append(place)
            return {"$ref": each["$ref"]}
        if "anyOf" in each and len(each) > 1 and not holding.isdisjoint(_references({"anyOf": each["anyOf"]})):
            places.append(place)
            return {"anyOf": each["anyOf"]}
        several = each.get("allOf", [])
        kept = [part for part in several if holding.isdisjoint(_references(part))]
        if len(kept) == len(several):
            return each
        places.append(place)
        rest = {key: value for key, value in each.items() if key != "allOf"}
        return {**rest, "allOf": kept} if kept else rest

    def visit(each: Any, place: str) -> Any:
        if not isinstance(each, dict):
            return each
        made = alone(each, place) if "$defs" not in each or place else each
        return _inside(made, visit, place)

    return visit(schema, ""), places


def _inside(schema: dict[str, Any], visit: Callable[[Any, str], Any], place: str) -> dict[str, Any]:
    """A schema in which each direct part is what ``visit`` makes of it and of its path."""
    made = dict(schema)
    for key, value in schema.items():
        if key in _MAPS:
            made[key] = {name: visit(each, f"{place}/{key}/{name}") for name, each in value.items()}
        elif key in _LISTS:
            made[key] = [visit(each, f"{place}/{key}/{i}") for i, each in enumerate(value)]
        elif key in _SINGLE:
            made[key] = visit(value, f"{place}/{key}")
    return made


def _changed(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A schema in which ``change`` was made to each schema within, from the outside."""
    if not isinstance(schema, dict):
        return schema
    made = change(schema)
    if not isinstance(made, dict):
        return made
    return _inside(made, lambda each, _: _changed(each, change), "")


def _target(reference: str) -> str:
    return reference.rpartition("/")[2]


def _inner(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas within."""
    for key, value in schema.items():
        if key in _MAPS:
            yield from value.values()
        elif key in _LISTS:
            yield from value
        elif key in _SINGLE:
            yield value


def _references(schema: Any) -> set[str]:
    """The definitions that a schema names anywhere."""
    found, todo = set(), [schema]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            if "$ref" in each:
                found.add(_target(each["$ref"]))
            todo += _inner(each)
    return found


def _ends(schema: Any, ending: set[str]) -> bool:
    """Whether some value ends, when those of the definitions ``ending`` do."""
    if not isinstance(schema, dict):
        return bool(schema)
    if "$ref" in schema and _target(schema["$ref"]) not in ending:
        return False
    if "anyOf" in schema and not any(_ends(each, ending) for each in schema["anyOf"]):
        return False
    if not all(_ends(each, ending) for each in schema.get("allOf", ())):
        return False
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        # Which patterns a name fits is not known here.
        others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", {})]
        return all(
            any(_ends(each, ending) for each in ([properties[name]] if name in properties else others))
            for name in schema.get("required", ())
        )
    if schema.get("type") == "array" and (n := schema.get("minItems", 0)):
        first, rest = schema.get("prefixItems", []), schema.get("items", {})
        return all(_ends(each, ending) for each in first[:n]) and (n <= len(first) or _ends(rest, ending))
    return True
