"""An exported file reads texts and chats as the checkpoint does: with the ids that the server sends, special tokens
included, and with an end to each turn.

What begins a text is part of its ids: the token that the tokenizer itself writes, once, whether a chat template prints
it or llama.cpp adds it.
"""

import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from slm.data.chat.template import ChatTemplate, Rendered, TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder, own_template
from slm.data.errors import UserError
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.llama.model import Model

CONVERSATIONS = 200
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Messages and tools."""

PROBES = (
    "",
    " ",
    "\n",
    "Hello, world!",
    "Once upon a time, there was a little fox named Pip.",
    "  two spaces   three\ttab\n\nblank line\r\n  end  ",
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n",
    "I'm sure they'll say it's what we've done, isn't it? I'D THINK SO, WE'LL SEE, he'S",
    "0 1 12 123 1234 12345 123456 3.14159 1,000,000 1e-9 0x7F ½ ² ٣ 五 ⅷ",
    "naïve café Ångström Zoë — “quotes” ‘single’ … ellipsis",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "我想在apple工作1314151天～ 日本語テキスト 한국어 문장",
    "🚀 😶\u200d🌫️ 👩\u200d👩\u200d👧\u200d👦 🦙🦙 🇫🇷 ✅",
    "def f(x):\n    return x ** 2  # comment\n\n\tif a != b and c >= d: pass",
    '<html><body class=\'x\'>&amp;</body></html> {"key": [1, 2, {"a": null}]}',
    "https://example.org/a?b=c&d=e#f user@example.org C:\\path\\file.txt",
    "\u0000\u0001\u0007\u001b[31m\u007f\u0085\u00a0\u00ad\u200b\u2028\ufeff\ufffd",
    "<|endoftext|> <|im_start|>user <s> </s> [PAD7] <unk> <0x41>",
    "e\u0301 n\u0303 o\u0308 \u1112\u1161\u11ab ﬁ Ⅳ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "------======= ''''''```````\"\"\"\"......!!!!!!??????",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀𓀁 𐍈 ꙮ",
    " leading space and trailing space ",
)
"""Strings that tokenizers are known to disagree on."""


def plain_strings(more: Sequence[str] = (), *, nfc: bool = False, unlike: Sequence[str] = ()) -> list[str]:
    """``PROBES`` and ``more`` texts, as far as the two tokenizers mean to agree: in Unicode NFC where the checkpoint's
    normalizes (llama.cpp's does not), and without those that spell one of the tokens ``unlike``."""
    kept = [each for each in (*PROBES, *more) if not any(token in each for token in unlike)]
    return [unicodedata.normalize("NFC", each) for each in kept] if nfc else kept


def token_failures(llama: Model, strings: Sequence[str], ids: Sequence[list[int]]) -> list[str]:
    """A message about the first string with ids that differ from what a server sends; empty where none does."""
    for text, expected in zip(strings, ids, strict=True):
        if failure := _difference(text, expected, llama.tokenize(text, add_special=True, parse_special=False)):
            return [failure]
    return []


def chat_failures(llama: Model, tokenizer: Tokenizer, *, nfc: bool = False, unlike: Sequence[str] = ()) -> list[str]:
    """Messages about what differs; empty where nothing does, and for a model without a (valid) chat template.

    Compared are the ids of prompts as training has them, which are transformers', with those of the file's template and
    tokenizer, as the server sends them. ``nfc``: on NFC text only. ``unlike``: tokens that llama.cpp reads otherwise in
    a plain text; conversations that spell one are left out.
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
    bos, eos = (llama.token_name(token) for token in (llama.bos, llama.eos))
    theirs = ChatTemplate(written, bos=bos, eos=eos, control_tokens=llama.control_names())
    made = [each for each in conversations(nfc=nfc, tools=True) if not any(token in str(each) for token in unlike)]
    for conversation, ours in prompts(encoder.template, made):
        sent = theirs.prompt(*conversation)
        if sent.text != ours.text and "strftime_now" not in written:
            return [f"in a chat, the file's template gives {sent.text[:60]!r} and the checkpoint's {ours.text[:60]!r}"]
        found = llama.tokenize_parts(sent.text, sent.literal, add_special=not sent.begins_with(bos), parse_special=True)
        if failure := _difference(ours.text, encoder.tokens(ours)[0].tolist(), found):
            return [f"in a chat, {failure}"]
    return []


def prompts(template: ChatTemplate, conversations: Sequence[Conversation]) -> Iterator[tuple[Conversation, Rendered]]:
    """Each conversation with its prompt; those that the template refuses (some know no system message, or no tools) are
    left out."""
    for messages, tools in conversations:
        try:
            yield (messages, tools), template.prompt(messages, tools)
        except TemplateRefusesError:
            continue


def _difference(text: str, expected: list[int], found: list[int]) -> str | None:
    """A message where the ids of ``text`` in the file are not the checkpoint's."""
    if found == expected:
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    return (
        f"its tokenizer gives other ids: {text[:60]!r} is {expected[at : at + 5]} in the checkpoint and "
        f"{found[at : at + 5]} in the file, from token {at} on"
    )


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
