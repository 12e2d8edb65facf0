"""The turns of a record as messages in OpenAI's shape: roles, texts, tool calls, tools, and what is not learned.

Tested in tests/data/chat/test_formats.py.
"""

import json
from collections import Counter
from typing import Any

from slm.data.chat.fields import (
    ASSISTANT,
    LEARNED,
    REASONING,
    SYSTEM,
    USER,
    BadRecordError,
    Fields,
    as_text,
    is_absent,
    is_empty,
    key,
    kind,
    parsed,
    spells_null,
    without_nulls,
)

Message = dict[str, Any]

ROLES = {
    **dict.fromkeys(("system", "developer", "systemprompt"), "system"),
    **dict.fromkeys(("user", "human", "prompter", "customer"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "ai", "chatbot", "gpt4", "claude"), "assistant"),
    **dict.fromkeys(("functioncall", "toolcall", "toolcalls"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "toolresponse", "functionresponse"), "tool"),
    **dict.fromkeys(("toolresult", "tooloutput", "functionresult"), "tool"),
}
"""Roles by their names in data sets (``fields.key``)."""
_PLAIN = {"role", "content"}
_PLAIN_ROLES = {role: role for role in ("system", "user", "assistant")}
_CALLS = ("functioncall", "toolcall", "toolcalls")
"""Roles with a call as content."""
_MARKS = {
    **dict.fromkeys(("false", "no", "off", "f", "n"), 0.0),
    **dict.fromkeys(("true", "yes", "on", "t", "y"), 1.0),
}
_OF_CALLS = ("id", "type", "index", "callid", "toolcallid", "tooluseid", "function", "status", "thoughtsignature")
"""Fields of a call that its text does not hold."""
_TEXT_PARTS = ("text", "inputtext", "outputtext")
_SAID = ("content", "value", "text", "parts", "message", "output")
"""Fields of a turn with what is said."""
_WRAPPED = {
    **dict.fromkeys(("tooluse", "functioncall"), "toolcall"),
    **dict.fromkeys(("toolresult", "functionresponse"), "toolresult"),
}
"""Parts without a type, each an object under its kind: Gemini's and Bedrock's interfaces have such."""
_ITEMS = {"functioncall": "functioncall", "functioncalloutput": "tool"}
"""Roles of the turns without one, by their type: OpenAI's Responses interface has such."""

NULL_KEYS = "null keys of calls and tools taken as absent"
ODD_WEIGHTS = "weights other than 0 and 1 taken as 1"
BEHIND = "messages behind the last answer left out"
UNANSWERED = "empty answers of a history not learned"
EMPTY_QUESTIONS = "empty messages of the user kept"
ANSWERED_NULL = "answers that say only None, null or the like kept"
SPELT_NULLS = "texts such as None and null taken as empty"
BESIDE_CALLS = "texts such as None and null beside calls taken as empty"


class Reading:
    """What is noticed while a record is read."""

    def __init__(self) -> None:
        self.unused: Counter[str] = Counter()
        """Fields that say something and are not used."""
        self.changed: Counter[str] = Counter()
        """What was changed or guessed, in words."""

    def plain(self, value: Any) -> Any:
        """A value without the keys that are null."""
        found = without_nulls(value)
        if found != value:
            self.changed[NULL_KEYS] += 1
        return found


def read_messages(turns: Any, reading: Reading, name: str = "messages") -> list[Message]:
    """Turns of any common shape as messages. Raises BadRecordError."""
    if isinstance(turns, str):  # some tables hold them as text
        try:
            turns = parsed(turns)
        except ValueError:
            raise BadRecordError(f"its {name} are text that is not JSON") from None
    if isinstance(turns, dict):
        turns = [turns]
    if not isinstance(turns, list | tuple) or not turns:
        raise BadRecordError(f"its list of {name} is empty" if turns in ([], ()) else f"its {name} are no list")
    messages: list[Message] = []
    if all(is_absent(turn) or isinstance(turn, str) for turn in turns):  # question, answer, question, ...
        roles = ("user", "assistant")
        return [{"role": roles[at % 2], "content": as_text(text)} for at, text in enumerate(turns)]
    of_calls = False
    for number, turn in enumerate(turns, 1):
        if is_absent(turn) or (isinstance(turn, dict) and is_empty(turn)):
            continue
        if isinstance(turn, list | tuple) and len(turn) == 2:
            messages += pair(*turn)
            continue
        if not isinstance(turn, dict):
            raise BadRecordError(f"message {number} is {kind(turn)}, not an object with role and content")
        found, calls = _turn(turn, number, reading, name)
        before = messages[-1] if messages else {}
        if calls and before.get("role") == "assistant" and (of_calls or "tool_calls" not in before):
            # A call is the end of what the assistant says before it, or of other calls.
            before.setdefault("tool_calls", []).extend(found[0]["tool_calls"])
        else:
            messages += found
        of_calls = calls
    return messages


def pair(asked: Any, answered: Any) -> list[Message]:
    """A question and its answer."""
    return [{"role": "user", "content": as_text(asked)}, {"role": "assistant", "content": as_text(answered)}]


def _turn(turn: dict[str, Any], number: int, reading: Reading, name: str) -> tuple[list[Message], bool]:
    """The messages of a turn, and whether it is a call that stands alone."""
    if turn.keys() == _PLAIN and isinstance(turn["content"], str) and (role := _PLAIN_ROLES.get(str(turn["role"]))):
        return [{"role": role, "content": turn["content"]}], False  # what most turns are, read at once
    fields = Fields(turn)
    role_field = fields.find("role", "from", "speaker", "author", "sender")
    item = _ITEMS.get(key(str(turn.get("type")))) if role_field is None else None
    if role_field is None and item is None and fields.has(*SYSTEM, *USER, *ASSISTANT, "input"):
        messages = _both(fields)
        _note(fields, reading, name)
        return messages, False
    given = fields.get("role", "from", "speaker", "author", "sender")
    if isinstance(given, dict):  # ``author: {"role": ...}``
        given = given.get("role")
    if item is not None:
        given = item
        fields.get("type")
    as_key = key(given) if isinstance(given, str) else ""
    if as_key not in ROLES:
        raise BadRecordError(f"message {number} has the role {given!r}; known are system, user, assistant and tool")
    role = ROLES[as_key]
    if item is not None and as_key in _CALLS:
        return [{"role": role, "content": "", "tool_calls": _calls_in(turn, number, reading)}], True
    content = fields.get(*_SAID)
    if as_key in _CALLS:
        calls = _calls_in(content if not is_empty(content) else fields.get("toolcalls"), number, reading)
        message: Message = {"role": role, "content": "", "tool_calls": calls}
        return _with_mark([message], fields, reading, name), True
    if role == "system" and is_absent(content):
        _note(fields, reading, name)
        return [], False
    said = _Parts(content, role, number, reading)
    message = {"role": role, "content": said.text}
    if role == "assistant":
        calls = said.calls
        if fields.has("toolcalls"):
            calls = [*calls, *_calls_in(fields.get("toolcalls"), number, reading)]
        older = fields.get("functioncall")  # OpenAI's older form
        if not calls and not is_empty(older) and (not isinstance(older, dict) or not is_empty(older.get("name"))):
            calls = _calls_in(older, number, reading)
        if calls:
            message["tool_calls"] = calls
            if spells_null(said.text):
                message["content"] = ""
                reading.changed[BESIDE_CALLS] += 1
        if thought := said.reasoning or reasoning_text(fields, reading):
            message["reasoning_content"] = thought
    for kept, names in (("name", ("name",)), ("tool_call_id", ("toolcallid", "callid"))):
        if fields.has(*names) and isinstance(value := fields.get(*names), str):
            message[kept] = value
    results = said.results
    messages = [*results, message] if said.text.strip() or not results else results
    return _with_mark(messages, fields, reading, name), False


def _with_mark(messages: list[Message], fields: Fields, reading: Reading, name: str) -> list[Message]:
    """The messages of a turn, the assistant's with its mark of not being learned."""
    answers = messages[-1]["role"] == "assistant"
    # Nothing but answers is learned, so other messages say with these marks what is so anyway.
    if not is_learned(fields, reading if answers else Reading()) and answers:
        messages[-1]["weight"] = 0
    _note(fields, reading, name)
    return messages


def reasoning_text(fields: Fields, reading: Reading) -> str:
    """The reasoning of an object: text, a list of texts, or an object with text."""
    thought = fields.value(*REASONING)
    parts = thought if isinstance(thought, list | tuple) else [thought]
    texts = [
        Fields(each).value("text", "content", "thinking", "reasoning") if isinstance(each, dict) else each
        for each in parts
        if not is_empty(each)
    ]
    if not texts or not all(isinstance(each, str) for each in texts):
        return ""
    fields.get(*REASONING)
    said = [each for each in texts if not spells_null(each)]
    if len(said) < len(texts):
        reading.changed[SPELT_NULLS] += 1
    return "\n\n".join(said)


def _note(fields: Fields, reading: Reading, name: str) -> None:
    reading.unused.update(f"{name}.{each}" for each in fields.unused())


def _both(fields: Fields) -> list[Message]:
    """A turn of a question and its answer, or of one of the two."""
    messages: list[Message] = []
    names = {"system": SYSTEM, "user": (*USER, "input"), "assistant": ASSISTANT}
    for role, keys in names.items():
        if fields.has(*keys):
            messages.append({"role": role, "content": as_text(fields.get(*keys))})
    if messages and messages[-1]["role"] == "assistant" and not is_learned(fields, Reading()):
        messages[-1]["weight"] = 0
    return messages


def is_learned(fields: Fields, reading: Reading) -> bool:
    """Whether an object's marks (``weight``, ``train``, ...) leave its answer to be learned.

    A value that is neither true nor false is no mark: its field stays unused.
    """
    learned = True
    for name in LEARNED if fields.names(*LEARNED) else ():
        value = fields.value(name)
        number = _number(value)
        if number is None:
            continue
        fields.get(name)
        learned = learned and number != 0
        if number not in (0, 1):
            reading.changed[ODD_WEIGHTS] += 1
    return learned


def _number(mark: Any) -> float | None:
    """A mark as a number: 0 for false."""
    if isinstance(mark, str):
        word = mark.strip().lower()
        if word in _MARKS:
            return _MARKS[word]
        try:
            return float(word)
        except ValueError:
            return None
    return float(mark) if isinstance(mark, bool | int | float) and not is_absent(mark) else None


class _Parts:
    """A message's content: text, or a list of parts, as OpenAI's and Anthropic's interfaces take them."""

    def __init__(self, content: Any, role: str, number: int, reading: Reading) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.results: list[Message] = []
        if isinstance(content, dict) and role != "tool" and not isinstance(content.get("type"), str):
            content = _inner(content)
        parts = content if isinstance(content, list | tuple) else [content]
        if role == "tool" and not _are_texts(parts):
            wrapped = _alone(parts[0], "json") if len(parts) == 1 else None  # as Bedrock has it
            self.text = as_text(content if wrapped is None else wrapped)  # a result may be any object
            return
        for part in parts:
            if is_absent(part):
                continue
            if isinstance(part, str):
                self.text += part
            elif isinstance(part, int | float) and not isinstance(content, list):
                self.text += as_text(part)
            elif isinstance(part, dict):
                self._add(part, role, number, reading)
            else:
                raise BadRecordError(f"the content of message {number} is {kind(content)}, not text")

    def _add(self, part: dict[str, Any], role: str, number: int, reading: Reading) -> None:
        fields = Fields(part)
        inner = None if part.get("type") else next((each for each in _WRAPPED if fields.has(each)), None)
        if inner and isinstance(fields.value(inner), dict):
            part = fields.get(inner)
            _note(fields, reading, "content")
            fields, what = Fields(part), _WRAPPED[inner]
        else:
            what = str(part.get("type") or ("text" if fields.has("text") or "text" in part else "")).replace("_", "")
        if what in _TEXT_PARTS and role == "assistant" and fields.value("thought") is True:  # Gemini's
            self.reasoning += as_text(fields.get("text"))
        elif what in _TEXT_PARTS:
            fields.get("type")
            text = fields.get("text", "content", "value")
            if isinstance(text, dict):  # OpenAI's assistants have it one deeper
                text = Fields(text).get("value", "text", "content")
            self.text += as_text(text)
            _note(fields, reading, "content")
        elif what in ("thinking", "reasoning") and role == "assistant":
            self.reasoning += as_text(fields.get("thinking", "reasoning", "text"))
        elif what in ("tooluse", "toolcall", "functioncall") and role == "assistant":
            self.calls += _calls_in(part, number, reading)
        elif what == "toolresult":
            returned = fields.get("content", "response", "output", "result")
            result: Message = {"role": "tool", "content": _Parts(returned, "tool", number, reading).text}
            for kept, names in (("tool_call_id", ("tooluseid", "toolcallid", "id")), ("name", ("name",))):
                if isinstance(made := fields.get(*names), str):
                    result[kept] = made
            self.results.append(result)
        else:
            is_part = isinstance(part.get("type"), str)
            shown = f"holds a part of the type {part['type']!r}" if is_part else "is an object"
            raise BadRecordError(f"the content of message {number} is not text: it {shown}")


def _are_texts(parts: Any) -> bool:
    """Whether parts are texts, or nothing."""
    return all(
        is_absent(part)
        or isinstance(part, str)
        or (isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text"))
        or isinstance(_alone(part, "text"), str)
        for part in parts
    )


def _inner(content: dict[str, Any]) -> Any:
    """What an object that is a turn's whole content says: ``{"parts": [...]}``, ``{"text": ...}``; else the object."""
    fields = Fields(content)
    found = fields.find("parts", "text", "content", "value")
    return content if found is None or isinstance(content[found], dict) else content[found]


def _alone(part: Any, name: str) -> Any:
    """What a part holds under ``name`` if that is all that it holds, else None."""
    said = [each for each, value in part.items() if not is_absent(value)] if isinstance(part, dict) else []
    return part[name] if said == [name] else None


def _calls_in(calls: Any, number: int, reading: Reading) -> list[dict[str, Any]]:
    if isinstance(calls, str):
        try:
            calls = None if spells_null(calls) else parsed(calls)
        except ValueError:
            raise BadRecordError(f"the tool call of message {number} is not JSON") from None
    if isinstance(calls, dict) or is_absent(calls):
        calls = [calls]
    if not isinstance(calls, list | tuple):
        raise BadRecordError(f"the tool calls of message {number} are no list")
    return [made for call in calls if not is_empty(call) and (made := tool_call(call, number, reading))]


def tool_call(call: Any, number: int, reading: Reading) -> dict[str, Any] | None:
    """A call in OpenAI's shape, its arguments as an object; None where all of its fields are null.

    Raises BadRecordError for one without a name, and for arguments that are no object.
    """
    if isinstance(call, str):
        try:
            call = parsed(call)
        except ValueError:
            raise BadRecordError(f"the tool call of message {number} is not JSON") from None
    given = call if isinstance(call, dict) else {}
    inner = given.get("function")
    if isinstance(inner, str) and inner.lstrip().startswith("{"):  # the function as text
        try:
            inner = parsed(inner)
        except ValueError:
            raise BadRecordError(f"the tool call of message {number} holds a function that is not JSON") from None
    function = inner if isinstance(inner, dict) and not is_empty(inner) else given
    fields = Fields(function)
    name = fields.get("name", "toolname", "functionname") if inner is None or function is inner else None
    arguments = fields.get("arguments", "parameters", "input", "args", "kwargs", "argument", "params")
    if name is None and isinstance(inner, str):
        name = inner
    if isinstance(inner, dict) and inner and all(is_absent(each) for each in inner.values()):
        return None  # what Arrow leaves of a call that is not there
    if not isinstance(name, str) or not name.strip():
        raise BadRecordError(f"the tool call of message {number} has no name")
    made: dict[str, Any] = {"type": "function", "function": {"name": name}}
    made["function"]["arguments"] = _arguments(arguments, number, reading)
    reading.unused.update(f"tool_calls.{each}" for each in fields.unused() if key(each) not in _OF_CALLS)
    id = Fields(given).value("id", "callid", "tooluseid") if call is given else None
    return made | ({"id": id} if isinstance(id, str) else {})


def _arguments(arguments: Any, number: int, reading: Reading) -> dict[str, Any]:
    where = f"the arguments of the tool call of message {number}"
    as_object = not isinstance(arguments, str)
    for _ in range(2):  # some data sets have the text of a text
        if isinstance(arguments, str):
            try:
                arguments = parsed(arguments) if arguments.strip() else None
            except (ValueError, RecursionError):
                raise BadRecordError(f"{where} are not JSON") from None
    if is_absent(arguments):
        return {}
    if as_object:  # in text, a null was written by somebody
        arguments = reading.plain(arguments)
    if arguments == []:  # an empty map of Arrow's, or an empty object of PHP's
        return {}
    if not isinstance(arguments, dict):
        raise BadRecordError(f"{where} are {kind(arguments)}, not an object")
    return arguments


def read_tools(tools: Any, reading: Reading) -> list[dict[str, Any]]:
    """Tools in OpenAI's shape, from a list of them, or of functions, or its text. Raises BadRecordError."""
    as_text = isinstance(tools, str)
    if as_text:
        try:
            tools = [] if is_empty(tools) or spells_null(tools) else parsed(tools)
        except ValueError:
            raise BadRecordError("its tools are text that is not JSON") from None
    if is_empty(tools):
        return []
    if isinstance(tools, dict):
        tools = tools["tools"] if isinstance(tools.get("tools"), list) else [tools]
    if not isinstance(tools, list | tuple):
        raise BadRecordError("its tools are no list")
    listed = [inner for each in tools for inner in (_declared(each) or [each])]
    return [_tool(each, reading, as_text) for each in listed if not is_empty(each)]


def _declared(tool: Any) -> Any:
    """Gemini's list of functions in one tool; Bedrock's tool in its wrapping; else None."""
    if not isinstance(tool, dict):
        return None
    fields = Fields(tool)
    if isinstance(spec := fields.value("toolspec"), dict):
        schema = Fields(spec).value("inputschema")
        schema = schema.get("json", schema) if isinstance(schema, dict) else schema
        return [{"name": spec.get("name"), "description": spec.get("description"), "parameters": schema}]
    found = fields.value("functiondeclarations")
    return found if isinstance(found, list) else None


def _tool(tool: Any, reading: Reading, as_text: bool) -> dict[str, Any]:
    """``as_text``: it stood in a text, so that its nulls were written by somebody."""
    if isinstance(tool, str):
        as_text = True
        try:
            tool = json.loads(tool)
        except ValueError:
            raise BadRecordError("its tools hold text that is not JSON") from None
    tool = tool if as_text else reading.plain(tool)
    if not isinstance(tool, dict):
        raise BadRecordError(f"its tools hold {kind(tool)}, not objects")
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecordError("one of its tools has no name")
    if isinstance(function.get("parameters"), str):
        try:
            parameters = parsed(function["parameters"]) if function["parameters"].strip() else None
        except ValueError:
            raise BadRecordError(f"the parameters of its tool {function['name']!r} are not JSON") from None
        function = function | {"parameters": parameters}
    function = {name: each for name, each in function.items() if not is_absent(each)}
    if "input_schema" in function:  # Anthropic's name
        function = {("parameters" if name == "input_schema" else name): each for name, each in function.items()}
    if "function" in tool:
        return tool | {"function": function}
    return {"type": "function", "function": {name: each for name, each in function.items() if name != "type"}}


def check(messages: list[Message], reading: Reading) -> None:
    """Every answer says something, and there is one. What follows the last answer is taken away: nothing answers it."""
    n = len(messages)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise BadRecordError("no assistant answers in it")
    if len(messages) < n:
        reading.changed[BEHIND] += 1
    if nulls := sum(each["role"] == "assistant" and spells_null(each["content"]) for each in messages):
        reading.changed[ANSWERED_NULL] += nulls
    if empty := sum(each["role"] == "user" and not each["content"].strip() for each in messages):
        reading.changed[EMPTY_QUESTIONS] += empty
    for number, message in enumerate(messages, 1):
        said = message["content"].strip() or message.get("tool_calls")
        if message["role"] == "assistant" and not said and message.get("weight") != 0:
            raise BadRecordError(f"the assistant's message {number} is empty")
    if messages[0]["role"] == "assistant" and len(messages) == 1:
        raise BadRecordError("nothing is asked in it")
