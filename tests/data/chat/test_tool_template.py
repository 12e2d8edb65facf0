"""A template around one that knows no tools writes them, and what the server would send for the same messages."""

import json

import pytest

from slm.data.chat.template import CHATML, ChatTemplate, TemplateRefusesError
from slm.data.chat.tool_template import with_tools
from slm.serve.tools.call_form import OWN_FORM, call_form, in_own_form, without_system
from tests.helpers import tool_templates as templates

ALL = ("tools", "calls", "results")
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helper.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of a model that knows no tools: it writes neither ``tools`` nor ``tool_calls``."""
DEEPSEEK = (
    "{%- for m in messages %}{%- if m.role == 'assistant' and m.tool_calls %}{{- '<a>' }}"
    "{%- for call in m.tool_calls %}{{- '<call>' + call.function.name + '\n' + call.function.arguments }}{%- endfor %}"
    "{{- '</s>' }}{%- else %}{{- '<' + m.role + '>' + m.content + '</s>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<a>' }}{%- endif %}"
)
"""It joins a call's arguments to text, so they must be text."""
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 2, "b": 'x"y', "c": [True]}},
}
TOOL = {"type": "function", "function": {"name": "add", "description": "of two", "parameters": {}}}


def make(text: str) -> ChatTemplate:
    marks = (*templates.CHATML_MARKS, *templates.GEMMA3_MARKS, "<s>", "</s>")
    return ChatTemplate(text, bos="<bos>", eos="</s>", control_tokens=marks)


def talk(*, system: bool) -> dict:
    said = [
        {"role": "user", "content": "2 and x?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "5", "tool_call_id": "call00001"},
        {"role": "tool", "content": '{"six": 6}'},
        {"role": "assistant", "content": "It is 5."},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ]
    return {"messages": [{"role": "system", "content": "Be kind."}] * system + said, "tools": [TOOL]}


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("text", [SMOLLM2, templates.GEMMA3], ids=["smollm2", "gemma3"])
def test_it_writes_all_and_scores_every_answer(text, system):
    conversation = talk(system=system)
    with pytest.raises(TemplateRefusesError):
        make(text).render(conversation)
    template = make(with_tools(make(text), ALL))
    rendered = template.render(conversation)
    arguments = json.dumps(CALL["function"]["arguments"])
    called = f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'
    end = "<end_of_turn>" if text == templates.GEMMA3 else "<|im_end|>"
    scored = [rendered.text[begin:stop] for begin, stop in rendered.scored]
    assert scored == [f"Let me see.\n{called}\n{called}{end}", f"It is 5.{end}", f"{called}{end}"]
    assert '<tool_response>\n5\n</tool_response>\n<tool_response>\n{"six": 6}\n</tool_response>' in rendered.text
    assert json.dumps(TOOL) in rendered.text


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("text", [SMOLLM2, templates.GEMMA3], ids=["smollm2", "gemma3"])
def test_a_server_sends_the_same_text(text, system):
    """``serve`` describes tools to such a model in the same words, and finds their form in the new template."""
    plain, template = make(text), make(with_tools(make(text), ALL))
    conversation = talk(system=system)
    messages = in_own_form(conversation["messages"], conversation["tools"])
    if text == templates.GEMMA3 and not system:
        messages = without_system(messages)
    assert template.text(conversation["messages"], [TOOL]) == plain.text(messages)
    form = call_form(template)
    assert (form.prefix, form.middle, form.suffix) == (OWN_FORM.prefix, OWN_FORM.middle, OWN_FORM.suffix)
    assert not form.own


@pytest.mark.parametrize("text", [SMOLLM2, templates.GEMMA3, templates.QWEN, CHATML])
def test_without_tools_it_writes_what_the_model_does(text):
    plain, template = make(text), make(with_tools(make(text), ALL))
    said = [
        {"role": role, "content": content} for role, content in (("user", " a "), ("assistant", "b"), ("user", "c"))
    ]
    for messages in (said, [{"role": "system", "content": "s"}, *said]):
        for prompt in (False, True):
            assert template.text(messages, prompt=prompt) == plain.text(messages, prompt=prompt)


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        (CHATML, set(ALL)),
        (templates.QWEN, set(ALL)),
        (templates.LLAMA3, set(ALL)),
        (SMOLLM2, {"results"}),
        (templates.GEMMA3, set()),
        (DEEPSEEK, {"calls", "results"}),
    ],
)
def test_what_a_template_writes_is_found(text, writes):
    assert make(text).writes == writes


def test_arguments_come_as_text_where_a_template_takes_nothing_else():
    conversation = talk(system=False)
    conversation["messages"][1]["content"] = ""
    text = make(DEEPSEEK).text(conversation["messages"])
    assert text.count("<call>add\n" + json.dumps(CALL["function"]["arguments"])) == 3


def test_a_template_that_drops_everything_is_refused():
    with pytest.raises(TemplateRefusesError, match="is not in its own text"):
        with_tools(make("{{ messages | length }}"), ALL)
