"""Conversations that a column holds as one text, with marks where a speaker begins.

Known are ``### Human:`` (Guanaco), ``\\n\\nHuman:`` (Anthropic), ``USER:`` with calls (Glaive) or without (Vicuna),
ChatML, ``<|user|>`` (Zephyr), ``<human>:`` (OIG) and ``[INST]`` (Llama 2, Mistral).

Tested in tests/data/chat/test_formats.py.
"""

import json
import re
from typing import Any

from slm.data.chat.fields import BadRecordError, as_text
from slm.data.chat.messages import Message, Reading, read_tools, tool_call

_STYLES = {
    "guanaco": re.compile(r"(?:^|\s*)### (Human|Assistant|System):\s*"),
    "anthropic": re.compile(r"(?:^|\n\n)(Human|Assistant): ?"),
    "glaive": re.compile(r"(?:^|\n\n)\s*(SYSTEM|USER|ASSISTANT|FUNCTION RESPONSE):\s*"),
    "chatml": re.compile(r"<\|im_start\|>(system|user|assistant|tool)\n"),
    "zephyr": re.compile(r"(?:^|\n)<\|(system|user|assistant)\|>\n"),
    "oig": re.compile(r"(?:^|\n)<(human|bot)>: ?"),
    "vicuna": re.compile(r"(?:^|\n|</s>)(USER|ASSISTANT): ?"),
}
_ROLES = {"human": "user", "function response": "tool", "bot": "assistant"}
_ENDS = re.compile(r"(<\|endoftext\|>|<\|im_end\|>)\s*\Z")
_END_OF_SENTENCE = re.compile(r"</s>\s*\Z")
"""What ends an answer in texts for Llama's tokenizer. In other texts it is HTML."""
_INST = re.compile(r"\s*(?:<s>)?\s*\[INST\](.*?)\[/INST\](.*?)(?=(?:<s>)?\s*\[INST\]|\Z)", re.DOTALL)
_SYS = re.compile(r"\s*<<SYS>>(.*?)<</SYS>>", re.DOTALL)
_CALL = re.compile(r"<functioncall>\s*(\{.*\})\s*\Z", re.DOTALL)
_QUOTED = re.compile(r"""("arguments"\s*:\s*)'(.*)'\s*\}\s*\Z""", re.DOTALL)


def turns(text: Any) -> list[tuple[str, str]]:
    """The roles and texts of a marked text; empty for any other value. A text begins with one of its marks."""
    if not isinstance(text, str):
        return []
    for style, pattern in _STYLES.items():
        first = pattern.search(text)
        if first is None or text[: first.start()].strip():
            continue
        pieces = pattern.split(text[first.start() :])[1:]
        roles = [_ROLES.get(role.lower(), role.lower()) for role in pieces[::2]]
        ends = _END_OF_SENTENCE if style in ("zephyr", "vicuna") else _ENDS
        found = [(role, ends.sub("", body).strip()) for role, body in zip(roles, pieces[1::2], strict=True)]
        if {"user", "assistant"} <= {role for role, _ in found}:
            return found
    return _instructions(text)


def _instructions(text: str) -> list[tuple[str, str]]:
    """The turns of ``[INST] question [/INST] answer </s>``, the first perhaps with a ``<<SYS>>`` message."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text) and (match := _INST.match(text, at)):
        asked, answer = match[1], _END_OF_SENTENCE.sub("", match[2])
        if not found and (system := _SYS.match(asked)):
            found.append(("system", system[1].strip()))
            asked = asked[system.end() :]
        found += [("user", asked.strip()), ("assistant", answer.strip())]
        at = match.end()
    return found if at == len(text) else []


def read(text: Any, system: Any, reading: Reading) -> dict[str, Any]:
    """The conversation of a marked text. Glaive's ``system`` names the functions. Raises BadRecordError."""
    messages: list[Message] = []
    for number, (role, body) in enumerate(turns(text), 1):
        call = _CALL.search(body) if role == "assistant" else None
        if call is None:
            messages.append({"role": role, "content": body})
            continue
        made = tool_call(_arguments_quoted(call[1]), number, reading)
        assert made is not None
        messages.append({"role": role, "content": body[: call.start()].strip(), "tool_calls": [made]})
    prompt, tools = _functions(as_text(system), reading)
    if prompt and (not messages or messages[0]["role"] != "system"):
        messages.insert(0, {"role": "system", "content": prompt})
    return {"messages": messages} | ({"tools": tools} if tools else {})


def _arguments_quoted(call: str) -> str:
    """Glaive puts a call's arguments between single quotes, as separate JSON."""
    if quoted := _QUOTED.search(call):
        body = quoted[2].replace("\\'", "'")
        return f"{call[: quoted.start()]}{quoted[1]}{json.dumps(body)}}}"
    return call


def _functions(system: str, reading: Reading) -> tuple[str, list[dict[str, Any]]]:
    """A system message without the functions that it lists as JSON, and these."""
    text = re.sub(r"\A\s*SYSTEM:\s*", "", system).strip()
    head, use, rest = text.partition("Use them if required -")
    if not use:
        return text, []
    decoder, found = json.JSONDecoder(), []
    rest = rest.strip()
    while rest.startswith("{"):
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError:
            raise BadRecordError("the functions of its system message are not JSON") from None
        found.append(value)
        rest = rest[end:].lstrip(" ,\n")
    head = re.sub(r"\s*with access to the following functions\.\s*\Z", ".", head)
    return "\n\n".join(filter(None, (head.strip(), rest))), read_tools(found, reading)
