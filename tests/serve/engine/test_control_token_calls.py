"""Calls between control tokens, by a model that has such tokens: they are forced as tokens, and their names are part of
the text that comes out."""

import json

import pytest

from slm.data.chat.template import ChatTemplate
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Failure, Generate, SamplingParams, Tokenize
from slm.serve.grammar.forms import of_json
from slm.serve.tools.call_form import (
    CHANNELS,
    DEEPSEEK3,
    GEMMA4,
    GRANITE3,
    KIMI,
    LFM2,
    MISTRAL_ID,
    MISTRAL_LIST,
    call_form,
)
from slm.serve.tools.call_grammar import CallableTool, ToolUse, reply_grammar
from slm.serve.tools.channels import ChannelReader, answer_grammar
from slm.serve.tools.reply_reader import ReplyReader
from slm.serve.tools.written_arguments import texts_of
from tests.helpers import tool_templates as templates
from tests.helpers.chat_model import base_tokenizer, with_template, write_chat_gguf

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
}


def said(one, grammar, seed=0, shown=()):
    """The reply that a grammar allows, in the engine's pieces."""
    sampling = SamplingParams(seed=seed, grammar=grammar)
    events = one.handle(Generate(id=f"{seed}", prompt="hello", max_tokens=100, sampling=sampling, shown=shown))
    while one.busy:
        events += one.step()
    assert not any(isinstance(event, Failure) for event in events), events
    return [event for event in events if isinstance(event, Delta)]


def assert_a_call(reader, deltas):
    """The reply is one call with arguments of the schema, and ends."""
    pieces = [piece for delta in deltas for piece in reader.push(delta.text, last=delta.finish is not None)]
    assert [piece.text for piece in pieces if piece.kind == "call"] == ["weather"]
    arguments = json.loads("".join(piece.text for piece in pieces if piece.kind == "arguments"))
    assert arguments["city"] in ("Bonn", "Rome")
    assert arguments["days"] in range(10)
    assert deltas[-1].finish == "stop"


@pytest.mark.parametrize(
    ("text", "form", "marks"),
    [
        (templates.LFM2, LFM2, ()),
        (templates.GEMMA4_TOOLS, GEMMA4, ()),
        (templates.KIMI, KIMI, ()),
        (templates.GRANITE3, GRANITE3, ()),
        (templates.DEEPSEEK3, DEEPSEEK3, templates.DEEPSEEK_MARKS),
        (templates.MISTRAL_ID, MISTRAL_ID, templates.MISTRAL_MARKS),
        (templates.MISTRAL_LIST, MISTRAL_LIST, templates.MISTRAL_MARKS),
        (templates.MISTRAL, None, templates.MISTRAL_MARKS),
        (templates.DEEPSEEK31, None, templates.DEEPSEEK_MARKS),
    ],
    ids=["lfm2", "gemma4", "kimi", "granite3", "deepseek3", "mistral id", "mistral list", "mistral", "deepseek31"],
)
def test_a_forced_call(tmp_path, text, form, marks):
    """``form``: the named one; None: it is seen."""
    marks = (*templates.CHATML_MARKS, *dict.fromkeys([*marks, *(form.controls if form is not None else ())]))
    tokenizer = with_template(base_tokenizer(), text, marks, bos="<|endoftext|>", eos="<|im_end|>")
    path = write_chat_gguf(tmp_path / "m", tokenizer)
    one = Engine(EngineConfig(model_path=path, threads=1, slots=2, context=256))
    found = call_form(ChatTemplate(text, bos="", eos="<|im_end|>", control_tokens=one.info.control_tokens))
    assert form in (None, found)
    form = found
    assert form.controls
    assert not form.own
    tools = (CallableTool(name="weather", parameters=SCHEMA),)
    grammar, _ = reply_grammar(form, ToolUse(tools=tools, required=True, parallel=False), "none")
    for seed in range(3):
        deltas = said(one, grammar, seed, form.controls)
        assert_a_call(ReplyReader(form, "none", {"weather": texts_of(SCHEMA)}), deltas)
        written = "".join(delta.text for delta in deltas)
        assert written.startswith(form.prefix)
        assert written.endswith(form.suffix)
        tokens = one.handle(Tokenize(id="t", text=written, add_special=False, parse_special=True))[0].value
        assert deltas[-1].completion_tokens <= len(tokens) + 1
    one.close()


@pytest.fixture(scope="module")
def harmony(tmp_path_factory):
    marks = templates.HARMONY_MARKS
    tokenizer = with_template(base_tokenizer(), templates.HARMONY, marks, bos="<|endoftext|>", eos="<|return|>")
    path = write_chat_gguf(tmp_path_factory.mktemp("harmony") / "m", tokenizer)
    one = Engine(EngineConfig(model_path=path, threads=1, slots=2, context=256))
    yield one
    one.close()


def test_the_marks_of_channels_are_control_tokens(harmony):
    """llama.cpp takes them for a person's own tokens, and so reads them in any text."""
    assert set(templates.HARMONY_MARKS) <= set(harmony.info.control_tokens)

    def tokens(text, parse):
        return harmony.handle(Tokenize(id="t", text=text, add_special=False, parse_special=parse))[0].value

    text = "<|start|>system<|message|>x<|end|><|channel|><|constrain|><|end|"
    marks = {tokens(each, True)[0] for each in CHANNELS.controls}
    assert len(marks & set(tokens(text, True))) == 5
    assert not marks & set(tokens(text, False))


def test_a_forced_call_in_a_channel(harmony):
    use = ToolUse(tools=(CallableTool(name="weather", parameters=SCHEMA),), required=True, parallel=True)
    grammar, _ = reply_grammar(CHANNELS, use, "none", begins="header")
    for seed in range(4):
        deltas = said(harmony, grammar, seed)
        reader = ChannelReader("header", calls=True)
        assert_a_call(reader, deltas)
        assert not reader.in_call


def test_a_schema_in_the_final_channel(harmony):
    deltas = said(harmony, answer_grammar(of_json(SCHEMA), reasons=False))
    (piece,) = ChannelReader("header", calls=False).push("".join(delta.text for delta in deltas), last=True)
    assert piece.kind == "content"
    assert json.loads(piece.text)["city"] in ("Bonn", "Rome")
    assert deltas[-1].finish == "stop"
