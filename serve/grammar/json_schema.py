"""JSON Schema as clients write it, made into what llguidance enforces.

Whatever a grammar allows is valid under its schema. What cannot be enforced is relaxed to the next looser rule and
named in a warning, or refused where the schema is to hold strictly. The reverse is not promised: properties come in the
order in which the schema names them, an object that names properties has no others unless the schema says so, and
numbers without bounds stay below 2^53.

Tested in tests/serve/grammar/test_json_schema.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.finite import loosened, possible
from slm.serve.grammar.overlap import Overlap
from slm.serve.grammar.patterns import FORMATS, translated
from slm.serve.grammar.work import problem_of_schema

MAX_BYTES = 256 * 1024
"""Most bytes of a schema's text."""
_MAX_DEPTH = 64
"""Levels of schemas within schemas; references are not counted."""
_MAX_LOOSENED = 20
"""Schemas that hold themselves, one after the other."""
_EXACT = 2**53 - 1
"""Numbers up to this are the same in every JSON library."""

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_OF_TYPE = {
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties"),
    },
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_COMBINING = {"enum", "const", "anyOf", "oneOf", "allOf", "$ref"}
_SUPPORTED = {"type", "not", "nullable", "unevaluatedProperties"}.union(_COMBINING, *_OF_TYPE.values())
_NOT_ENFORCED = {
    *("if", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedItems", "$dynamicRef"),
}
# These describe a schema and constrain nothing. Next to "if" or "contains", some would; those are named then.
_ANNOTATIONS = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"),
    *("$comment", "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$vocabulary", "$defs", "definitions"),
    *("contentMediaType", "contentEncoding", "contentSchema", "then", "else", "xml", "externalDocs"),
    "markdownDescription",
    *("enumNames", "enumDescriptions", "errorMessage", "strict", "name", "optional", "propertyOrdering", "order"),
}  # fmt: skip


def enforceable(schema: Any, *, strict: bool, of_object: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The schema in the part of JSON Schema that llguidance enforces, and a warning for everything that was relaxed.

    ``strict``: what would be relaxed is refused instead. ``of_object``: every value must be an object. Raises
    ``GrammarError``, which names the place.
    """
    _check_size(schema)
    try:
        out, said, warnings = _made(schema, strict=strict, of_object=of_object)
    except GrammarError:
        if strict:
            raise
        # Before the draft of 2019, what stands next to a reference said nothing.
        out, said, warnings = _made(schema, strict=strict, of_object=of_object, alone=True)
    if not said:
        return out, warnings
    anything: dict[str, Any] = {"type": "object"} if of_object or out.get("type") == "object" else {}
    kind = "object" if anything else "value"
    return anything, [*warnings, f"the schema is not enforced, any JSON {kind} is allowed: {said}"]


def _made(schema: Any, *, strict: bool, of_object: bool, alone: bool = False) -> tuple[dict[str, Any], str, list[str]]:
    """The schema, what llguidance has against it ("": nothing), and the warnings."""
    made = _Converter(schema, strict=strict, alone=alone)
    out = made.convert()
    if of_object:
        if "type" in out and out["type"] != "object" and "object" not in out["type"]:
            raise GrammarError("it must be a schema of type 'object'")
        out = {**out, "type": "object"}
    out = possible(out)
    said = problem_of_schema(out)
    for _ in range(_MAX_LOOSENED):
        looser, places = loosened(out, said)
        if not places:
            break
        for place in places:
            made.relax(made.original(place), "what a schema that holds itself is combined with is not enforced")
        out, said = looser, problem_of_schema(looser)
    if said and (strict or "nsatisfiable" in said):
        raise GrammarError(f"the schema cannot be enforced: {said}")
    return out, said, list(made.warnings)


def _check_size(schema: Any) -> None:
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False))
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except ValueError:
        raise GrammarError("the schema holds a number that JSON cannot write") from None
    if size > MAX_BYTES:
        raise GrammarError(f"the schema is longer than {MAX_BYTES} characters")


class _Converter:
    """Visits a schema and all that it refers to. ``closed`` is whether an object that names its properties has no
    others: not where several schemas hold for one value, each of which names some. ``alone``: what stands next to a
    reference is ignored."""

    def __init__(self, document: Any, *, strict: bool, alone: bool = False) -> None:
        self._document, self._strict, self._alone = document, strict, alone
        self._overlap = Overlap(self._find)
        self._names: dict[tuple[str, bool], str] = {}
        """(pointer, closed) -> name of the definition."""
        self._todo: list[tuple[str, bool]] = []
        """Definitions to visit: one after the other, so that a chain of references is no deep recursion."""
        self.warnings: dict[str, None] = {}

    def convert(self) -> dict[str, Any]:
        """The whole document."""
        out = self._visit(self._document, "", 0, closed=True)
        if out is False:
            raise GrammarError("the schema allows no value")
        definitions = {}
        while self._todo:
            pointer, closed = self._todo.pop()
            target = self._find(pointer)
            definitions[self._names[pointer, closed]] = self._visit(target, pointer[1:], 0, closed=closed)
        return {**out, "$defs": definitions} if definitions else out

    def relax(self, where: str, what: str) -> None:
        """Names what is not enforced at a JSON pointer; strictly, raises ``GrammarError``."""
        if self._strict:
            raise GrammarError(f"{_at(where)}: {what}")
        self.warnings[f"{_at(where)}: {what}"] = None

    def original(self, place: str) -> str:
        """The JSON pointer of a place in what ``convert`` made."""
        name, found, path = place.removeprefix("/$defs/").partition("/")
        if place.startswith("/$defs/"):
            pointer = next(pointer for (pointer, _), each in self._names.items() if each == name)
            return f"{pointer[1:]}{found}{path}"
        return place

    # -- one schema ----------------------------------------------------------------------------------------

    def _visit(self, schema: Any, where: str, depth: int, *, closed: bool) -> Any:
        """The schema at JSON pointer ``where``: a dict, or False where no value fits."""
        if schema is True or schema == {}:
            return {}
        if schema is False:
            return False
        if not isinstance(schema, dict):
            raise GrammarError(f"{_at(where)} must be a schema (an object or a boolean), not {_short(schema)}")
        if depth > _MAX_DEPTH:
            self.relax(where, f"it is more than {_MAX_DEPTH} levels deep; any value is allowed")
            return {}
        own = self._known(schema, where)
        if self._alone and "$ref" in own and len(own) > 1:
            self.relax(where, f"{', '.join(sorted(own.keys() - {'$ref'}))} next to '$ref' is not enforced")
            own = {"$ref": own["$ref"]}
        kinds = self._kinds(own, where, closed=closed)
        if kinds == []:
            return False
        parts = [key for key in ("$ref", "anyOf", "oneOf") if key in own]
        several = own.get("allOf", [])
        if not isinstance(several, list):
            raise GrammarError(f"{_at(where)}: allOf must be a list of schemas")
        n_holding = len(parts) + len(several) + any(own.keys() & keys for keys in _OF_TYPE.values())
        closed = closed and n_holding <= 1
        out: dict[str, Any] = {} if kinds is None else {"type": kinds[0] if len(kinds) == 1 else kinds}
        all_of: list[Any] = [
            self._visit(each, f"{where}/allOf/{i}", depth + 1, closed=closed) for i, each in enumerate(several)
        ]
        self._values(own, out, where)
        if "$ref" in own:
            out.update(self._reference(own["$ref"], where, closed=closed))
            if out.keys() <= {"$ref", "type"} and out.get("type") == self._type_behind({"$ref": own["$ref"]}):
                out.pop("type", None)
        for keyword in ("anyOf", "oneOf"):
            if keyword in own:
                choice = self._choice(keyword, own[keyword], where, depth, closed=closed)
                if out.keys() == {"type"} and all(self._type_behind(each) == out["type"] for each in own[keyword]):
                    out.pop("type")
                if "anyOf" in out:
                    all_of.append({"anyOf": choice})
                else:
                    out["anyOf"] = choice
        self._string(own, out, all_of, where)
        self._number(own, out, where)
        if own.keys() & _OF_TYPE["array"]:
            self._array(own, out, where, depth, closed=closed)
        if own.keys() & _OF_TYPE["object"]:
            self._object(own, out, where, depth, closed=closed)
        if False in all_of:
            return False
        if all_of == [each for each in all_of if each == {}]:
            all_of = []
        if all_of:
            out["allOf"] = all_of
        if own.get("nullable") is True:
            return {"anyOf": [out, {"type": "null"}]}
        return out

    def _known(self, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The keywords that hold; the others are named, unless they are notes."""
        own = {}
        for keyword, value in schema.items():
            if value is None and keyword in _SUPPORTED - {"const"}:
                raise GrammarError(f"{_at(where)}: {keyword} must not be null")
            if keyword in _SUPPORTED:
                own[keyword] = value
            elif keyword in _NOT_ENFORCED:
                if keyword not in ("minContains", "maxContains") or "contains" in schema:
                    self.relax(where, f"{keyword!r} is not enforced")
            elif keyword not in _ANNOTATIONS and not keyword.startswith("x-"):
                self.relax(where, f"{keyword!r} is not a keyword of JSON Schema and is ignored")
        if "unevaluatedProperties" in own:
            rest = own.pop("unevaluatedProperties")
            if rest is not True and rest != {}:
                if own.keys() & {"anyOf", "oneOf", "allOf", "$ref"} or rest is not False:
                    self.relax(where, "'unevaluatedProperties' is not enforced")
                else:
                    own.setdefault("additionalProperties", False)
        return own

    def _kinds(self, own: dict[str, Any], where: str, *, closed: bool) -> list[str] | None:
        """The types that a value may have; None: any."""
        given = own.get("type")
        kinds = [given] if isinstance(given, str) else given
        if "type" in own:
            if not isinstance(kinds, list) or not kinds or not all(isinstance(each, str) for each in kinds):
                raise GrammarError(f"{_at(where)}: type must be one of {', '.join(TYPES)}, or a list of them")
            unknown = next((each for each in kinds if each not in TYPES), None)
            if unknown is not None:
                self.relax(where, f"type {unknown[:40]!r} is not one of {', '.join(TYPES)}; any type is allowed")
                kinds = None
        elif closed and not own.keys() & (_COMBINING | {"not"}):
            # Keywords that belong to one type stand for that type.
            kinds = [kind for kind, keys in _OF_TYPE.items() if keys & own.keys()] or None
        excluded = self._excluded(own, where)
        if excluded:
            kinds = [each for each in kinds or TYPES if each not in excluded]
            if "number" in excluded:
                kinds = [each for each in kinds if each != "integer"]
        if kinds and "number" in kinds:
            kinds = [each for each in kinds if each != "integer"]
        return None if kinds is None else list(dict.fromkeys(kinds))

    def _excluded(self, own: dict[str, Any], where: str) -> set[str]:
        """Types that ``not`` excludes; all for ``not: {}``."""
        if "not" not in own or own["not"] is False:
            return set()
        value = own["not"]
        if value is True or value == {}:
            return set(TYPES)
        kinds = value.get("type") if isinstance(value, dict) and value.keys() - _ANNOTATIONS == {"type"} else None
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if isinstance(kinds, list) and kinds and all(each in TYPES for each in kinds) and "integer" not in kinds:
            return set(kinds)
        self.relax(where, "'not' is not enforced")
        return set()

    def _values(self, own: dict[str, Any], out: dict[str, Any], where: str) -> None:
        for keyword in ("enum", "const"):
            if keyword not in own:
                continue
            values = own[keyword] if keyword == "enum" else [own[keyword]]
            if not isinstance(values, list) or not values:
                raise GrammarError(f"{_at(where)}: enum must be a list of values")
            if any(_has_large_number(each) for each in values):
                self.relax(where, f"{keyword!r} with a number beyond 2^53 is not enforced")
            else:
                out[keyword] = own[keyword]

    # -- references and choices ----------------------------------------------------------------------------

    def _reference(self, pointer: Any, where: str, *, closed: bool) -> dict[str, Any]:
        if not isinstance(pointer, str):
            raise GrammarError(f"{_at(where)}: $ref must be a text")
        try:
            pointer = self._followed(self._local(pointer))
        except GrammarError as error:
            self.relax(where, f"{error}; any value is allowed")
            return {}
        name = self._names.get((pointer, closed))
        if name is None:
            name = self._names[pointer, closed] = f"d{len(self._names)}"
            self._todo.append((pointer, closed))
        return {"$ref": f"#/$defs/{name}"}

    def _type_behind(self, schema: Any) -> Any:
        """The type that a schema names, or the one to which it refers: it need not be said once more next to it, and
        llguidance cannot combine a schema that refers to itself with another."""
        try:
            for _ in range(_MAX_DEPTH):
                if not isinstance(schema, dict) or "type" in schema or not isinstance(schema.get("$ref"), str):
                    break
                schema = self._find(self._followed(self._local(schema["$ref"])))
        except GrammarError:
            return None
        return schema.get("type") if isinstance(schema, dict) else None

    def _local(self, reference: str) -> str:
        """The JSON pointer within this document, ``#/...``, to which a reference leads."""
        base, _, fragment = reference.partition("#")
        own_id = self._document.get("$id", self._document.get("id")) if isinstance(self._document, dict) else None
        if base and base != str(own_id).partition("#")[0]:
            raise GrammarError(f"$ref {reference[:100]!r} is not in this schema")
        fragment = unquote(fragment)
        if not fragment or fragment.startswith("/"):
            return f"#{fragment}"
        for key in ("$defs", "definitions"):
            named = self._document.get(key) if isinstance(self._document, dict) else None
            for name, each in named.items() if isinstance(named, dict) else ():
                if isinstance(each, dict) and each.get("$anchor") == fragment:
                    return f"#/{key}/{_pointer(name)}"
        raise GrammarError(f"$ref {reference[:100]!r} points to nothing")

    def _followed(self, pointer: str) -> str:
        """Behind schemas that are nothing but a reference."""
        seen: list[str] = []
        while pointer not in seen:
            seen.append(pointer)
            target = self._find(pointer)
            if not isinstance(target, dict) or target.keys() - _ANNOTATIONS != {"$ref"}:
                return pointer
            if not isinstance(target["$ref"], str):
                return pointer
            pointer = self._local(target["$ref"])
        raise GrammarError(f"$ref {pointer[:100]!r} refers to itself without end")

    def _find(self, reference: str) -> Any:
        """The schema that a reference of this document leads to. Raises ``GrammarError``."""
        pointer = self._local(reference)
        found = self._document
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(found):
                found = found[int(part[:9])]
            else:
                raise GrammarError(f"$ref {reference[:100]!r} points to nothing")
        return found

    def _choice(self, keyword: str, value: Any, where: str, depth: int, *, closed: bool) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{_at(where)}: {keyword} must be a list of schemas")
        made = [self._visit(each, f"{where}/{keyword}/{i}", depth + 1, closed=closed) for i, each in enumerate(value)]
        if keyword == "oneOf":
            pair = self._overlap.pair(value)
            if pair is not None:
                self.relax(
                    where,
                    f"oneOf is enforced where no value can fit two of its schemas; {pair[0]} and {pair[1]} may "
                    "overlap, and it counts as anyOf",
                )
        return made

    # -- types ---------------------------------------------------------------------------------------------

    def _string(self, own: dict[str, Any], out: dict[str, Any], all_of: list[Any], where: str) -> None:
        self._bounds(own, out, "minLength", "maxLength", where)
        patterns = []
        if "pattern" in own:
            patterns += self._pattern(own["pattern"], where)
        if "format" in own:
            name = own["format"]
            if not isinstance(name, str):
                raise GrammarError(f"{_at(where)}: format must be a string")
            if name in FORMATS:
                patterns.append(translated(f"^({FORMATS[name]})$"))
            elif name == "regex":
                self.relax(where, "'format' 'regex' is not enforced")
            else:
                # A name that JSON Schema does not know is a note by its rules; so it does not count as relaxed.
                self.warnings[f"{_at(where)}: 'format' {name[:40]!r} is not one of JSON Schema's and is ignored"] = None
        both = [{"type": "string", "pattern": each} for each in patterns]
        if len(both) > 1 and problem_of_schema({"allOf": both}):
            # The pattern is the narrower of the two, as a rule.
            self.relax(where, f"'format' {own['format'][:40]!r} next to 'pattern' is not enforced")
            del patterns[1:]
        if patterns:
            out["pattern"] = patterns[0]
            all_of += [{"type": "string", "pattern": each} for each in patterns[1:]]

    def _pattern(self, pattern: Any, where: str) -> list[str]:
        if not isinstance(pattern, str):
            raise GrammarError(f"{_at(where)}: pattern must be a string")
        try:
            made = translated(pattern)
            schema = {"type": "string", "pattern": made}
            if said := problem_of_schema(schema):
                raise GrammarError(said)
        except GrammarError as error:
            self.relax(where, f"'pattern' {pattern[:100]!r} is not enforced: {error}")
            return []
        return [made]

    def _number(self, own: dict[str, Any], out: dict[str, Any], where: str) -> None:
        for keyword in _OF_TYPE["number"] & own.keys():
            value = own[keyword]
            is_flag = isinstance(value, bool) and keyword.startswith("exclusive")
            if not is_flag and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise GrammarError(f"{_at(where)}: {keyword} must be a number")
            if keyword == "multipleOf" and value <= 0:
                raise GrammarError(f"{_at(where)}: multipleOf must be above 0")
            far = not is_flag and abs(value) > _EXACT and (value < 0) == keyword.lower().endswith("minimum")
            if not far or keyword == "multipleOf":
                out[keyword] = value
        kinds = out.get("type", [])
        if "number" in kinds or "integer" in kinds or kinds == "number" or kinds == "integer":
            low, high = (
                [out[key] for key in keys if isinstance(out.get(key), int | float) and out.get(key) is not True]
                for keys in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
            )
            if not low and all(each > -_EXACT for each in high):
                out["minimum"] = -_EXACT
            if not high and all(each < _EXACT for each in low):
                out["maximum"] = _EXACT

    def _array(self, own: dict[str, Any], out: dict[str, Any], where: str, depth: int, *, closed: bool) -> None:
        first, rest = own.get("prefixItems", []), own.get("items")
        at = "prefixItems"
        if isinstance(rest, list):
            first, rest, at = rest, own.get("additionalItems"), "items"
        if isinstance(first, dict):
            self.relax(where, "'prefixItems' is one schema and not a list of them; it counts as 'items'")
            first, rest = [], first if rest is None or rest == {} else rest
        if not isinstance(first, list):
            raise GrammarError(f"{_at(where)}: prefixItems must be a list of schemas")
        low, high = self._bounds(own, out, "minItems", "maxItems", where)
        if first:
            out["prefixItems"] = [
                self._visit(each, f"{where}/{at}/{i}", depth + 1, closed=closed) for i, each in enumerate(first)
            ]
            if closed and rest is None and low <= len(first):
                rest = False
            if closed and "minItems" not in own and (high is None or high >= len(first)):
                out["minItems"] = len(first)  # a tuple is generated whole
        if rest is not None:
            out["items"] = self._visit(rest, f"{where}/items", depth + 1, closed=closed)
        if own.get("uniqueItems") is True and (high is None or high > 1):
            self.relax(where, "'uniqueItems' is not enforced: items may repeat")

    def _object(self, own: dict[str, Any], out: dict[str, Any], where: str, depth: int, *, closed: bool) -> None:
        named = {}
        for keyword in ("properties", "patternProperties"):
            given = own.get(keyword, {})
            if not isinstance(given, dict):
                raise GrammarError(f"{_at(where)}: {keyword} must be an object")
            named[keyword] = {
                name: self._visit(each, f"{where}/{keyword}/{_pointer(name)}", depth + 1, closed=closed)
                for name, each in given.items()
            }
        properties, by_pattern = named["properties"], named["patternProperties"]
        required = own.get("required", [])
        if isinstance(required, bool):  # of a property, in the third draft
            required = []
        if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
            raise GrammarError(f"{_at(where)}: required must be a list of property names")
        more: Any = own.get("additionalProperties")
        if more is None:
            more = not (closed and (properties or by_pattern or "properties" in own))
        more = self._visit(more, f"{where}/additionalProperties", depth + 1, closed=closed)
        by_pattern, more = self._patterns_of_names(by_pattern, more, where)
        if more is False and "additionalProperties" not in own:
            unnamed = [name for name in dict.fromkeys(required) if name not in properties]
            properties |= {name: {} for name in unnamed if not _allows(by_pattern, name)}
        if "propertyNames" in own:
            by_pattern, more = self._names_of_properties(own["propertyNames"], properties, by_pattern, more, where)
        if properties or "properties" in own:
            out["properties"] = properties
        if by_pattern:
            out["patternProperties"] = by_pattern
        if required:
            out["required"] = required
        if more != {}:
            out["additionalProperties"] = more
        self._counts(own, out, properties, required, free=more is not False or bool(by_pattern), where=where)

    def _patterns_of_names(self, by_pattern: dict[str, Any], more: Any, where: str) -> tuple[dict[str, Any], Any]:
        """``patternProperties`` and ``additionalProperties``, without the patterns that cannot be enforced."""
        made = {}
        for pattern, schema in by_pattern.items():
            found = self._pattern(pattern, f"{where}/patternProperties")
            if not found:
                more = {}
            else:
                made[found[0]] = schema
        if len(made) > 1:
            test = {"type": "object", "patternProperties": {each: {} for each in made}}
            if problem_of_schema(test):
                self.relax(where, "'patternProperties' is enforced where no name fits two patterns; any are allowed")
                return {}, {}
        return made, more

    def _names_of_properties(
        self, names: Any, properties: dict[str, Any], by_pattern: dict[str, Any], more: Any, where: str
    ) -> tuple[dict[str, Any], Any]:
        """``propertyNames`` as patterns of the names or a list of them."""
        if names is True or (isinstance(names, dict) and not names.keys() - _ANNOTATIONS - {"type"}):
            return by_pattern, more
        target = names
        for _ in range(_MAX_DEPTH):
            if isinstance(target, dict) and isinstance(target.get("$ref"), str):
                target = self._find(target["$ref"])
        keys = target.keys() - _ANNOTATIONS - {"type"} if isinstance(target, dict) else set()
        if not by_pattern and (keys == {"enum"} or keys == {"const"}):
            values = target["enum"] if "enum" in target else [target["const"]]
            listed = {name: properties.get(name, more) for name in values if isinstance(name, str)}
            properties.clear()
            properties.update({name: each for name, each in listed.items() if each is not False})
            return {}, False
        if not by_pattern and not properties and len(keys) == 1 and more is not False:
            pattern = {
                "pattern": target.get("pattern"),
                "minLength": f"^.{{{target.get('minLength')},}}$",
                "maxLength": f"^.{{0,{target.get('maxLength')}}}$",
                "format": f"^({FORMATS.get(str(target.get('format')))})$" if target.get("format") in FORMATS else None,
            }.get(next(iter(keys)))
            found = self._pattern(pattern, f"{where}/propertyNames") if pattern is not None else []
            if found:
                return {found[0]: more}, False
            if pattern is not None:
                return by_pattern, more
        self.relax(where, "'propertyNames' is not enforced")
        return by_pattern, more

    def _counts(
        self,
        own: dict[str, Any],
        out: dict[str, Any],
        properties: dict[str, Any],
        required: list[str],
        *,
        free: bool,
        where: str,
    ) -> None:
        """``minProperties`` and ``maxProperties``. ``free``: whether other names than those of ``properties`` may
        come."""
        low, high = self._bounds(own, out, "minProperties", "maxProperties", where)
        if low <= len(set(required)):
            out.pop("minProperties", None)
        if high is not None and not free and high >= len(properties):
            out.pop("maxProperties", None)
        left = {key: out[key] for key in ("minProperties", "maxProperties") if key in out}
        all_needed = set(properties) <= set(required)
        if left and not all_needed and (free or any(value > 1 for value in left.values())):
            for keyword in left:
                del out[keyword]
                self.relax(where, f"{keyword!r} is enforced where all properties are required; it is ignored")
        elif free and left.get("minProperties", 0) > 1:
            self.relax(where, "'minProperties' counts names that may repeat")

    def _bounds(
        self, own: dict[str, Any], out: dict[str, Any], low_name: str, high_name: str, where: str
    ) -> tuple[int, int | None]:
        for name in (low_name, high_name):
            if name not in own:
                continue
            value = own[name]
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise GrammarError(f"{_at(where)}: {name} must be a whole number from 0 on")
            if value > 2**31:
                if name == low_name:
                    raise GrammarError(f"{_at(where)}: {name}={value} cannot be reached")
                continue  # no text is so long
            out[name] = value
        low, high = out.get(low_name, 0), out.get(high_name)
        if high is not None and high < low:
            raise GrammarError(f"{_at(where)}: {high_name} is smaller than {low_name}")
        return low, high


def _allows(by_pattern: Mapping[str, Any], name: str) -> bool:
    """Whether a name fits one of these patterns, as ``_pattern`` makes them."""
    if not by_pattern:
        return False
    test = {"type": "object", "patternProperties": {each: {} for each in by_pattern}, "required": [name]}
    return not problem_of_schema({**test, "additionalProperties": False})


def _has_large_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_large_number, value.values()))
    if isinstance(value, list):
        return any(map(_has_large_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > _EXACT


def _short(value: Any) -> str:
    return json.dumps(value)[:40]


def _at(where: str) -> str:
    return f"schema at {where[:200] or '/'}"


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
