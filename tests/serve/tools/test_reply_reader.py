"""A reply comes apart in the same way however its text is cut into pieces."""

from itertools import groupby

import pytest

from slm.serve.tools.call_form import OWN_FORM, CallForm
from slm.serve.tools.reply_reader import ReplyReader

LLAMA3 = CallForm(prefix='{"name": "', middle='", "parameters": ', suffix="}", between=None)
BONN = '<tool_call>\n{"name": "weather", "arguments": { "city": "B\\"}{"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def read(text, size, form=OWN_FORM, reasoning="none"):
    reader = ReplyReader(form, reasoning)
    parts = [text[i : i + size] for i in range(0, len(text), size)] or [""]
    pieces = [piece for part in parts for piece in reader.push(part)] + reader.push("", last=True)
    joined = []
    for kind, group in groupby(pieces, key=lambda piece: piece.kind):
        texts = [piece.text for piece in group]
        joined += [(kind, each) for each in texts] if kind == "call" else [(kind, "".join(texts))]
    return joined


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "form", "reasoning", "expected"),
    [
        ("Hello <b> ", None, "none", [("content", "Hello <b> ")]),
        ("Hello <tool x ", OWN_FORM, "none", [("content", "Hello <tool x ")]),
        (
            f"I ask.\n\n{BONN}\n{NOW}",
            OWN_FORM,
            "none",
            [
                ("content", "I ask."),
                *(("call", "weather"), ("arguments", '{ "city": "B\\"}{"}')),
                *(("call", "now"), ("arguments", "{}")),
            ],
        ),
        (
            "<think>\nhm <tool_call>\n</think>\n\nYes",
            OWN_FORM,
            "may",
            [("reasoning", "hm <tool_call>"), ("content", "Yes")],
        ),
        (f"hm</think>{NOW}", OWN_FORM, "open", [("reasoning", "hm"), ("call", "now"), ("arguments", "{}")]),
        ("\n\nhm\n\nso</think>\n ok\n", None, "open", [("reasoning", "hm\n\nso"), ("content", "ok\n")]),
        ("<thing>", None, "may", [("content", "<thing>")]),
        ("<thi", None, "may", [("content", "<thi")]),
        ("<think>x</think>", None, "none", [("content", "<think>x</think>")]),
        ("<think>never ends", None, "may", [("reasoning", "never ends")]),
        ('{"name": "now", "parameters": {}}', LLAMA3, "none", [("call", "now"), ("arguments", "{}")]),
        ('{"nam', LLAMA3, "none", [("content", '{"nam')]),
        (' {"id": 1}', LLAMA3, "none", [("content", ' {"id": 1}')]),
        ("", OWN_FORM, "may", []),
        # Cut off by max_tokens: what is known of the call.
        (BONN[:48], OWN_FORM, "none", [("call", "weather"), ("arguments", '{ "')]),
        (BONN[:20], OWN_FORM, "none", []),
    ],
)
def test_any_cut(text, size, form, reasoning, expected):
    assert read(text, size, form, reasoning) == expected


def test_what_is_certain_comes_at_once():
    reader = ReplyReader(OWN_FORM)
    assert [piece.text for piece in reader.push("Hello ")] == ["Hello"]
    assert [piece.text for piece in reader.push("you <too")] == [" you"]
    assert [piece.text for piece in reader.push("t>")] == [" <toot>"]
    reader.push(NOW[: NOW.index("{}")])
    assert [(piece.kind, piece.text) for piece in reader.push('{"a": "b')] == [("arguments", '{"a": "b')]
