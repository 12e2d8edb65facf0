"""JSON Schema to GBNF, for the part of JSON Schema that a grammar can express.

Whatever the grammar allows is valid under the schema. The reverse is not promised: properties come in the order
in which the schema names them, properties that it does not name are left out, numbers have at most 16 digits
before and 15 after the point, and there is little white space. A keyword that would constrain and is not supported is
refused by name. It is never ignored, as other converters do (see docs/lab/decisions.md).
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from slm.serve.grammar import numbers
from slm.serve.grammar.gbnf import check
from slm.serve.grammar.patterns import format_rule, pattern_rule
from slm.serve.grammar.tree import MAX_REPEATS, GrammarError, quote

MAX_DEPTH = 32
"""Levels of schemas within schemas; references are not counted."""
MAX_SCHEMA_BYTES = 64 * 1024
MAX_COMPARISONS = 50_000
"""Pairs of values or schemas that are compared for ``oneOf`` at most. So many take a fraction of a second."""

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {*numbers.KEYWORDS},
}
_COMBINING = {"enum", "const", "anyOf", "oneOf", "allOf", "$ref"}
_SUPPORTED = {"type"}.union(_COMBINING, *_OF_TYPE.values())
# These describe a schema and constrain nothing.
_ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator",
    "$comment", "$schema", "$id", "$anchor", "$defs", "definitions", "contentMediaType", "contentEncoding",
}  # fmt: skip

BASE_RULES = r"""
ws ::= (" " | "\n" [ \t]{0,16})?
value ::= object | array | string | number | boolean | null
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" char* "\""
char ::= [^"\\\x01-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" escape)
escape ::= [0-9abcefABCEF] hex{3} | [dD] [0-7] hex{2}
hex ::= [0-9a-fA-F]
integer ::= "-"? whole
whole ::= "0" | [1-9] [0-9]{0,15}
number ::= integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
"""
"""The rules that all schemas share."""


def json_object_grammar() -> str:
    """Any JSON object."""
    return check("root ::= object ws\n" + BASE_RULES)


def schema_grammar(schema: Any) -> str:
    """The grammar of a JSON Schema. Raises ``GrammarError``, which names what is not supported, and where."""
    converter = _Converter(_checked(schema))
    root = converter.convert()
    try:
        return check(f"root ::= {root} ws\n{BASE_RULES}{converter.text()}")
    except GrammarError as error:
        raise GrammarError(f"the schema cannot be turned into a grammar: {error}") from None


def object_rules(schema: Any, *, prefix: str) -> tuple[str, str]:
    """The rule of a schema of objects, and all rules that it needs besides ``BASE_RULES``, their names beginning with
    ``prefix``. Raises ``GrammarError``, also for a schema of something else than objects."""
    if not isinstance(schema, dict) or schema.keys() <= _ANNOTATIONS:
        schema = {"type": "object"} if schema is True or isinstance(schema, dict) else schema
    if not isinstance(schema, dict) or schema.get("type", "object") != "object" or _COMBINING & schema.keys():
        raise GrammarError("it must be a schema of type 'object'")
    converter = _Converter(_checked({"type": "object", **schema}), prefix=prefix)
    return converter.convert(), converter.text()


def _checked(schema: Any) -> Any:
    """The schema, if it is of a size that can be converted."""
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False))
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except ValueError:
        raise GrammarError("the schema holds a number that JSON cannot write") from None
    if size > MAX_SCHEMA_BYTES:
        raise GrammarError(f"the schema is longer than {MAX_SCHEMA_BYTES} characters")
    return schema


class _Converter:
    """Collects the rules. A schema behind a ``$ref`` becomes one rule, so that it may refer to itself."""

    def __init__(self, document: Any, *, prefix: str = "") -> None:
        self._document, self._prefix = document, prefix
        self._rules: list[tuple[str, str]] = []
        self._named: dict[str, str] = {}
        """Pointer -> rule."""
        self._to_visit: list[tuple[str, Any]] = []
        """Schemas behind references, with their pointers. They are visited one after the other, so that a chain of
        references is no deep recursion."""
        self._to_compare: list[tuple[str, list[Any]]] = []
        """Where each ``oneOf`` is, and its schemas. They are compared last, when all references are known to lead
        somewhere."""
        self._n_compared = 0

    def convert(self) -> str:
        """Visits the document; returns the name of its rule."""
        root = self.visit(self._document, "", 0)
        while self._to_visit:
            pointer, schema = self._to_visit.pop()
            self._rules.append((self._named[pointer], self.visit(schema, pointer[1:], 0)))
        for where, schemas in self._to_compare:
            for (i, a), (j, b) in combinations(enumerate(schemas), 2):
                if not self._disjoint(a, b):
                    raise GrammarError(
                        f"{_at(where)}: oneOf is supported where no value can fit two of its schemas; {i} and {j} "
                        f"may overlap (use anyOf)"
                    )
        return root

    def text(self) -> str:
        """All rules in GBNF."""
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules)

    def _rule(self, body: str) -> str:
        name = f"{self._prefix}r{len(self._rules)}"
        self._rules.append((name, body))
        return name

    def visit(self, schema: Any, where: str, depth: int) -> str:
        """Adds the rules of the schema at JSON pointer ``where``; returns the name of its rule."""
        if depth > MAX_DEPTH:
            raise GrammarError(f"{_at(where)} is more than {MAX_DEPTH} levels deep")
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, dict):
            raise GrammarError(f"{_at(where)} must be a schema (an object), not {json.dumps(schema)[:40]}")
        for keyword in schema:
            if keyword not in _SUPPORTED and keyword not in _ANNOTATIONS:
                raise GrammarError(f"{_at(where)}: the keyword {keyword!r} is not supported")
        combining = sorted(_COMBINING & schema.keys())
        if combining:
            return self._combined(schema, combining, where, depth)
        kinds = self._kinds(schema, where)
        names = [self._typed(kind, schema, where, depth) for kind in kinds]
        return names[0] if len(names) == 1 else self._rule(" | ".join(names))

    def _kinds(self, schema: dict[str, Any], where: str) -> list[str]:
        given = schema.get("type")
        kinds = [given] if isinstance(given, str) else given
        if "type" not in schema:
            # Keywords that belong to one type stand for that type.
            kinds = [kind for kind, own in _OF_TYPE.items() if own & schema.keys()]
            if not kinds:
                return ["value"]  # nothing but annotations
        if not isinstance(kinds, list) or not kinds or any(kind not in _TYPES for kind in kinds):
            raise GrammarError(f"{_at(where)}: type must be one of {', '.join(_TYPES)}, or a list of them")
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        return list(dict.fromkeys(kinds))

    def _typed(self, kind: str, schema: dict[str, Any], where: str, depth: int) -> str:
        match kind:
            case "object":
                return self._object(schema, where, depth)
            case "array":
                return self._array(schema, where, depth)
            case "string":
                return self._string(schema, where)
            case "number" | "integer" if not schema.keys().isdisjoint(numbers.KEYWORDS):
                return numbers.number_rule(schema, kind, _at(where), self._rule)
        return kind

    # -- types ---------------------------------------------------------------------------------------------

    def _object(self, schema: dict[str, Any], where: str, depth: int) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict):
            raise GrammarError(f"{_at(where)}: properties must be an object")
        if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
            raise GrammarError(f"{_at(where)}: required must be a list of property names")
        for name in required:
            if name not in properties:
                raise GrammarError(f"{_at(where)}: required names {name!r}, which properties does not have")
        more = schema.get("additionalProperties", True)
        if not isinstance(more, dict | bool):
            raise GrammarError(f"{_at(where)}: additionalProperties must be a schema or a boolean")
        if not properties:
            if more is False:
                return self._rule('"{" ws "}"')
            value = self.visit(more, f"{where}/additionalProperties", depth + 1)
            member = f'string ":" ws {value} ws'
            return self._rule(f'"{{" ws ({member} ("," ws {member})*)? "}}"')
        # Two chains of rules, built from the last property: for the first member of the object and for later ones.
        first, rest = None, None
        for name, each in reversed(properties.items()):
            value = self.visit(each, f"{where}/properties/{_pointer(name)}", depth + 1)
            member = f'{quote(_json(name))} ":" ws {value} ws'
            member = self._rule(member)
            after = f" {rest}" if rest else ""
            if name in required:
                first = self._rule(f"{member}{after}")
                rest = self._rule(f'"," ws {member}{after}')
            else:
                first = self._rule(f"{member}{after} | {first}" if first else f"{member}?")
                rest = self._rule(f'("," ws {member})?{after}')
        return self._rule(f'"{{" ws {first} "}}"')

    def _array(self, schema: dict[str, Any], where: str, depth: int) -> str:
        low, high = _bounds(schema, "minItems", "maxItems", where)
        if high == 0:
            return self._rule('"[" ws "]"')
        item = self.visit(schema.get("items", True), f"{where}/items", depth + 1)
        more = f'("," ws {item} ws){{{max(low - 1, 0)},{"" if high is None else high - 1}}}'
        some = f"{item} ws {more}"
        return self._rule(f'"[" ws {some} "]"' if low else f'"[" ws ({some})? "]"')

    def _string(self, schema: dict[str, Any], where: str) -> str:
        low, high = _bounds(schema, "minLength", "maxLength", where)
        if "pattern" in schema and "format" in schema:
            raise GrammarError(f"{_at(where)}: 'pattern' next to 'format' is not supported")
        for keyword, rule_of in (("pattern", pattern_rule), ("format", format_rule)):
            if keyword not in schema:
                continue
            if not isinstance(schema[keyword], str):
                raise GrammarError(f"{_at(where)}: {keyword} must be a string")
            found = rule_of(schema[keyword], _at(where))
            if found.shortest < low or (high is not None and (found.longest is None or found.longest > high)):
                has = f"{found.shortest} to {'any number of' if found.longest is None else found.longest}"
                raise GrammarError(
                    f"{_at(where)}: this {keyword} gives {has} characters; minLength and maxLength cannot narrow that"
                )
            return self._rule(f'"\\"" {found.gbnf} "\\""')
        if (low, high) == (0, None):
            return "string"
        return self._rule(f'"\\"" char{{{low},{"" if high is None else high}}} "\\""')

    # -- combinations --------------------------------------------------------------------------------------

    def _combined(self, schema: dict[str, Any], combining: list[str], where: str, depth: int) -> str:
        keyword = combining[0]
        others = [key for key in schema if key not in _ANNOTATIONS and key != keyword]
        if keyword in ("enum", "const"):
            others = [key for key in others if key != "type"]
        if others:
            raise GrammarError(f"{_at(where)}: {others[0]!r} next to {keyword!r} is not supported")
        value = schema[keyword]
        if keyword == "$ref":
            return self._reference(value, where)
        if keyword in ("enum", "const"):
            if not isinstance(value, list) and keyword == "enum":
                raise GrammarError(f"{_at(where)}: enum must be a list")
            values = value if keyword == "enum" else [value]
            if "type" in schema:
                kinds = self._kinds(schema, where)
                values = [each for each in values if any(_is_a(each, kind) for kind in kinds)]
            if not values:
                raise GrammarError(f"{_at(where)}: {keyword} leaves no value")
            return self._rule(" | ".join(dict.fromkeys(quote(_json(each)) for each in values)))
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{_at(where)}: {keyword} must be a list of schemas")
        if keyword == "allOf" and len(value) > 1:
            raise GrammarError(f"{_at(where)}: the keyword 'allOf' is not supported with more than one schema")
        if keyword == "oneOf":
            self._to_compare.append((where, value))
        names = [self.visit(each, f"{where}/{keyword}/{i}", depth + 1) for i, each in enumerate(value)]
        return names[0] if len(names) == 1 else self._rule(" | ".join(dict.fromkeys(names)))

    def _reference(self, pointer: Any, where: str) -> str:
        if not isinstance(pointer, str) or (pointer != "#" and not pointer.startswith("#/")):
            raise GrammarError(f"{_at(where)}: $ref must point into this document, like '#/$defs/name'")
        if pointer not in self._named:
            # It is visited once, however often it is used, and its depth is counted from there.
            self._to_visit.append((pointer, self._find(pointer, where)))
            self._named[pointer] = f"{self._prefix}ref{len(self._named)}"
        return self._named[pointer]

    def _find(self, pointer: str, where: str) -> Any:
        found = self._document
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and _is_index(part) and int(part) < len(found):
                found = found[int(part)]
            else:
                raise GrammarError(f"{_at(where)}: $ref {pointer[:100]!r} points to nothing")
        return found

    # -- oneOf ---------------------------------------------------------------------------------------------

    def _disjoint(self, a: Any, b: Any, depth: int = 0) -> bool:
        """Whether it is certain that no value fits both schemas. Both have been visited, so they are well-formed."""
        a, b = self._resolved(a), self._resolved(b)
        if a is None or b is None or depth > MAX_DEPTH:
            return False
        values_a, values_b = _values(a), _values(b)
        self._n_compared += len(values_a or "x") * len(values_b or "x")
        if self._n_compared > MAX_COMPARISONS:
            raise GrammarError("the schema's oneOf needs too many comparisons (use anyOf)")
        if values_a is not None and values_b is not None:
            return not any(_same(x, y) for x in values_a for y in values_b)
        kinds_a, kinds_b = self._possible(a), self._possible(b)
        if not any(_overlap(x, y) for x in kinds_a for y in kinds_b):
            return True
        if kinds_a != {"object"} or kinds_b != {"object"}:
            return False
        in_both = set(a.get("required", ())) & set(b.get("required", ()))
        return any(
            self._disjoint(a.get("properties", {}).get(name), b.get("properties", {}).get(name), depth + 1)
            for name in in_both
        )

    def _resolved(self, schema: Any) -> dict[str, Any] | None:
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return None
            if not isinstance(schema.get("$ref"), str):
                return schema
            schema = self._find(schema["$ref"], "")
        return None

    def _possible(self, schema: dict[str, Any]) -> set[str]:
        values = _values(schema)
        if values is not None:
            return {kind for kind in _TYPES for each in values if _is_a(each, kind)}
        if not schema.keys().isdisjoint(_COMBINING):
            return set(_TYPES)
        # Without a type every value is possible, although the grammar may allow fewer.
        given = schema.get("type", list(_TYPES))
        return set([given] if isinstance(given, str) else given)


def _bounds(schema: dict[str, Any], low_name: str, high_name: str, where: str) -> tuple[int, int | None]:
    low, high = schema.get(low_name, 0), schema.get(high_name)
    for name, value in ((low_name, low), (high_name, high)):
        if value is None and name == high_name and name not in schema:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_REPEATS:
            raise GrammarError(f"{_at(where)}: {name} must be a whole number from 0 to {MAX_REPEATS}")
    if high is not None and high < low:
        raise GrammarError(f"{_at(where)}: {high_name} is smaller than {low_name}")
    return low, high


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() and text.encode("utf-8", "replace").decode() == text else json.dumps(value)


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


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10


def _at(where: str) -> str:
    return f"schema at {where[:200] or '/'}"


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
