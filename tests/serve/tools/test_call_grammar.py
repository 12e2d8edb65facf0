"""Which replies the grammar of tool calls lets through."""

import pytest

from slm.serve.grammar.json_schema import schema_grammar
from slm.serve.grammar.tree import GrammarError
from slm.serve.tools.call_form import OWN_FORM, CallForm
from slm.serve.tools.call_grammar import ToolUse, after_thought, reply_grammar
from tests.helpers.gbnf_match import Matcher

CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
LLAMA3 = CallForm(prefix='{"name": "', middle='", "parameters": ', suffix="}", between=None)
BONN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def use(**more):
    return ToolUse(**{"tools": (("weather", CITY), ("now", {})), "required": False, "parallel": True, **more})


@pytest.mark.parametrize(
    ("text", "required", "fits"),
    [
        ("", False, True),
        ("Hello <b> <tool <<tool_call", False, True),
        (BONN, False, True),
        (f"I ask. {BONN}", False, True),
        (f"<tool_ca<{NOW}", False, True),
        (f"{NOW}\n{BONN}", False, True),
        ("say <tool_call>", False, False),
        (f"{NOW} and so on", False, False),
        (NOW.replace("now", "other"), False, False),
        (BONN.replace("Bonn", "Paris"), False, False),
        ("", True, False),
        ("Hello", True, False),
        (f"x{NOW}", True, False),
        (NOW, True, True),
        (f"{NOW}\n{NOW}", True, True),
    ],
)
def test_text_and_calls(text, required, fits):
    assert Matcher(reply_grammar(OWN_FORM, use(required=required), "none"))(text) is fits


def test_one_call_where_only_one_may_come():
    match = Matcher(reply_grammar(OWN_FORM, use(parallel=False), "none"))
    assert match(NOW)
    assert not match(f"{NOW}\n{NOW}")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('hm, {"a": 1} </think>\n\n{"city":"Bonn"}', True),
        ('</think>{"city":"Rome"}', True),
        ('hm</think>\n\n{"city":"Paris"}', False),
        ('{"city":"Bonn"}', False),
        ('hm</think> so {"city":"Bonn"}', False),
    ],
)
def test_reasoning_stands_before_what_a_schema_allows(text, fits):
    assert Matcher(after_thought(schema_grammar(CITY)))(text) is fits


@pytest.mark.parametrize(
    ("text", "required", "reasoning", "fits"),
    [
        ("<think>I call <tool_call> then</think>\n\nHello", False, "may", True),
        (f"<think>hm</think>\n{NOW}", False, "may", True),
        (f"<thi{NOW}", False, "may", True),
        (f"\n<think>{NOW}", False, "may", True),  # reasoning without an end
        (f"<think>hm</think>\n{NOW}x", False, "may", False),
        (f"hm<tool_call></think>ok {NOW}", False, "open", True),
        (NOW, True, "may", True),
        (f"<think>hm</think>\n\n{NOW}", True, "may", True),
        ("<think>hm</think>\n\nHello", True, "may", False),
        (f"hm</think>{NOW}", True, "open", True),
        (f"hm</think> no {NOW}", True, "open", False),
    ],
)
def test_reasoning_stands_before_calls_and_holds_none(text, required, reasoning, fits):
    assert Matcher(reply_grammar(OWN_FORM, use(required=required), reasoning))(text) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name": "now", "parameters": {}}', True),
        (' \n{"name": "now", "parameters": {}}', True),
        ('{"name": "other", "parameters": {}}', False),
        ('{"name": 5}', True),
        ('{"id": 5}', True),
        ('So: {"name": "other"}', True),
    ],
)
def test_a_form_without_a_mark_counts_at_the_beginning_only(text, fits):
    assert Matcher(reply_grammar(LLAMA3, use(), "none"))(text) is fits
    behind_thought = Matcher(reply_grammar(LLAMA3, use(), "may"))
    assert behind_thought(text) is fits
    assert behind_thought(f"<think>x</think>\n{text}") is fits


def test_schemas_that_cannot_be_forced_are_named():
    for schema, word in (
        ({"type": "string"}, "type 'object'"),
        ({"anyOf": [CITY]}, "type 'object'"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "'not'"),
    ):
        with pytest.raises(GrammarError, match=f"the parameters of f: .*{word}"):
            reply_grammar(OWN_FORM, use(tools=(("f", schema),)), "none")
    shared = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": CITY}, "required": ["a"]}
    match = Matcher(reply_grammar(OWN_FORM, use(tools=(("f", shared), ("g", shared)), required=True), "none"))
    assert match('<tool_call>\n{"name": "g", "arguments": {"a":{"city":"Rome"}}}\n</tool_call>')
    large = {"type": "object", "properties": {f"property_{i}" * 4: {} for i in range(100)}}
    with pytest.raises(GrammarError, match="send fewer"):
        reply_grammar(OWN_FORM, use(tools=tuple((f"f{i}", large) for i in range(9))), "none")
