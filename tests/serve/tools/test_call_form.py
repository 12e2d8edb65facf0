"""The form of calls, found by rendering."""

from dataclasses import replace

import pytest

from slm.data.chat.template import CHATML, ChatTemplate
from slm.serve.tools.call_form import (
    CHANNELS,
    DEEPSEEK3,
    GEMMA4,
    GRANITE3,
    KIMI,
    LFM2,
    MISTRAL_ID,
    MISTRAL_LIST,
    MISTRAL_LIST_SPACED,
    OWN_FORM,
    CallForm,
    call_form,
    in_own_form,
    with_short_ids,
)
from slm.serve.tools.call_form import HERMES as HERMES_IN_WORDS
from slm.serve.tools.written_arguments import Fields
from tests.helpers import tool_templates as templates

TOOL = {"type": "function", "function": {"name": "now", "description": "the time", "parameters": {}}}
CALL = {"type": "function", "function": {"name": "now", "arguments": {"zone": "é"}}}


def template(text, marks=templates.CHATML_MARKS):
    return ChatTemplate(text, bos="<s>", eos="</s>", control_tokens=("<s>", "</s>", "[TOOL]", *marks))


HERMES = {key: getattr(OWN_FORM, key) for key in ("prefix", "middle", "suffix", "between")}


@pytest.mark.parametrize(
    ("text", "marks", "expected"),
    [
        (CHATML, templates.CHATML_MARKS, CallForm(**HERMES, lead="\n")),
        (templates.QWEN, templates.CHATML_MARKS, CallForm(**HERMES)),
        (templates.QWEN_THINKING, templates.CHATML_MARKS, CallForm(**HERMES)),
        (
            templates.LLAMA3,
            templates.LLAMA3_MARKS,
            CallForm(prefix='{"name": "', middle='", "parameters": ', suffix="}", between=None),
        ),
        (templates.GEMMA3, templates.GEMMA3_MARKS, OWN_FORM),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", (), OWN_FORM),
    ],
)
def test_it_is_what_the_template_writes(text, marks, expected):
    assert call_form(template(text, marks)) == expected


def test_control_tokens_of_a_frame_are_seen():
    form = call_form(template(templates.QWEN.replace("<tool_call>\n", "[TOOL]\n")))
    assert (form.prefix, form.mark, form.controls, form.at_start) == (
        '[TOOL]\n{"name": "',
        "[TOOL]",
        ("[TOOL]",),
        False,
    )
    # One that ends a turn cannot begin a call: the reply would be over.
    assert call_form(template(templates.QWEN.replace("<tool_call>\n", "<|im_end|>\n"))) == OWN_FORM


@pytest.mark.parametrize(
    ("text", "marks", "expected"),
    [
        (
            templates.MISTRAL,
            templates.MISTRAL_MARKS,
            CallForm(
                prefix="[TOOL_CALLS]",
                middle="[ARGS]",
                suffix="",
                between="[TOOL_CALLS]",
                controls=("[TOOL_CALLS]", "[ARGS]"),
            ),
        ),
        (
            templates.DEEPSEEK31,
            templates.DEEPSEEK_MARKS,
            CallForm(
                prefix="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
                middle="<｜tool▁sep｜>",
                suffix="<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                between="<｜tool▁call▁end｜><｜tool▁call▁begin｜>",
                controls=templates.DEEPSEEK_MARKS[4:9],
                lists_tools=False,
            ),
        ),
        (
            templates.APERTUS,
            (*templates.CHATML_MARKS, "<|tools_prefix|>", "<|tools_suffix|>"),
            CallForm(
                prefix='<|tools_prefix|>[{"',
                middle='": ',
                suffix="}]<|tools_suffix|>",
                between='}, {"',
                controls=("<|tools_prefix|>", "<|tools_suffix|>"),
            ),
        ),
    ],
    ids=["mistral", "deepseek31", "apertus"],
)
def test_frames_of_control_tokens(text, marks, expected):
    ends = "<｜end▁of▁sentence｜>" if text == templates.DEEPSEEK31 else "</s>"
    assert call_form(ChatTemplate(text, bos="<s>", eos=ends, control_tokens=marks)) == expected


def test_without_a_system_message_tools_cannot_be_described():
    text = templates.DEEPSEEK31.replace("{{- message.content }}{%- elif message.role == 'user'", "{%- elif false")
    text = text.replace(
        "{%- if message.role == 'system' %}{{- message.content }}", "{%- if message.role == 'system' %}"
    )
    assert call_form(template(text, templates.DEEPSEEK_MARKS)) == OWN_FORM


def test_ids_of_the_length_that_a_template_wants():
    calls = [{"id": "call_0123456789abcdef", **CALL}, {"id": "ABCdef123", **CALL}]
    asked = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_call_id": "call_0123456789abcdef"},
        {"role": "user", "content": "Well?"},
    ]
    made = with_short_ids(asked, 9)
    first, second = (each["id"] for each in made[0]["tool_calls"])
    assert len(first) == 9
    assert first.isalnum()
    assert second == "ABCdef123"
    assert made[1]["tool_call_id"] == first
    assert made[2] == asked[2]


def test_other_frames():
    named = templates.QWEN.replace('<tool_call>\n{"name": "', "<function=").replace('", "arguments": \'', ">'")
    named = named.replace("'}\n</tool_call>'", "'</function>'")
    form = call_form(template(named))
    assert (form.prefix, form.middle, form.suffix, form.mark) == ("<function=", ">", "</function>", "<function=")
    assert form.between == "</function>\n<function="


def test_marks():
    assert (OWN_FORM.mark, OWN_FORM.at_start) == ("<tool_call>", False)
    llama = call_form(template(templates.LLAMA3, templates.LLAMA3_MARKS))
    assert (llama.mark, llama.at_start) == ('{"name": "', True)


def test_our_own_form_for_a_template_without_tools():
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
        {"role": "tool", "content": "night", "tool_call_id": "2"},
        {"role": "user", "content": "Well?"},
    ]
    made = in_own_form(messages, [TOOL])
    assert [each["role"] for each in made] == ["system", "user", "assistant", "user"]
    assert made[0]["content"].startswith("Be kind.\n\nYou can call these functions:\n<tools>\n{")
    assert '"name": "now"' in made[0]["content"]
    call = '<tool_call>\n{"name": "now", "arguments": {"zone": "é"}}\n</tool_call>'
    assert made[2]["content"] == f"Let me see.\n{call}\n{call}"
    results = [f"<tool_response>\n{each}\n</tool_response>" for each in ("noon", "night")]
    assert made[3]["content"] == "\n".join([*results, "Well?"])
    # Templates that want user and assistant to alternate take it.
    template(templates.GEMMA3, templates.GEMMA3_MARKS).text(made, prompt=True)
    assert in_own_form(messages[:2], []) == messages[:2]


XML = Fields(
    before="<parameter=", middle=">\n", after="\n</parameter>\n", words=("True", "False", "None"),
)  # fmt: skip
ARG = Fields(before="<arg_key>", middle="</arg_key>\n<arg_value>", after="</arg_value>\n")
DENSE = Fields(before="<arg_key>", middle="</arg_key><arg_value>", after="</arg_value>")
DSML = Fields(
    before='<｜DSML｜parameter name="', middle='" string="true">', middle_of_others='" string="false">',
    after="</｜DSML｜parameter>\n",
)  # fmt: skip
PARAM = Fields(before='<param name="', middle='">', after="</param>", words=("True", "False", "None"))


@pytest.mark.parametrize(
    ("text", "frame", "fields"),
    [
        (
            templates.QWEN_CODER,
            ("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"),
            XML,
        ),
        (templates.GLM, ("<tool_call>", "\n", "</tool_call>"), ARG),
        (templates.GLM_DENSE, ("<tool_call>", "", "</tool_call>"), DENSE),
        (templates.MINICPM, ('<function name="', '">', "</function>"), PARAM),
    ],
)
def test_arguments_that_are_written_one_by_one(text, frame, fields):
    form = call_form(template(text))
    assert (form.prefix, form.middle, form.suffix) == frame
    assert form.fields == fields
    assert form.between == f"{form.suffix}\n{form.prefix}"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (templates.LFM2, LFM2),
        (templates.GEMMA4_TOOLS, GEMMA4),
        (templates.KIMI, KIMI),
        (templates.GRANITE3, GRANITE3),
        (templates.SMOLLM3, HERMES_IN_WORDS),
        (templates.DEEPSEEK3, DEEPSEEK3),
        (templates.MISTRAL_ID, MISTRAL_ID),
        (templates.MISTRAL_LIST, MISTRAL_LIST),
        (templates.MISTRAL_LIST.replace("CALLS][", "CALLS] ["), MISTRAL_LIST_SPACED),
    ],
)
def test_forms_by_name(text, form):
    assert call_form(template(text, (*templates.CHATML_MARKS, *form.controls))) == form
    # Where a vocabulary has these names as text, so have the calls.
    assert call_form(template(text)).controls == ()


def test_a_reply_with_channels():
    marks = templates.HARMONY_MARKS
    assert call_form(template(templates.HARMONY, marks)) == CHANNELS
    # Without the control tokens nothing of it could be told from text.
    assert call_form(template(templates.HARMONY, marks[:-1])) == OWN_FORM
    assert call_form(template(templates.HARMONY.replace(">final<", ">other<"), marks)) == OWN_FORM


def test_a_template_that_lists_no_tools_has_our_form_whatever_it_is_called():
    assert call_form(template(templates.LFM2.replace("{{- tool | tojson }}", ""))) == OWN_FORM


def test_other_values_in_another_frame():
    plain = "(value if value is string else value | tojson)"
    text = templates.GLM.replace(plain, "('s:' + value if value is string else 'n:' + value | tojson)")
    form = call_form(template(text))
    assert form.fields == replace(ARG, middle=f"{ARG.middle}s:", middle_of_others=f"{ARG.middle}n:")
    # What stands behind a value has to be the same.
    text = templates.GLM.replace(plain, "(value + '$' if value is string else value | tojson)")
    assert call_form(template(text)) == OWN_FORM


def test_each_argument_says_whether_it_is_a_text():
    form = call_form(template(templates.DEEPSEEK32))
    assert (form.prefix, form.lead, form.middle) == ('<｜DSML｜function_calls>\n<｜DSML｜invoke name="', "\n\n", '">\n')
    assert form.suffix == "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    assert form.between == '</｜DSML｜invoke>\n<｜DSML｜invoke name="'
    assert form.fields == DSML
