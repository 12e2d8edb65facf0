"""A run's tokenizer carries a template that writes its conversations, and the moment that this template prints."""

import datetime
import json

import pytest

from slm.data.chat.formats import to_document
from slm.data.chat.tokens import ChatEncoder, own_template
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.stream.chat_setup import chat_setup, with_moment
from slm.data.tokenizers.tokenizer import Tokenizer
from tests.data.chat.test_tool_template import CALL, SMOLLM2, TOOL
from tests.helpers import chat_model
from tests.helpers import tool_templates as templates

DATED = SMOLLM2.replace("You are a helper.", "Today is {{ strftime_now('%d %b %Y %f') }}.").replace(
    "{{ '<|im_start|>system\nToday is {{ strftime_now('%d %b %Y %f') }}.<|im_end|>\n' }}",
    "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %b %Y %f') + '.<|im_end|>\n' }}",
)


def tokenizer(template: str | None) -> Tokenizer:
    base = chat_model.base_tokenizer()
    if template is None:
        return base
    return chat_model.with_template(base, template, templates.CHATML_MARKS, bos="<|endoftext|>", eos="<|im_end|>")


def records(n: int = 10, *, tools: bool) -> list[dict]:
    plain = [{"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "It is."}]}] * n
    called = [
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "5."},
    ]
    return [*plain, *([{"messages": called, "tools": [TOOL]}] * 3 if tools else [])]


def config(tmp_path, *, tools: bool = True, **options) -> DataConfig:
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, records(tools=tools))))
    return DataConfig(kind="chat", files=[str(file)], **options)


def test_a_template_without_tools_is_replaced_where_the_conversations_have_some(tmp_path):
    made, lines = chat_setup(tokenizer(SMOLLM2), config(tmp_path))
    assert lines == [
        "the chat template of chat does not write tools, tool calls (3 with tools, 3 with tool calls, 3 with results "
        "of tools): the run carries one of slm around it that writes them as text (data.tool_template=own keeps its "
        "own)"
    ]
    conversation = {"messages": records(tools=True)[-1]["messages"], "tools": [TOOL]}
    conversation["messages"][1]["content"] = ""
    rendered = ChatEncoder(made).conversation(to_document(conversation))[2]
    assert '"name": "add"' in rendered.text[slice(*rendered.scored[0])]
    saved = tmp_path / "saved"
    made.save(saved)
    assert json.loads((saved / "tokenizer_config.json").read_text())["chat_template"] == own_template(made)
    assert made.fingerprint == tokenizer(SMOLLM2).fingerprint


def test_a_template_stays_where_it_writes_them_or_none_has_any_or_a_person_says_so(tmp_path):
    for template, options, tools in (
        (templates.QWEN, {}, True),
        (SMOLLM2, {}, False),
        (SMOLLM2, {"tool_template": "own"}, True),
    ):
        made, lines = chat_setup(tokenizer(template), config(tmp_path, tools=tools, **options))
        assert (own_template(made), lines) == (template, [])
    made, lines = chat_setup(tokenizer(None), config(tmp_path))
    assert not lines  # ChatML knows tools
    made, lines = chat_setup(tokenizer(templates.QWEN), config(tmp_path, tool_template="ours"))
    assert lines[0].startswith("data.tool_template=ours (3 with tools")
    assert own_template(made).endswith(templates.QWEN)


def test_a_models_own_template_for_tools_comes_first(tmp_path):
    several = [{"name": "default", "template": SMOLLM2}, {"name": "tool_use", "template": templates.QWEN}]
    both = chat_model.with_template(
        chat_model.base_tokenizer(), several, templates.CHATML_MARKS, bos="<|endoftext|>", eos="<|im_end|>"
    )
    made, lines = chat_setup(both, config(tmp_path))
    assert own_template(made) == templates.QWEN
    assert "the run carries the one that it has for tools" in lines[0]


def test_a_template_that_no_other_can_be_put_around_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no other can be made of it: .*data\.tool_template=own"):
        chat_setup(tokenizer("{% for m in messages %}{{ m.role }}{% endfor %}"), config(tmp_path))


def test_a_run_has_one_moment(tmp_path):
    """Its checkpoints carry it, so a resumed run renders the same conversations."""
    data = config(tmp_path, tools=False)
    document = to_document(records(1, tools=False)[0])
    made, _ = chat_setup(tokenizer(DATED), data)
    first = ChatEncoder(made).conversation(document)
    made.save(tmp_path / "saved")
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    again = ChatEncoder(Tokenizer(files, name="again")).conversation(document)
    assert first[2].text == again[2].text
    assert first[0].tolist() == again[0].tolist()
    other = ChatEncoder(with_moment(made, datetime.datetime(2001, 2, 3))).conversation(document)[2]
    assert "Today is 03 Feb 2001 000000." in other.text
    assert with_moment(tokenizer(SMOLLM2)).files == tokenizer(SMOLLM2).files
