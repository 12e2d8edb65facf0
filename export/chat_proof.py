"""The exported file chats as the checkpoint does: the same ids for rendered conversations, and an end to each turn.

Tested in tests/export/test_chat_proof.py.
"""

import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from data.chat.template import TemplateRefusesError
from data.chat.tokens import ChatEncoder, own_template
from data.errors import UserError
from data.tokenizers.tokenizer import Tokenizer
from export.proof import PROBES, token_failures
from slm.llama.model import Model

CONVERSATIONS = 200
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Messages and tools."""


def chat_failures(llama: Model, tokenizer: Tokenizer, *, nfc: bool = False) -> list[str]:
    """Messages about what differs; empty where nothing does, and for a model without a (valid) chat template.

    Compared are the ids that transformers gives for rendered prompts and those of the file. ``nfc``: on NFC text only.
    """
    own, written = own_template(tokenizer), llama.chat_template()
    if own is not None and written is not None and own != written:
        return ["its chat template is another one than the checkpoint's"]
    if own is None or not written:
        return []
    try:
        encoder = ChatEncoder(tokenizer)
        turn = encoder.end_of_turn
    except (UserError, TemplateRefusesError):
        return []  # a template that does not render is passed on as it is
    if turn is not None and not llama.is_eog(turn):
        return [f"its chats never end: token {turn}, with which the template ends a turn, ends no generation there"]
    texts = rendered(encoder, conversations(nfc=nfc, tools=True))
    theirs = HFTokenizer.from_str(tokenizer.files["tokenizer.json"].decode("utf-8"))
    theirs.no_truncation()
    theirs.no_padding()
    ids = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    return [f"in a chat, {each}" for each in token_failures(llama, texts, ids, parse_special=True)]


def rendered(encoder: ChatEncoder, conversations: Sequence[Conversation]) -> list[str]:
    """Prompts of the conversations; those that the template refuses (some know no system message, or no tools) are left
    out."""
    texts = []
    for messages, tools in conversations:
        try:
            texts.append(encoder.template.text(messages, tools, prompt=True))
        except TemplateRefusesError:
            continue
    return texts


def conversations(n: int = CONVERSATIONS, *, nfc: bool = False, tools: bool = False) -> list[Conversation]:
    """Prompts made of ``PROBES``: single questions, with a system message, and of several turns. With ``tools``, more
    come, in which the assistant calls one and gets its result."""
    probes = [unicodedata.normalize("NFC", each) for each in PROBES] if nfc else list(PROBES)
    words = itertools.cycle(probes)
    made: list[Conversation] = [([_said("user", each)], []) for each in probes]
    for number in range(n - len(made)):
        messages = [_said("system", next(words))] if number % 2 else []
        for _ in range(number % 3):
            messages += [_said("user", next(words)), _said("assistant", next(words))]
        made.append(([*messages, _said("user", next(words))], []))
    return made + [_with_tool(each, next(words)) for each in probes] if tools else made


def _with_tool(text: str, other: str) -> Conversation:
    """The probes as description, argument and result of a tool."""
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = {"type": "function", "function": {"name": "look", "description": text, "parameters": parameters}}
    function = {"name": "look", "arguments": {"text": other}}
    call = {"id": "call00001", "type": "function", "function": function}
    messages = [
        _said("user", other),
        {**_said("assistant", ""), "tool_calls": [call]},
        {**_said("tool", text), "name": "look", "tool_call_id": "call00001"},
    ]
    return messages, [tool]


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
