"""Every form of calls: what the template writes, what the grammar lets through, and what becomes of it again."""

import itertools
import json

import pytest

from slm.data.chat.template import ChatTemplate
from slm.serve.grammar.errors import GrammarError
from slm.serve.tools.call_form import OWN_FORM, call_form, written_calls
from slm.serve.tools.call_grammar import CallableTool, ToolUse, reply_grammar
from slm.serve.tools.reply_reader import ReplyReader
from slm.serve.tools.written_arguments import texts_of
from tests.helpers import tool_templates as templates
from tests.helpers.fits import CONTROLS, fits

TEMPLATES = {
    name: getattr(templates, name)
    for name in (
        *("QWEN_CODER", "GLM", "GLM_DENSE", "MINICPM", "DEEPSEEK32", "GEMMA4_TOOLS", "KIMI", "LFM2", "GRANITE3"),
        "SMOLLM3",
    )
}
POINT = {"type": "object", "properties": {"tag": {"type": "string"}, "x": {"type": "number"}}, "required": ["x"]}
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["C", "F"]},
        "warm": {"type": "boolean"},
        "at": {"$ref": "#/$defs/point"},
        "also": {"type": "array", "items": {"type": "string"}},
        "limit": {"type": ["integer", "null"]},
    },
    "required": ["city", "warm"],
    "$defs": {"point": POINT},
}
TOOLS = (CallableTool(name="weather", parameters=PLACE), CallableTool(name="now", parameters={}))
GOOD = [
    [("now", {})],
    [("weather", {"city": "Bonn", "warm": True})],
    [("weather", {"city": "5", "days": 12, "unit": "F", "warm": False, "at": {"tag": "a b", "x": -1.5}})],
    [("weather", {"city": "true", "warm": True, "also": ["x", "y, z"], "limit": None})],
    [("weather", {"city": 'Köln "am" <b>\n{Rhein}', "warm": True, "also": [], "limit": 3}), ("now", {})],
]
BAD = [
    [("later", {})],
    [("now", {"zone": 1})],
    [("weather", {"warm": True})],
    [("weather", {"city": "Bonn", "warm": "perhaps"})],
    [("weather", {"city": "Bonn", "unit": "K", "warm": True})],
    [("weather", {"warm": True, "city": "Bonn"})],
]


def form_of(name, text):
    marks = (*templates.CHATML_MARKS, *CONTROLS)
    form = call_form(ChatTemplate(text, bos="<s>", eos="</s>", control_tokens=("<s>", "</s>", *marks)))
    assert not form.own, name
    return form


def as_text(form, calls):
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return "".join(part for part, _ in written_calls(form, made))


def read(form, text, size):
    texts = {tool.name: texts_of(tool.parameters) for tool in TOOLS}
    reader = ReplyReader(form, "none", texts)
    pieces = [piece for i in range(0, len(text), size) for piece in reader.push(text[i : i + size])]
    pieces += reader.push("", last=True)
    calls = []
    for piece in pieces:
        if piece.kind == "call":
            calls.append([piece.text, ""])
        elif piece.kind == "arguments":
            calls[-1][1] += piece.text
    return [(name, json.loads(arguments)) for name, arguments in calls], pieces


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_template_writes_is_the_form(name):
    text = TEMPLATES[name]
    form = form_of(name, text)
    if not form.writes_calls:
        return
    marks = (*templates.CHATML_MARKS, *CONTROLS)
    template = ChatTemplate(text, bos="<s>", eos="</s>", control_tokens=("<s>", "</s>", *marks))
    for calls in GOOD:
        made = [{"type": "function", "function": {"name": n, "arguments": dict(sorted(a.items()))}} for n, a in calls]
        said = template.text(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": made}]
        )
        ordered = [(n, dict(sorted(a.items()))) for n, a in calls]
        if name == "MINICPM" and len(calls[0][1]) > 2:
            continue  # its template writes lists as Python does
        assert as_text(form, ordered) in said


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("required", [True, False])
def test_the_grammar_lets_through_what_is_valid(name, required):
    form = form_of(name, TEMPLATES[name])
    grammar, warnings = reply_grammar(form, ToolUse(tools=TOOLS, required=required, parallel=True), "none")
    assert warnings == ()
    for calls in GOOD:
        assert fits(grammar, as_text(form, calls), form.controls), calls
        if not required:
            assert fits(grammar, "I ask.\n" + as_text(form, calls), form.controls)
    for calls in BAD:
        assert not fits(grammar, as_text(form, calls), form.controls), calls
    assert fits(grammar, "Hello <b>", form.controls) is not required


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("reasoning", ["may", "open"])
def test_calls_behind_reasoning(name, reasoning):
    form = form_of(name, TEMPLATES[name])
    grammar, _ = reply_grammar(form, ToolUse(tools=TOOLS, required=False, parallel=True), reasoning)
    begin = "<think>" if reasoning == "may" else ""
    for behind in (as_text(form, GOOD[1]), "Hello"):
        assert fits(grammar, f"{begin}hm</think>\n\n{behind}", form.controls)
    assert fits(grammar, f"{begin}hm", form.controls)
    if reasoning == "may":
        assert fits(grammar, as_text(form, GOOD[1]), form.controls)


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_become_json_again_however_the_text_is_cut(name):
    form = form_of(name, TEMPLATES[name])
    for calls, size in itertools.product(GOOD, (1, 3, 1000)):
        assert read(form, as_text(form, calls), size)[0] == calls
    said, pieces = read(form, "I ask.\n\n" + as_text(form, GOOD[1]), 4)
    assert said == GOOD[1]
    assert "".join(piece.text for piece in pieces if piece.kind == "content") == "I ask."


@pytest.mark.parametrize("name", ["QWEN_CODER", "DEEPSEEK32", "GEMMA4_TOOLS", "LFM2"])
def test_free_parameters_and_those_of_any_type(name):
    form = form_of(name, TEMPLATES[name])
    schema = {"type": "object", "properties": {"any": {}, "one": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
    tools = (CallableTool(name="f", parameters=schema), CallableTool(name="g", parameters={"type": "object"}))
    grammar, warnings = reply_grammar(form, ToolUse(tools=tools, required=True, parallel=False), "none")
    assert warnings == ()
    for calls in (
        [("f", {"any": {"a": [1, "x"]}, "one": 4})],
        [("f", {"one": None})],
        [("g", {"a": 1, "b_c": "x y"})],
        [("g", {})],
    ):
        text = as_text(form, calls)
        assert fits(grammar, text, form.controls), text
        assert read(form, text, 5)[0] == calls


def test_what_cannot_be_enforced_is_named_or_refused():
    form = form_of("QWEN_CODER", TEMPLATES["QWEN_CODER"])
    schema = {"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["id"]}
    use = ToolUse(tools=(CallableTool(name="f", parameters=schema),), required=True, parallel=False)
    _, warnings = reply_grammar(form, use, "none")
    assert warnings == ("the parameters of f: id.pattern is not enforced in the form of this model's calls",)
    assert reply_grammar(OWN_FORM, use, "none")[1] == ()
    strict = ToolUse(tools=(CallableTool(name="f", parameters=schema, strict=True),), required=True, parallel=False)
    with pytest.raises(GrammarError, match=r"f: id\.pattern"):
        reply_grammar(form, strict, "none")


def test_arguments_come_as_soon_as_they_are_whole():
    form = form_of("GLM", TEMPLATES["GLM"])
    text = as_text(form, GOOD[1])
    reader = ReplyReader(form, "none", {"weather": {"city"}})
    at = text.index("<arg_key>warm")
    assert [piece.text for piece in reader.push(text[:at])] == ["weather", '{"city": "Bonn"']
    assert [piece.text for piece in reader.push(text[at:])] == [', "warm": true}']
