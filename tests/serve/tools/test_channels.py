"""Replies of gpt-oss, message by message."""

import json

import pytest

from slm.serve.grammar.forms import of_json
from slm.serve.tools.call_form import CHANNELS
from slm.serve.tools.call_grammar import CallableTool, ToolUse, reply_grammar
from slm.serve.tools.channels import ChannelReader, answer_grammar, as_taken
from slm.serve.tools.reply_reader import Piece
from tests.helpers.fits import fits

CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
TOOLS = (CallableTool(name="weather", parameters=CITY), CallableTool(name="now", parameters={}))
THINK = "<|channel|>analysis<|message|>hm to=functions.now<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
ARGUMENTS = '{"city": "Bonn"}'
CALL = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}"
BY_ROLE = f" to=functions.weather<|channel|>commentary json<|message|>{ARGUMENTS}"


def read(text, size, begins="header", calls=True):
    reader = ChannelReader(begins, calls=calls)
    parts = [text[i : i + size] for i in range(0, len(text), size)] or [""]
    pieces = [piece for part in parts for piece in reader.push(part)] + reader.push("", last=True)
    joined = []
    for piece in pieces:
        if joined and joined[-1][0] == piece.kind != "call":
            joined[-1] = (piece.kind, joined[-1][1] + piece.text)
        else:
            joined.append((piece.kind, piece.text))
    return joined, reader.in_call


HM, LOOK = ("reasoning", "hm to=functions.now"), ("content", "I look.")
WEATHER = [("call", "weather"), ("arguments", ARGUMENTS)]


@pytest.mark.parametrize("size", [1, 4, 9, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{THINK}{FINAL} Hello <| <|en ", [HM, ("content", " Hello <| <|en ")]),
        (f"{THINK}{PREAMBLE}{CALL}", [HM, LOOK, *WEATHER]),
        (f"{THINK}{PREAMBLE}{BY_ROLE}", [HM, LOOK, *WEATHER]),
        (f"{CALL}<|end|><|start|>assistant{FINAL}so", [*WEATHER, ("content", "so")]),
        (f"{PREAMBLE}{FINAL}Done.", [("content", "I look.\n\nDone.")]),
        (f"{THINK}{THINK}{FINAL}x", [("reasoning", f"{HM[1]}\n\n{HM[1]}"), ("content", "x")]),
        # The model begins a header twice, or forgets to end a message.
        (f"<|channel|>commentary{THINK}{FINAL}x", [HM, ("content", "x")]),
        (f"<|channel|>analysis<|message|>hm{FINAL}x", [("reasoning", "hm"), ("content", "x")]),
        (f"<|start|>assistant{FINAL}x", [("content", "x")]),
        ("no channel", [("content", "no channel")]),
        ("", []),
        # Cut off by max_tokens.
        (THINK[:30], []),
        (THINK[:32], [("reasoning", "hm")]),
        (CALL[: CALL.index("json")], []),
        (CALL[:-3], [("call", "weather"), ("arguments", ARGUMENTS[:-3])]),
    ],
)
def test_any_cut(text, size, expected):
    found, in_call = read(text, size)
    assert found == expected
    assert in_call == (text == CALL[:-3])


def test_where_it_begins_and_what_it_may_hold():
    assert read(f"Hello<|end|><|start|>assistant{CALL}", 5, begins="final")[0] == [("content", "Hello"), *WEATHER]
    # Nobody answers a call where there are no tools: what it says is not lost.
    assert read(CALL, 5, calls=False)[0] == [("content", ARGUMENTS)]


def test_what_is_certain_comes_at_once():
    reader = ChannelReader("header", calls=True)
    assert reader.push("<|channel|>analysis<|message|>") == []
    assert reader.push("hm <|") == [Piece(kind="reasoning", text="hm ")]
    assert reader.push("so") == [Piece(kind="reasoning", text="<|so")]


def use(**more):
    return ToolUse(**{"tools": TOOLS, "required": False, "parallel": True, **more})


@pytest.mark.parametrize(
    ("text", "required", "reasoning", "good"),
    [
        (f"{THINK}{FINAL}Hello", False, "may", True),
        (f"{FINAL}Hello", False, "none", True),
        (f"{THINK}{FINAL}Hello", False, "none", False),
        (f"{THINK}{FINAL}Hello", True, "may", False),
        (f"{THINK}{PREAMBLE}{CALL}", True, "may", True),
        (f"{THINK}{CALL}", True, "none", False),
        (CALL, True, "none", True),
        (BY_ROLE, True, "none", True),
        (CALL.replace(" <|constrain|>json", ""), True, "none", True),
        (CALL.replace("commentary", "analysis"), True, "may", True),
        (CALL.replace("Bonn", "Paris"), False, "may", False),
        (CALL.replace("weather", "other"), False, "may", False),
        (f"{CALL}<|end|><|start|>assistant{CALL}", False, "may", False),
        (f"{THINK}<|channel|>other<|message|>", False, "may", False),
        ("<|channel|>analysis<|message|>never ends", False, "may", True),
        ("Hello", False, "may", False),
    ],
)
def test_which_replies_may_be(text, required, reasoning, good):
    made, _ = reply_grammar(CHANNELS, use(required=required), reasoning, begins="header")
    assert fits(made, text, CHANNELS.controls) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (f"{FINAL}{ARGUMENTS}", True),
        (f"{THINK}<|channel|>final <|constrain|>json<|message|>{ARGUMENTS}", True),
        (f"{THINK}{FINAL}Bonn", False),
        (f"{PREAMBLE}{FINAL}{ARGUMENTS}", False),
        (ARGUMENTS, False),
    ],
)
def test_a_schema_holds_in_the_final_message(text, good):
    content = of_json(CITY)
    made, _ = reply_grammar(CHANNELS, use(), "may", content, "header")
    for each in (made, answer_grammar(content, reasons=True)):
        assert fits(each, text, CHANNELS.controls) is good
    with_call = f"{PREAMBLE}{CALL}"
    assert fits(made, with_call, CHANNELS.controls)
    assert not fits(answer_grammar(content, reasons=True), with_call, CHANNELS.controls)
    assert not fits(answer_grammar(content, reasons=False), f"{THINK}{FINAL}{ARGUMENTS}", CHANNELS.controls)


def test_a_message_that_is_continued_may_be_followed_by_a_call():
    made, _ = reply_grammar(CHANNELS, use(), "none", begins="final")
    assert fits(made, "and so on", CHANNELS.controls)
    assert fits(made, f"and so on<|end|><|start|>assistant{CALL}", CHANNELS.controls)
    must, _ = reply_grammar(CHANNELS, use(required=True), "none", begins="final")
    assert not fits(must, "and so on", CHANNELS.controls)


def call(key, name="now"):
    return {"id": key, "type": "function", "function": {"name": name, "arguments": {}}}


def result(key, content):
    return {"role": "tool", "tool_call_id": key, "name": "now", "content": content}


def test_a_conversation_as_the_template_takes_it():
    both = {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [call("1"), call("2")]}
    raw = {"role": "assistant", "content": f"{THINK}{FINAL}noon"}
    user = {"role": "user", "content": f"What is {FINAL}?"}
    made, _ = as_taken([user, both, result("2", "b"), result("1", "a"), raw], [])
    assert made == [
        user,
        {"role": "assistant", "content": "", "reasoning_content": "hm\n\nI look.", "tool_calls": [call("1")]},
        result("1", "a"),
        {"role": "assistant", "content": "", "tool_calls": [call("2")]},
        result("2", "b"),
        {"role": "assistant", "content": "noon", "reasoning_content": HM[1]},
    ]
    # Results that name no call stand behind the last one.
    loose = {"role": "tool", "content": "c"}
    assert as_taken([both, loose], [])[0][-1] == loose


def test_tools_as_the_template_takes_them():
    days = {"enum": [1, 2], "default": 1}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"days": days, "x": True}}}}
    _, (made,) = as_taken([], [tool])
    assert made["function"]["description"] == ""
    assert made["function"]["parameters"]["properties"] == {"days": {"enum": [1, 2], "default": "1"}, "x": True}
    assert json.dumps(tool).count("description") == 0
