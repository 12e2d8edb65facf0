"""Fields of records by the names that data sets give them: any spelling, and none that is empty hides another.

Tested in tests/data/chat/test_formats.py.
"""

import ast
import functools
import json
import re
from collections.abc import Iterable
from typing import Any


class BadRecordError(ValueError):
    """A record that is no conversation; the text says why."""


USER = (
    *("prompt", "question", "query", "instruction", "user", "human", "problem", "request", "q"),
    *("questiontext", "prompttext", "userinput", "usermessage", "userprompt", "ask", "message"),
)
"""Names of what is asked, the likeliest first. ``input`` and ``source`` count where none of these is there."""
ASSISTANT = (
    *("completion", "response", "output", "solution", "answer", "target", "reply", "assistant", "gpt", "bot"),
    *("modelresponse", "a", "answertext", "completiontext", "responsetext", "modeloutput", "assistantmessage"),
    *("targets", "ai"),
)
CONTEXT = ("input", "inputs", "context", "contexts", "passage", "background", "paragraph", "article")
"""Names of what a question is about."""
SYSTEM = ("system", "systemprompt", "systemmessage", "sys", "sysprompt", "systeminstruction")
TOOLS = ("tools", "functions", "availabletools", "toolconfig")
REASONING = ("reasoningcontent", "reasoning", "thinking", "thought", "thoughts")
LEARNED = (
    *("weight", "train", "trainable", "loss", "training", "learn", "istrainable", "trainon", "lossweight", "lossmask"),
    *("includeinloss", "computeloss"),
)
"""Names of marks that say whether an answer is learned."""
_NULLS = ("none", "null", "nan", "nil", "n/a", "<na>", "<noinput>")


@functools.lru_cache(maxsize=4096)
def key(name: str) -> str:
    """A name in lower case without spaces, hyphens, underscores and colons: ``System Prompt:`` is ``systemprompt``."""
    return re.sub(r"[\s_\-:]", "", name.lower())


def is_absent(value: Any) -> bool:
    """Whether a value is null, in JSON, in a table, or as pandas writes it."""
    return value is None or (isinstance(value, float) and value != value)


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, blank text, a list or an object in which nothing does."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, dict):
        return all(map(is_empty, value.values()))
    return all(map(is_empty, value)) if isinstance(value, list | tuple) else is_absent(value)


def spells_null(value: Any) -> bool:
    """Whether a text is what a null becomes where somebody writes it as text: Python's, JSON's, pandas' or Alpaca's."""
    return isinstance(value, str) and value.strip().lower() in _NULLS


class Fields:
    """The fields of an object, each by any of its names. It knows which of them were used."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = {str(name): value for name, value in values.items()}
        self._names: dict[str, list[str]] = {}
        for name in self._values:
            self._names.setdefault(key(name), []).append(name)
        self._used: set[str] = set()

    def find(self, *names: str) -> str | None:
        """The first of the fields that says something, one that does not spell null before others; None where none
        does."""
        found = [each for each in self._of(names) if not is_empty(self._values[each])]
        return next((each for each in found if not spells_null(self._values[each])), found[0] if found else None)

    def has(self, *names: str) -> bool:
        """Whether one of the fields says something."""
        return self.find(*names) is not None

    def value(self, *names: str) -> Any:
        """The first of the fields that says something, else None: it does not count as used yet."""
        found = self.find(*names)
        return None if found is None else self._values[found]

    def names(self, *names: str) -> list[str]:
        """The names of these fields as the object has them; without ``names`` of all."""
        return list(self._of(names)) if names else list(self._values)

    def get(self, *names: str) -> Any:
        """The first of the fields that says something, else the first that is not null, else None: it counts as used.

        Fields that say nothing hide none of the others.
        """
        found = self.find(*names)
        if found is None:
            found = next((each for each in self._of(names) if not is_absent(self._values[each])), None)
        if found is None:
            return None
        self._used.add(found)
        return self._values[found]

    def unused(self) -> list[str]:
        """The names of the fields that say something and were not used."""
        return [name for name, value in self._values.items() if name not in self._used and not is_empty(value)]

    def repeating(self, texts: Iterable[str]) -> None:
        """Fields count as used if their text stands in the conversation: some data sets have the question again."""
        said = {text.strip() for text in texts}
        for name in self.unused():
            value = self._values[name]
            if isinstance(value, str) and value.strip() in said:
                self._used.add(name)

    def _of(self, names: tuple[str, ...]) -> Iterable[str]:
        return (each for name in names for each in self._names.get(name, ()))


def kind(value: Any) -> str:
    """What a value is, in words."""
    names = {list: "a list", str: "text", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return "empty" if is_absent(value) else names.get(type(value), type(value).__name__)


def parsed(text: str) -> Any:
    """A value that a column holds as text: JSON, or Python's own spelling, as pandas writes lists into CSV files.

    Raises ValueError.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError("neither JSON nor a list of Python") from None


def without_nulls(value: Any) -> Any:
    """An object without keys of value null, at any depth.

    Arrow gives each object of a column the keys of all others.
    """
    if isinstance(value, dict):
        return {str(name): without_nulls(each) for name, each in value.items() if not is_absent(each)}
    if isinstance(value, list | tuple):
        if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):  # Arrow's maps
            return {str(name): without_nulls(each) for name, each in value if not is_absent(each)}
        return [without_nulls(each) for each in value]
    return value


def joined(value: Any) -> str:
    """Passages as text, with blank lines between them; any other value as ``as_text`` has it."""
    if isinstance(value, list | tuple) and all(is_absent(each) or isinstance(each, str) for each in value):
        return "\n\n".join(each for each in value if not is_empty(each))
    return as_text(value)


def as_text(value: Any) -> str:
    """A value as text: text itself, JSON, or of a table's dates and decimals their own text. Null is empty."""
    if is_absent(value):
        return ""
    if isinstance(value, dict | list | tuple | bool | int | float):
        return json.dumps(without_nulls(value), ensure_ascii=False, default=str)
    return str(value)
