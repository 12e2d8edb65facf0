"""Arguments of a call that a model writes one by one, as XML or as in a programming language, and not as a JSON object:
their grammar, and their way back to JSON.

``<parameter=city>Bonn</parameter>`` (Qwen3-Coder), ``city="Bonn"`` (LFM2), ``city:<|"|>Bonn<|"|>`` (Gemma 4),
``<parameter name="city" string="true">Bonn</parameter>`` (DeepSeek V3.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slm.data.chat.content_spans import grammar_name
from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import first_of, json_term, quoted

_ANY_TEXT = "/(?s:.*)/"
_BARE = re.compile(r"[\w.+-]*")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_LEVELS = 8
"""Values within values that are followed; deeper ones may be anything."""
_OF_TEXT = ("minLength", "maxLength", "pattern", "format")
_FREE_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"


@dataclass(frozen=True, kw_only=True)
class Fields:
    """How an argument is written: ``before`` KEY ``middle`` VALUE ``after``, with ``between`` in the middle of two."""

    before: str
    middle: str
    middle_of_others: str = ""
    """In place of ``middle`` where the value is no text; "": the same."""
    after: str
    between: str = ""
    strings: Literal["bare", "json", "marked"] = "bare"
    """Texts stand as they are up to ``after``, or as in JSON, or between two ``mark``."""
    mark: str = ""
    words: tuple[str, str, str] = ("true", "false", "null")


def marked(text: str, controls: Collection[str]) -> str:
    """A text in Lark in which the names of control tokens are those tokens."""
    if not controls:
        return quoted(text)
    parts = re.split(f"({'|'.join(map(re.escape, sorted(controls, key=len, reverse=True)))})", text)
    return " ".join(grammar_name(part) if part in controls else quoted(part) for part in parts if part) or '""'


def texts_of(schema: Any) -> frozenset[str]:
    """The parameters of a function that are texts whatever they look like: 5 is "5" there."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return frozenset()
    return frozenset(name for name, each in properties.items() if _is_text(each))


def _is_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    values = _values(schema)
    return schema.get("type") == "string" or (bool(values) and all(isinstance(each, str) for each in values))


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """The only values that a schema admits; empty: it does not list them."""
    return schema.get("enum") or ([schema["const"]] if "const" in schema else [])


def written_value(fields: Fields, value: Any) -> str:
    """A value as the model writes it, texts as within others."""
    if isinstance(value, bool) or value is None:
        return fields.words[(True, False, None).index(value)]
    if fields.strings == "marked":
        if isinstance(value, str):
            return fields.mark + value + fields.mark
        if isinstance(value, list):
            return f"[{','.join(written_value(fields, each) for each in value)}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{written_value(fields, each)}' for key, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def written_arguments(fields: Fields, arguments: Mapping[str, Any]) -> str:
    """Arguments as the model writes them."""
    bare = fields.strings == "bare"
    return fields.between.join(
        fields.before
        + key
        + (_framed(fields, value) if bare else fields.middle + written_value(fields, value))
        + fields.after
        for key, value in arguments.items()
    )


def _framed(fields: Fields, value: Any) -> str:
    """A value with what stands between it and its key."""
    if isinstance(value, str):
        return fields.middle + value
    return (fields.middle_of_others or fields.middle) + written_value(fields, value)


class ArgumentsGrammar:
    """The rules of one function's arguments; ``rules`` are complete after ``whole``. ``prefix``: of their names.

    ``strict``: what cannot be enforced is refused instead of named.
    """

    def __init__(self, fields: Fields, controls: Collection[str], *, prefix: str, strict: bool) -> None:
        self._fields, self._controls, self._prefix, self._strict = fields, controls, prefix, strict
        self.rules: list[str] = []
        self.warnings: list[str] = []
        self._root: dict[str, Any] = {}
        self._n_names = 0

    def whole(self, schema: dict[str, Any]) -> str:
        """The name of the rule of all arguments. Raises ``GrammarError``."""
        self._root = schema
        fields = self._fields

        def entry(key: str, value: Any) -> str:
            begin = self._mark(fields.before + key)
            if fields.middle_of_others:
                return f"{begin} {self._value_of_kind(value, key)}"
            return f"{begin} {self._mark(fields.middle)} {self._value_to_end(value, key)}"

        return self._object(schema, entry, fields.between, "")

    def _object(self, schema: dict[str, Any], entry: Callable[[str, Any], str], between: str, where: str) -> str:
        """The name of the rule of an object's entries, in the order of the schema."""
        name, fields = self._name(), self._fields
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        if not properties:
            if schema.get("additionalProperties", True) is False:
                self.rules.append(f'{name}: ""')
                return name
            if where:
                free = f"{_FREE_KEY} {self._mark(fields.middle)} {self._value({}, where, _LEVELS)}"
            elif fields.middle_of_others:
                free = f"{self._mark(fields.before)} {_FREE_KEY} {self._value_of_kind({}, where)}"
            else:
                value = f"{self._mark(fields.middle)} {self._value_to_end({}, where)}"
                free = f"{self._mark(fields.before)} {_FREE_KEY} {value}"
            more = f"({self._mark(between)} {name}e)*" if between else f"{name}e*"
            self.rules += [f"{name}: ({name}e {more})?" if between else f"{name}: {more}", f"{name}e: {free}"]
            return name
        keys = list(properties)
        for key in [key for key in required if key not in properties]:
            self._warn(f"{where}{key}: required without a schema")
        separator = f"{self._mark(between)} " if between else ""
        for i, key in enumerate(keys):
            self.rules.append(f"{name}i{i}: {entry(key, properties[key])}")
            rest = f"({separator}{name}i{i})" + ("" if key in required else "?")
            follows = f" {name}r{i + 1}" if i + 1 < len(keys) else ""
            self.rules.append(f"{name}r{i}: {rest}{follows}")
            skip = "" if key in required else (f" | {name}f{i + 1}" if i + 1 < len(keys) else ' | ""')
            self.rules.append(f"{name}f{i}: {name}i{i}{follows}{skip}")
        self.rules.append(f"{name}: {name}f0")
        return name

    def _value_of_kind(self, schema: Any, key: str) -> str:
        """What stands between the key and the next one, where a text has another frame than other values."""
        fields, schema = self._fields, self._resolved(schema)
        after = self._mark(fields.after)
        if values := _values(schema):
            return f"({' | '.join(self._mark(_framed(fields, each)) for each in values)}) {after}"
        kinds = self._kinds(schema) or ["string", "number", "boolean", "null", "object", "array"]
        others = [kind for kind in kinds if kind != "string"]
        parts = []
        if "string" in kinds:
            parts.append(f"{self._mark(fields.middle)} {self._value_to_end({**schema, 'type': 'string'}, key)}")
        if others:
            value = self._value({**schema, "type": others}, key, 0)
            parts.append(f"{self._mark(fields.middle_of_others)} {value} {after}")
        return f"({' | '.join(parts)})"

    def _value_to_end(self, schema: Any, key: str) -> str:
        """A value with what stands behind it."""
        fields, after = self._fields, self._mark(self._fields.after) if self._fields.after else ""
        if fields.strings != "bare":
            return f"{self._value(schema, key, 0)} {after}"
        schema = self._resolved(schema)
        if values := _values(schema):
            texts = [each if isinstance(each, str) else written_value(fields, each) for each in values]
            return f"({' | '.join(map(quoted, texts))}) {after}"
        kinds = self._kinds(schema)
        if kinds and "string" not in kinds:
            return f"{self._value(schema, key, 0)} {after}"
        self._loose_text(schema, key)
        name = f"T{self._name().upper()}"
        self.rules.append(f"{name}: {first_of(fields.after)}")
        return name

    def _value(self, schema: Any, where: str, level: int) -> str:
        fields, schema = self._fields, self._resolved(schema)
        if values := _values(schema):
            return f"({' | '.join(self._mark(written_value(fields, each)) for each in values)})"
        kinds = self._kinds(schema)
        if not kinds or level >= _LEVELS:
            return self._anything()
        if len(kinds) > 1:
            return f"({' | '.join(self._value({**schema, 'type': kind}, where, level) for kind in kinds)})"
        kind = kinds[0]
        if kind == "null":
            return quoted(fields.words[2])
        if kind == "boolean":
            return f"({quoted(fields.words[0])} | {quoted(fields.words[1])})"
        if kind in ("number", "integer") or fields.strings != "marked":
            made = {**schema, "type": kind}
            return json_term(
                {**made, **{key: self._root[key] for key in ("$defs", "definitions") if key in self._root}}
            )
        if kind == "string":
            self._loose_text(schema, where)
            return self._text()
        name = self._name()
        if kind == "array":
            item = self._value(schema.get("items", {}), f"{where}.items", level + 1)
            self.rules.append(f'{name}: "[" ({item} ("," {item})*)? "]"')
            for key in ("minItems", "maxItems", "prefixItems"):
                if key in schema:
                    self._warn(f"{where}.{key}")
            return name

        def entry(key: str, value: Any) -> str:
            return f"{self._mark(key + ':')} {self._value(value, f'{where}.{key}', level + 1)}"

        inner = self._object(schema, entry, ",", f"{where}.")
        self.rules.append(f'{name}: "{{" {inner} "}}"')
        return name

    def _anything(self) -> str:
        if self._fields.strings != "marked":
            return json_term({})
        name = f"{self._prefix}any"
        if not any(rule.startswith(f"{name}:") for rule in self.rules):
            number = json_term({"type": "number"})
            self.rules += [
                f'{name}: {self._text()} | {number} | "true" | "false" | "null" | {name}l | {name}o',
                f'{name}l: "[" ({name} ("," {name})*)? "]"',
                f'{name}o: "{{" ({name}e ("," {name}e)*)? "}}"',
                f'{name}e: {_FREE_KEY} ":" {name}',
            ]
        return name

    def _text(self) -> str:
        mark = self._fields.mark
        if mark in self._controls:
            return f"{grammar_name(mark)} {_ANY_TEXT} {grammar_name(mark)}"
        name = f"T{self._prefix.upper()}ANY"
        if not any(rule.startswith(f"{name}:") for rule in self.rules):
            self.rules.append(f"{name}: {first_of(mark)}")
        return f"{quoted(mark)} {name}"

    def _resolved(self, schema: Any) -> dict[str, Any]:
        for _ in range(_LEVELS):
            if not isinstance(schema, dict):
                return {}
            ref = schema.get("$ref")
            if not isinstance(ref, str) or not ref.startswith("#/"):
                return schema
            found: Any = self._root
            for part in ref[2:].split("/"):
                found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
            schema = found
        return {}

    def _kinds(self, schema: dict[str, Any]) -> list[str]:
        """The types that a value may have; empty: any."""
        given = schema.get("type")
        if given is None:
            for key in ("anyOf", "oneOf"):
                if isinstance(schema.get(key), list):
                    found = [self._kinds(self._resolved(each)) for each in schema[key]]
                    flat = list(dict.fromkeys(kind for each in found for kind in each))
                    return flat if all(found) and not {"object", "array"} & set(flat) else []
            return []
        return [given] if isinstance(given, str) else list(given)

    def _loose_text(self, schema: dict[str, Any], where: str) -> None:
        for key in _OF_TEXT:
            if key in schema:
                self._warn(f"{where}.{key}")

    def _warn(self, what: str) -> None:
        said = f"{what} is not enforced in the form of this model's calls"
        if self._strict:
            raise GrammarError(said)
        if said not in self.warnings:
            self.warnings.append(said)

    def _mark(self, text: str) -> str:
        return marked(text, self._controls)

    def _name(self) -> str:
        self._n_names += 1
        return f"{self._prefix}n{self._n_names}"


class ArgumentsReader:
    """Makes JSON of arguments that arrive in pieces. ``texts``: the parameters that are texts whatever they look like;
    ``ends``: what may stand behind the arguments."""

    def __init__(self, fields: Fields, texts: Collection[str], ends: Sequence[str]) -> None:
        self._fields, self._texts, self._ends = fields, texts, [each for each in ends if each]
        self._n = 0
        self.done = False

    def take(self, text: str) -> tuple[str, int]:
        """The JSON that the text adds, and how many characters it took."""
        out, at = "", 0
        while not self.done:
            rest = text[at:]
            if any(rest.startswith(end) for end in self._ends):
                self.done = True
                out += "}" if self._n else "{}"
                break
            found = None if any(end.startswith(rest) for end in self._ends) else self._field(rest)
            if found is None:
                break
            key, value, n = found
            out += ("{" if not self._n else ", ") + f"{json.dumps(key, ensure_ascii=False)}: "
            out += json.dumps(value, ensure_ascii=False)
            self._n, at = self._n + 1, at + n
        return out, at

    def _field(self, text: str) -> tuple[str, Any, int] | None:
        """The next argument, and how long it is; None where it is not whole yet."""
        fields = self._fields
        begin = (fields.between if self._n else "") + fields.before
        if not text.startswith(begin):
            return None
        middles = filter(None, (fields.middle, fields.middle_of_others))
        key_end, middle = min(
            ((at, each) for each in middles if (at := text.find(each, len(begin))) >= 0), default=(-1, "")
        )
        if key_end < 0:
            return None
        key, at = text[len(begin) : key_end], key_end + len(middle)
        if fields.strings == "bare":
            end = text.find(fields.after, at)
            if end < 0:
                return None
            is_text = bool(fields.middle_of_others) and middle == fields.middle
            value = text[at:end] if is_text else self._bare(key, text[at:end])
            return key, value, end + len(fields.after)
        try:
            value, at = _parsed(text, at, fields.mark)
        except IndexError:
            return None
        if not text.startswith(fields.after, at) or at == len(text):
            return None
        return key, value, at + len(fields.after)

    def _bare(self, key: str, text: str) -> Any:
        if key in self._texts:
            return text
        if text in _WORDS:
            return _WORDS[text]
        try:
            return json.loads(text)
        except ValueError:
            return text


def _parsed(text: str, at: int, mark: str) -> tuple[Any, int]:
    """A value that begins at ``at``, and where it ends. Raises ``IndexError`` where the text ends in it."""
    if mark and text.startswith(mark, at):
        end = text.find(mark, at + len(mark))
        if end < 0:
            raise IndexError
        return text[at + len(mark) : end], end + len(mark)
    if mark and mark.startswith(text[at:]):
        raise IndexError
    if text[at] == '"':
        end = at + 1
        while text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        return json.loads(text[at : end + 1], strict=False), end + 1
    if text[at] in "[{":
        opened, at = text[at], _blank(text, at + 1)
        items: list[Any] = []
        pairs: dict[str, Any] = {}
        while text[at] not in "]}":
            if opened == "{":
                bare = _BARE.match(text, at)
                assert bare is not None
                key, at = (bare[0], bare.end()) if bare[0] else _parsed(text, at, mark)
                at = _blank(text, _blank(text, at) + 1)
                pairs[str(key)], at = _parsed(text, at, mark)
            else:
                item, at = _parsed(text, at, mark)
                items.append(item)
            at = _blank(text, at)
            if text[at] == ",":
                at = _blank(text, at + 1)
        return (items if opened == "[" else pairs), at + 1
    found = _BARE.match(text, at)
    assert found is not None
    text[found.end()]  # a number may go on
    if found[0] in _WORDS:
        return _WORDS[found[0]], found.end()
    try:
        return json.loads(found[0]), found.end()
    except ValueError:
        return found[0], max(found.end(), at + 1)


def _blank(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at
