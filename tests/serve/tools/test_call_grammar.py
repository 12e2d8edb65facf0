"""Which replies the grammar of tool calls lets through."""

import pytest

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import of_json
from slm.serve.tools.call_form import OWN_FORM, CallForm
from slm.serve.tools.call_grammar import CallableTool, ToolUse, reply_grammar
from tests.helpers.fits import fits

CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
LLAMA3 = CallForm(prefix='{"name": "', middle='", "parameters": ', suffix="}", between=None)
BONN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def tool(name, parameters, **more):
    return CallableTool(name=name, parameters=parameters, **more)


def use(**more):
    tools = (tool("weather", CITY), tool("now", {}))
    return ToolUse(**{"tools": tools, "required": False, "parallel": True, **more})


class Matcher:
    def __init__(self, made):
        self._grammar = made[0] if isinstance(made, tuple) else made

    def __call__(self, text):
        return fits(self._grammar, text)


@pytest.mark.parametrize(
    ("text", "required", "good"),
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
def test_text_and_calls(text, required, good):
    assert Matcher(reply_grammar(OWN_FORM, use(required=required), "none"))(text) is good


def test_one_call_where_only_one_may_come():
    match = Matcher(reply_grammar(OWN_FORM, use(parallel=False), "none"))
    assert match(NOW)
    assert not match(f"{NOW}\n{NOW}")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('hm, {"a": 1} </think>\n\n{"city": "Bonn"}', True),
        ('</think>{"city": "Rome"}', True),
        ('hm</think>\n\n{"city": "Paris"}', False),
        ('{"city": "Bonn"}', False),
        ('hm</think> so {"city": "Bonn"}', False),
    ],
)
def test_reasoning_stands_before_what_a_schema_allows(text, good):
    assert Matcher(of_json(CITY).after_thought)(text) is good


@pytest.mark.parametrize(
    ("text", "required", "reasoning", "good"),
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
def test_reasoning_stands_before_calls_and_holds_none(text, required, reasoning, good):
    assert Matcher(reply_grammar(OWN_FORM, use(required=required), reasoning))(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"name": "now", "parameters": {}}', True),
        (' \n{"name": "now", "parameters": {}}', True),
        ('{"name": "other", "parameters": {}}', False),
        ('{"name": 5}', True),
        ('{"id": 5}', True),
        ('So: {"name": "other"}', True),
    ],
)
def test_a_form_without_a_mark_counts_at_the_beginning_only(text, good):
    assert Matcher(reply_grammar(LLAMA3, use(), "none"))(text) is good
    behind_thought = Matcher(reply_grammar(LLAMA3, use(), "may"))
    assert behind_thought(text) is good
    assert behind_thought(f"<think>x</think>\n{text}") is good


def test_schemas_that_cannot_be_used_are_named():
    with pytest.raises(GrammarError, match=r"the parameters of f: .*type 'object'"):
        reply_grammar(OWN_FORM, use(tools=(tool("f", {"type": "string"}),)), "none")
    loose = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    _, warnings = reply_grammar(OWN_FORM, use(tools=(tool("f", loose),)), "none")
    assert warnings == (
        "the parameters of f: schema at /properties/a: 'uniqueItems' is not enforced: items may repeat",
    )
    with pytest.raises(GrammarError, match=r"the parameters of f: .*'uniqueItems'"):
        reply_grammar(OWN_FORM, use(tools=(tool("f", loose, strict=True),)), "none")
    large = {"type": "object", "properties": {f"property_{i}" * 4: {} for i in range(100)}}
    with pytest.raises(GrammarError, match="send fewer"):
        reply_grammar(OWN_FORM, use(tools=tuple(tool(f"f{i}", large) for i in range(900))), "none")


def test_each_tool_has_definitions_of_its_own():
    shared = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": CITY}, "required": ["a"]}
    other = {**shared, "$defs": {"x": {"type": "null"}}}
    match = Matcher(reply_grammar(OWN_FORM, use(tools=(tool("f", shared), tool("g", other)), required=True), "none"))
    call = '<tool_call>\n{{"name": "{}", "arguments": {{"a": {}}}}}\n</tool_call>'
    assert match(call.format("f", '{"city": "Rome"}'))
    assert match(call.format("g", "null"))
    assert not match(call.format("g", '{"city": "Rome"}'))


def test_arguments_of_any_schema_are_an_object():
    either = {"anyOf": [CITY, {"type": "object", "properties": {"zip": {"type": "integer"}}, "required": ["zip"]}]}
    match = Matcher(reply_grammar(OWN_FORM, use(tools=(tool("f", either),), required=True), "none"))
    call = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'
    assert match(call.format('{"zip": 5}'))
    assert match(call.format('{"city": "Rome"}'))
    assert not match(call.format("5"))


@pytest.mark.parametrize("reasoning", ["none", "may"])
def test_text_without_a_call_fits_a_response_format(reasoning):
    match = Matcher(reply_grammar(OWN_FORM, use(), reasoning, of_json(CITY)))
    assert match('{"city": "Rome"}')
    assert match(BONN)
    assert not match("Hello")
    assert not match(f"Hello {BONN}")
    if reasoning == "may":
        assert match('<think>hm</think>\n\n{"city": "Rome"}')
        assert match(f"<think>hm</think>\n{BONN}")
    with pytest.raises(GrammarError, match="begin like any JSON"):
        reply_grammar(LLAMA3, use(), reasoning, of_json(CITY))
