"""Random schemas of the kinds that are found in published collections: objects, patterns, formats, references, tuples,
lists of values, nested arrays, combinations, and properties without names."""

import random

_NAMES = ("id", "name", "kind", "value", "tags", "items", "created at", "größe", "a/b", "x~y", '"quoted"', "$ref")
_PATTERNS = (r"^[a-z]{2,5}$", r"^\d{3}-\d{4}$", r"^(red|green|blue)$", r"^[A-Z]\w*$", r"^#[0-9a-fA-F]{6}$", r"[0-9]",
             r"^v\d+\.\d+$", r"^[^\s/]{1,4}$", r"^\u0041[\d\-]?$", r"^(?!x)y", r"^a{2}|b+?$")  # fmt: skip
_FORMATS = ("date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6", "uri",
            "uri-reference", "json-pointer", "regex", "path", "int32")  # fmt: skip
_VALUES = ("red", "grün", "", 0, -3, 2.5, None, True, [1, "x"], {"k": None})


def schema(seed):
    """The same one for the same seed."""
    return _Writer(random.Random(seed)).document()


class _Writer:
    def __init__(self, chance):
        self._chance = chance
        self._defs = [f"D{i}" for i in range(chance.randrange(4))]
        self._key = chance.choice(("$defs", "definitions"))

    def document(self):
        made = self._object(3)
        if self._defs:
            made[self._key] = {name: self._any(2) for name in self._defs}
        new, old = "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"
        made["$schema"] = new if self._key == "$defs" else old
        return made

    def _any(self, depth):
        leaves = (self._string, self._number, self._values, self._simple, self._reference)
        if depth <= 0 or self._chance.random() < 0.4:
            return self._chance.choice(leaves)()
        nodes = (self._object, self._array, self._tuple, self._map, self._any_of, self._all_of)
        return self._chance.choice((*nodes, self._object, self._array))(depth - 1)

    def _maybe(self, made, share, key, value):
        if self._chance.random() < share:
            made[key] = value

    def _simple(self):
        return self._chance.choice(
            ({"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 9}, {}, True)
        )

    def _string(self):
        made = {"type": "string"}
        self._maybe(made, 0.3, "pattern", self._chance.choice(_PATTERNS))
        if len(made) == 1:
            self._maybe(made, 0.3, "format", self._chance.choice(_FORMATS))
        if len(made) == 1:
            self._maybe(made, 0.4, "minLength", self._chance.randrange(3))
            self._maybe(made, 0.6, "maxLength", self._chance.randrange(3, 2000))
        self._maybe(made, 0.2, "description", "a text")
        return made

    def _number(self):
        made = {"type": self._chance.choice(("integer", "number"))}
        low = self._chance.randrange(-1000, 1000)
        self._maybe(made, 0.4, self._chance.choice(("minimum", "exclusiveMinimum")), low)
        high = low + self._chance.randrange(20, 500)
        self._maybe(made, 0.4, self._chance.choice(("maximum", "exclusiveMaximum")), high)
        if made["type"] == "integer":
            self._maybe(made, 0.1, "multipleOf", self._chance.choice((2, 5)))
        return made

    def _values(self):
        if self._chance.random() < 0.3:
            return {"const": self._chance.choice(_VALUES)}
        values = self._chance.sample(_VALUES, self._chance.randrange(1, 5))
        texts = [each for each in values if isinstance(each, str)]
        return {"type": "string", "enum": texts} if texts and self._chance.random() < 0.5 else {"enum": values}

    def _reference(self):
        if not self._defs:
            return self._string()
        made = {"$ref": f"#/{self._key}/{self._chance.choice(self._defs)}"}
        self._maybe(made, 0.3, "description", "next to a reference")
        return made

    def _object(self, depth):
        names = self._chance.sample(_NAMES, self._chance.randrange(1, 6))
        made = {"type": "object", "properties": {name: self._any(depth) for name in names}}
        # References are never required, so that every value has an end.
        ends = [name for name, each in made["properties"].items() if "$ref" not in str(each)]
        self._maybe(made, 0.7, "required", self._chance.sample(ends, self._chance.randrange(len(ends) + 1)))
        self._maybe(made, 0.4, "additionalProperties", self._chance.choice((False, False, True, {"type": "integer"})))
        self._maybe(made, 0.1, "minProperties", 1)
        self._maybe(made, 0.1, "x-order", 3)
        return made

    def _map(self, depth):
        if self._chance.random() < 0.5:
            return {"type": "object", "additionalProperties": self._any(depth)}
        made = {"type": "object", "patternProperties": {"^[a-z]+_id$": self._any(depth)}}
        self._maybe(made, 0.7, "additionalProperties", False)
        return made

    def _array(self, depth):
        made = {"type": "array", "items": self._any(depth)}
        self._maybe(made, 0.3, "maxItems", self._chance.randrange(2, 5000))
        self._maybe(made, 0.1, "uniqueItems", True)
        if "$ref" not in str(made):
            self._maybe(made, 0.3, "minItems", self._chance.randrange(3))
        return made

    def _tuple(self, depth):
        first = [self._any(depth) for _ in range(self._chance.randrange(1, 4))]
        if self._key == "definitions":
            made = {"type": "array", "items": first}
            self._maybe(made, 0.5, "additionalItems", False)
        else:
            made = {"type": "array", "prefixItems": first}
            self._maybe(made, 0.5, "items", False)
        return made

    def _any_of(self, depth):
        key = self._chance.choice(("anyOf", "anyOf", "oneOf"))
        return {key: [self._any(depth) for _ in range(self._chance.randrange(2, 4))] + [{"type": "null"}]}

    def _all_of(self, depth):
        a, b = self._object(depth), self._object(depth)
        for name in a["properties"].keys() & b["properties"].keys():
            b["properties"][name] = {}
        for each in (a, b):
            each.pop("additionalProperties", None)
        return {"allOf": [a, b]}
