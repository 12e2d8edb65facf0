"""Conversations from records of the usual formats, told apart by their fields.

A conversation is ``{"messages": [...]}`` in OpenAI's shape, with ``"tools"`` where it has any. It
travels through the streams of documents in this shape, as one line of JSON.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from slm.data.chat import marked_text, message_trees
from slm.data.chat.fields import (
    ASSISTANT,
    CONTEXT,
    SYSTEM,
    TOOLS,
    USER,
    BadRecordError,
    Fields,
    as_text,
    is_absent,
    is_empty,
    joined,
    kind,
    parsed,
    spells_null,
)
from slm.data.chat.messages import (
    SPELT_NULLS,
    UNANSWERED,
    Message,
    Reading,
    check,
    is_learned,
    read_messages,
    read_tools,
    reasoning_text,
    tool_call,
)

Format = Literal[
    "messages",
    "conversations",
    "instruction",
    "prompt/completion",
    "question/answer",
    "calls",
    "preference",
    "marked text",
    "tree",
]

TITLES: dict[Format, str] = {
    "messages": "OpenAI messages",
    "conversations": "ShareGPT conversations",
    "instruction": "Alpaca instructions",
    "prompt/completion": "prompts with completions",
    "question/answer": "questions with answers",
    "calls": "questions with tool calls",
    "preference": "preference pairs",
    "marked text": "texts with the speakers' marks",
    "tree": "message trees",
}
"""What a format is called in messages."""

EXPECTED = (
    "messages, conversations, instruction and output, prompt and completion, question and answer, or chosen and "
    "rejected; data.columns={user: NAME, assistant: NAME} names others"
)
VERSION = 4
"""Changes where the same records become other conversations: it is part of the text's fingerprint."""

_TURNS = (
    *("conversations", "conversation", "dialogue", "dialog", "dialogs", "turns", "chat", "data"),
    *("contents", "chatmessages"),
)
_CHOSEN = (
    *("chosen", "chosenresponse", "responsechosen", "responsej", "chosenmessages", "accepted", "preferred"),
    *("preferredoutput", "win"),
)
_REJECTED = (
    *("rejected", "rejectedresponse", "responserejected", "responsek", "rejectedmessages", "rejectedanswer"),
    *("dispreferred", "nonpreferredoutput", "lose"),
)
_CALLS = ("answers", "toolcalls", "functioncalls", "calls")

TOOLS_TWICE = "tools left to the system message, which lists them"
REPLACED = "characters that text cannot hold replaced by U+FFFD"
OTHER_ANSWERS = "further answers to a question left out"
OTHER_REPLIES = "replies of message trees that are not the best-ranked ones left out"


class Read(NamedTuple):
    """What a record holds."""

    kind: Format
    conversation: dict[str, Any]
    """``messages``, with ``tools`` where it has any; of a preference pair the chosen answer, and ``rejected``."""
    reading: Reading
    """What was not used, and what was changed."""


def read_record(record: Any, columns: Mapping[str, str] | None = None) -> Read:
    """A record's format and its conversation, checked. Raises BadRecordError.

    ``columns`` names the record's own columns by what they hold (``data.columns``); then no others count.
    """
    if isinstance(record, list) and record and all(isinstance(each, dict) for each in record):
        record = {"messages": record}
    if not isinstance(record, dict):
        raise BadRecordError(f"it is {kind(record)}, not an object with fields")
    if isinstance(record.get("mapping"), dict) and "current_node" in record:
        record = {"messages": message_trees.shown(record["mapping"], record["current_node"])}
    fields, reading = Fields(_renamed(record, columns) if columns else record), Reading()
    found, read = _layout(fields)
    if not is_learned(fields, reading):
        raise BadRecordError("it is marked not to be learned")
    tools = read_tools(fields.get(*TOOLS), reading)
    conversation = read(fields, reading)
    messages = conversation["messages"]
    _add_system(messages, fields, reading)
    check(messages, reading)
    _add_reasoning(messages, fields, reading)
    if "rejected" in conversation:
        if messages[0]["role"] == "system" and conversation["rejected"][0]["role"] != "system":
            conversation["rejected"].insert(0, messages[0])
        check(conversation["rejected"], reading)
    if found == "prompt/completion" and not _is_wanted(fields):
        raise BadRecordError("its answer is marked as one that is not wanted (label)")
    tools = tools or conversation.pop("tools", [])
    if tools and _lists_tools(messages, tools):
        reading.changed[TOOLS_TWICE] += 1
        tools = []
    fields.repeating(message["content"] for message in messages)
    reading.unused.update(fields.unused())
    if columns:
        reading.unused.update(n for n, v in record.items() if n not in columns.values() and not is_empty(v))
    conversation = {"messages": messages} | ({"tools": tools} if tools else {}) | _rest(conversation)
    if _is_broken(to_document(conversation)):
        conversation = _well_formed(conversation)
        reading.changed[REPLACED] += 1
    return Read(found, conversation, reading)


def format_of(record: Any) -> Format:
    """The format of a record, by its fields. Raises BadRecordError where none is known."""
    if not isinstance(record, dict):
        raise BadRecordError(f"it is {kind(record)}, not an object with fields")
    return _layout(Fields(record))[0]


def to_document(conversation: dict[str, Any]) -> str:
    """The conversation as one line of JSON."""
    return json.dumps(conversation, ensure_ascii=False)


def from_document(document: str) -> dict[str, Any]:
    """The conversation of ``to_document``."""
    return json.loads(document)


def plain_text(document: str) -> str:
    """What is said in a conversation, without roles and marks: messages separated by blank lines."""
    return "\n\n".join(each["content"] for each in from_document(document)["messages"] if each["content"])


Layout = Callable[[Fields, Reading], dict[str, Any]]


def _layout(fields: Fields) -> tuple[Format, Layout]:
    """What a record's fields say of its format, and how it is read."""
    answers = fields.has(*ASSISTANT)
    if fields.has(*_REJECTED) and (fields.has(*_CHOSEN) or fields.has("messages")):
        return "preference", _preference
    if isinstance(prompt := fields.value("prompt"), dict) and "replies" in prompt:
        return "tree", _tree
    for name in ("messages", *_TURNS, "text"):
        if marked_text.turns(fields.value(name)):
            return "marked text", _marked(name)
        if name != "text" and _are_turns(fields.value(name)):
            return "messages" if name == "messages" else "conversations", _turns(name)
    if fields.has(*USER) and fields.has(*TOOLS) and fields.has(*_CALLS):
        return "calls", _with_calls
    if fields.has("instruction") and answers:
        return "instruction", _instruction
    if fields.has("prompt") and fields.has("completion", "response"):
        return "prompt/completion", _completion
    if isinstance(fields.value(*USER), list | dict) and answers:
        return "prompt/completion", _completion
    if answers and not fields.has(*USER) and _asks(fields.value("input")):
        return "prompt/completion", _completion
    if (fields.has(*USER, *CONTEXT) and (answers or fields.has("answers"))) or _is_pair(fields, "source", "target"):
        return "question/answer", _instruction
    if fields.has("parentid", "messagetreeid"):
        raise BadRecordError("it is one message of a tree, and the tree's other messages do not stand next to it")
    if empty := [each for name in ("messages", *_TURNS) for each in fields.names(name) if not fields.has(name)]:
        raise BadRecordError(f"its list of {empty[0]} is empty")
    if fields.names(*_CHOSEN) or fields.names(*_REJECTED):
        lacks = "rejected" if fields.has(*_CHOSEN) else "chosen"
        raise BadRecordError(f"of its pair of answers the {lacks} one is empty or is not there")
    asked, said = fields.names(*USER), fields.names(*ASSISTANT, "answers")
    if asked and said and not ((answers or fields.has("answers")) and fields.has(*USER)):
        raise BadRecordError(f"its {(said if fields.has(*USER) else asked)[0]} is empty")
    names = ", ".join(sorted(fields.names())[:8]) or "none"
    raise BadRecordError(f"its fields ({names}) are of no known format; expected {EXPECTED}")


def _are_turns(value: Any) -> bool:
    """Whether a field holds turns: a list, or the text of one."""
    return isinstance(value, list | tuple) or (isinstance(value, str) and value.lstrip().startswith(("[", "{")))


def _asks(value: Any) -> bool:
    """Whether a prompt holds messages: a list of them, or an object with one."""
    if isinstance(value, dict):
        value = value.get("messages")
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, dict) for each in value)


def _is_pair(fields: Fields, asked: str, answer: str) -> bool:
    return fields.has(asked) and fields.has(answer)


def _said(messages: list[Message]) -> dict[str, Any]:
    return {"messages": messages}


def _rest(conversation: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in conversation.items() if name not in ("messages", "tools")}


def _renamed(record: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """What the named columns hold, by the names of ``data.columns``, and nothing else."""
    missing = next((name for name in columns.values() if name not in record), None)
    if missing is not None:
        names = ", ".join(map(repr, record)) or "none"
        raise BadRecordError(f"it has no column {missing!r}; its columns are {names}: set data.columns")
    return {own: record[name] for own, name in columns.items()}


def _turns(name: str) -> Layout:
    def read(fields: Fields, reading: Reading) -> dict[str, Any]:
        return _said(read_messages(fields.get(name), reading, fields.names(name)[0]))

    return read


def _marked(name: str) -> Layout:
    def read(fields: Fields, reading: Reading) -> dict[str, Any]:
        return marked_text.read(fields.get(name), fields.get(*SYSTEM), reading)

    return read


def _add_system(messages: list[Message], fields: Fields, reading: Reading) -> None:
    """The record's own system message before the others, where they have none."""
    if messages and messages[0]["role"] != "system" and fields.has(*SYSTEM):
        system = fields.get(*SYSTEM)
        if isinstance(system, dict):
            system = Fields(system).get("content", "value", "text", "parts")
        if isinstance(system, list):
            system = "".join(as_text(each.get("text") if isinstance(each, dict) else each) for each in system)
        if not isinstance(system, str):
            raise BadRecordError(f"its system message is {kind(fields.get(*SYSTEM))}, not text")
        if spells_null(system):
            reading.changed[SPELT_NULLS] += 1
        else:
            messages.insert(0, {"role": "system", "content": system})


def _add_reasoning(messages: list[Message], fields: Fields, reading: Reading) -> None:
    """The record's own reasoning belongs to its only answer."""
    answers = [each for each in messages if each["role"] == "assistant"]
    if len(answers) == 1 and "reasoning_content" not in answers[0] and (thought := reasoning_text(fields, reading)):
        answers[0]["reasoning_content"] = thought


def _is_wanted(fields: Fields) -> bool:
    """False for an answer that somebody disliked (``label: false``, as in KTO's data)."""
    label = fields.value("label")
    if isinstance(label, bool) or str(label).strip().lower() in ("true", "false"):
        fields.get("label")
        return str(label).strip().lower() != "false"
    return True


def _lists_tools(messages: list[Message], tools: list[dict[str, Any]]) -> bool:
    """Whether the system message describes the tools already: some data sets have them in both places."""
    said = messages[0]["content"] if messages[0]["role"] == "system" else ""
    names = [tool["function"]["name"] for tool in tools]
    return bool(said) and all(f'"{name}"' in said or f"'{name}'" in said for name in names)


def _history(fields: Fields, reading: Reading) -> list[Message]:
    """What was said before: pairs of question and answer. A pair without an answer is not learned."""
    history = fields.get("history", "chathistory")
    if isinstance(history, str) and not is_empty(history):  # a table holds it as text
        try:
            history = None if spells_null(history) else parsed(history)
        except ValueError:
            raise BadRecordError("its history is text that is no list") from None
    if is_empty(history):
        return []
    if not isinstance(history, list | tuple):
        raise BadRecordError("its history is no list")
    pairs = [each for each in history if not is_empty(each)]
    in_turn = len(history) % 2 == 0 and all(isinstance(each, str) for each in history)  # question, answer, ...
    if in_turn:
        pairs = list(zip(history[::2], history[1::2], strict=True))
    if not all(isinstance(each, dict) or (isinstance(each, list | tuple) and len(each) == 2) for each in pairs):
        raise BadRecordError("its history holds something other than pairs of question and answer")
    messages = read_messages(pairs, reading, "history") if pairs else []
    for message in messages:
        if message["role"] == "assistant" and not message["content"].strip() and "tool_calls" not in message:
            message["weight"] = 0
            reading.changed[UNANSWERED] += 1
    return messages


def _question(fields: Fields, reading: Reading) -> str:
    """What is asked, and what it is about."""
    about = fields.get(*USER)
    if is_empty(about) and not fields.has(*CONTEXT):
        about = fields.get("source")
    asked = [as_text(about)]
    for name in CONTEXT:
        if fields.has(name):
            if spells_null(said := fields.get(name)):
                reading.changed[SPELT_NULLS] += 1
            else:
                asked.append(joined(said))
    return "\n\n".join(filter(None, asked))


def _instruction(fields: Fields, reading: Reading) -> dict[str, Any]:
    history = _history(fields, reading)
    answer = fields.get(*ASSISTANT)
    if is_absent(answer):
        answer = fields.get("answers")
    if isinstance(answer, dict) and isinstance(answer.get("text"), list):  # SQuAD's
        answer = answer["text"]
    if isinstance(answer, list):
        answer = [each for each in answer if not is_empty(each)]
        if answer and all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in answer):
            answer = [each["text"] for each in answer]  # SQuAD's own files
    if is_empty(answer):
        raise BadRecordError("it has no answer")
    if isinstance(answer, list) and all(isinstance(each, str) for each in answer):
        if len(answer) > 1:
            reading.changed[OTHER_ANSWERS] += 1
        answer = answer[0]
    if isinstance(answer, dict | list):
        raise BadRecordError(f"its {fields.find(*ASSISTANT, 'answers')} is {kind(answer)}, not text")
    asked = _question(fields, reading)
    if not asked:
        raise BadRecordError("nothing is asked in it")
    return _said([*history, {"role": "user", "content": asked}, {"role": "assistant", "content": as_text(answer)}])


def _with_calls(fields: Fields, reading: Reading) -> dict[str, Any]:
    """A question with a list of calls as answer, as in xLAM's data."""
    asked, calls = as_text(fields.get(*USER)), fields.get(*_CALLS)
    if isinstance(calls, str):
        try:
            calls = parsed(calls)
        except ValueError:
            if calls.lstrip()[:1] in ("[", "{"):
                raise BadRecordError("its calls are text that is not JSON") from None
            return _said([{"role": "user", "content": asked}, {"role": "assistant", "content": calls}])
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list | tuple):
        raise BadRecordError(f"its calls are {kind(calls)}, not a list")
    made = [found for each in calls if (found := tool_call(each, 2, reading))]
    answer: Message = {"role": "assistant", "content": as_text(fields.get(*ASSISTANT))}
    if made:
        answer["tool_calls"] = made
    return _said([{"role": "user", "content": asked}, answer])


def _completion(fields: Fields, reading: Reading) -> dict[str, Any]:
    prompt = [*_history(fields, reading), *_prompt(fields, reading)]
    return _said(_answered(prompt, fields.get(*ASSISTANT), reading, "completion"))


def _preference(fields: Fields, reading: Reading) -> dict[str, Any]:
    """Two answers to one question: texts, messages, or whole conversations."""
    chosen = fields.get(*_CHOSEN)
    rejected = fields.get(*_REJECTED)
    if is_empty(chosen):  # the conversation has the chosen answer
        whole = read_messages(fields.get("messages"), reading)
        return {"messages": whole, "rejected": _answered(whole[:-1], rejected, reading, "rejected answer")}
    if isinstance(chosen, str) and isinstance(rejected, str) and not fields.has(*USER, *CONTEXT, "messages", *_TURNS):
        if marked_text.turns(chosen) and marked_text.turns(rejected):
            texts = [marked_text.read(each, None, reading)["messages"] for each in (chosen, rejected)]
            return {"messages": texts[0], "rejected": texts[1]}
        raise BadRecordError("its chosen answer is text, and there is no prompt")
    prompt = [*_history(fields, reading), *_prompt(fields, reading)]
    answers = [_answered(prompt, each, reading, name) for each, name in ((chosen, "chosen"), (rejected, "rejected"))]
    return {"messages": answers[0], "rejected": answers[1]}


def _prompt(fields: Fields, reading: Reading) -> list[Message]:
    """What stands before an answer; empty where the answer holds the whole conversation."""
    for name in ("messages", *_TURNS):
        if _are_turns(fields.value(name)):
            return read_messages(fields.get(name), reading, name)
    names = USER if fields.has(*USER) else ("input",)
    prompt = fields.value(*names)
    if isinstance(prompt, list | dict) and (fields.has(*USER) or _asks(prompt)):
        fields.get(*names)
        if isinstance(prompt, dict) and _asks(prompt):  # a request, as OpenAI's interface takes it
            request = Fields(prompt)
            prompt = request.get("messages")
            reading.unused.update(f"{names[0]}.{each}" for each in request.unused())
        return read_messages(prompt, reading, "prompt")
    asked = _question(fields, reading)
    if not asked:
        return []
    system = fields.value(*SYSTEM)
    start = [{"role": "system", "content": system}] if isinstance(system, str) else []
    fields.get(*SYSTEM)
    return [*start, {"role": "user", "content": asked}]


def _answered(prompt: list[Message], answer: Any, reading: Reading, name: str) -> list[Message]:
    """The conversation of a prompt and its answer. Some data sets have all of it as the answer, the prompt (or its last
    question) again beside it."""
    prompt = [dict(each) for each in prompt]
    if isinstance(answer, str) and answer.lstrip()[:2] not in ("[{", "{'", '{"'):
        return [*prompt, {"role": "assistant", "content": answer}]
    if isinstance(answer, str):  # JSON, of messages perhaps
        try:
            messages = read_messages(answer, Reading(), name)
        except BadRecordError:
            return [*prompt, {"role": "assistant", "content": answer}]
    elif is_absent(answer) or isinstance(answer, int | float):
        return [*prompt, {"role": "assistant", "content": as_text(answer)}]
    elif isinstance(answer, list | tuple) and any(isinstance(each, str) for each in answer):
        raise BadRecordError(f"its {name} is a list of texts, not one text")
    else:
        messages = read_messages(answer, reading, name)
    system, asked = _system_apart(prompt)
    own_system, said = _system_apart(messages)
    system = own_system or system
    if said[: len(asked)] == asked:
        return [*system, *said]
    goes_on = not said or said[0]["role"] != "user" or (asked[-1]["role"] != "user" and said[0] != asked[0])
    if goes_on:
        return [*system, *asked, *said]
    if said[0] == asked[-1] and sum(each["role"] == "user" for each in said) == 1:
        return [*system, *asked[:-1], *said]  # the last question once more
    return [*system, *said]  # the whole conversation, beside its last question


def _system_apart(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """The messages of the system that stand first, and the others."""
    n = next((index for index, each in enumerate(messages) if each["role"] != "system"), len(messages))
    return messages[:n], messages[n:]


def _tree(fields: Fields, reading: Reading) -> dict[str, Any]:
    """A tree of messages, as OpenAssistant has them: from its root the best-ranked reply, and so on."""
    fields.get("messagetreeid")
    node, turns = fields.get("prompt"), []
    while isinstance(node, dict):
        turns.append({"role": node.get("role"), "content": node.get("text")})
        replies = [
            each
            for each in node.get("replies") or ()
            if isinstance(each, dict) and not each.get("deleted") and not is_empty(each.get("text"))
        ]
        if len(replies) > 1:
            reading.changed[OTHER_REPLIES] += len(replies) - 1
        ranks = [each.get("rank") for each in replies]
        order = sorted(range(len(replies)), key=lambda at: (is_absent(ranks[at]), ranks[at] or 0, at))
        node = replies[order[0]] if replies else None
    return _said(read_messages(turns, reading, "tree"))


def _is_broken(document: str) -> bool:
    """Whether a text in a document holds NUL or a lone surrogate."""
    try:
        document.encode()
    except UnicodeEncodeError:
        return True
    return "\\u0000" in document


def _well_formed(value: Any) -> Any:
    """A value with U+FFFD in place of NUL and of lone surrogates, which UTF-8 cannot carry."""
    if isinstance(value, str):
        text = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, dict):
        return {_well_formed(name): _well_formed(each) for name, each in value.items()}
    return [_well_formed(each) for each in value] if isinstance(value, list) else value
