"""Conversations are rendered as transformers renders them, and the assistant's parts in them are found."""

import datetime
import itertools
import json

import pytest

from slm.data.chat.template import CHATML, ChatTemplate, TemplateRefusesError
from slm.data.errors import UserError

MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
THINKS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def template(text=CHATML) -> ChatTemplate:
    return ChatTemplate(text, bos="<|endoftext|>", eos="<|im_end|>", control_tokens=MARKS)


def talk(*contents: str, system: str = "") -> dict:
    roles = ("user", "assistant") * len(contents)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return {"messages": ([{"role": "system", "content": system}] if system else []) + messages}


def scored(rendered) -> list[str]:
    return [rendered.text[begin:end] for begin, end in rendered.scored]


def test_chatml_scores_the_answers_with_their_end_and_nothing_else():
    rendered = template().render(talk("Hi", "Hello", "Who?", "Me", system="Be kind."))
    turns = ("system\nBe kind.", "user\nHi", "assistant\nHello", "user\nWho?", "assistant\nMe")
    assert rendered.text == "".join(f"<|im_start|>{each}<|im_end|>\n" for each in turns)
    assert scored(rendered) == ["Hello<|im_end|>", "Me<|im_end|>"]
    prompt = template().prompt(talk("Hi")["messages"])
    assert rendered.text.startswith("<|im_start|>system")
    assert prompt.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_another_models_template_scores_alike():
    assert scored(template(LLAMA3).render(talk("Hi", " Hello ", "Who?", "Me"))) == ["Hello<|eot_id|>", "Me<|eot_id|>"]


def test_a_template_that_rewrites_earlier_answers_scores_those_it_leaves():
    rendered = template(THINKS).render(talk("Hi", "Hello", "Who?", "Me"))
    assert scored(rendered) == ["<think>\n\n</think>\n\nMe<|im_end|>"]
    assert rendered.rewritten == 1


@pytest.mark.parametrize("reasoning", ["", "Hm."])
def test_an_earlier_call_is_learned_without_what_the_template_puts_before_a_last_one(reasoning):
    """Qwen3's template puts reasoning, empty or not, before the last answer alone."""
    writes = "m.content + (m.tool_calls[0].function | tojson if m.tool_calls else '')"
    thinks = THINKS.replace("m.content", writes).replace("<think>\n\n", "<think>' + (m.reasoning_content or '') + '")
    called = {"type": "function", "function": {"name": "look_up", "arguments": {"city": "Oslo"}}}
    messages = talk("Weather?", "", "rain", "It rains.")["messages"]
    messages[2]["role"] = "tool"
    messages[1] |= {"tool_calls": [called]} | ({"reasoning_content": reasoning} if reasoning else {})
    rendered = template(thinks).render({"messages": messages})
    call = json.dumps(called["function"]) + "<|im_end|>"
    answer = "<think></think>\n\nIt rains.<|im_end|>"
    assert scored(rendered) == ([answer] if reasoning else [call, answer])
    assert rendered.rewritten == bool(reasoning)


def test_what_a_template_puts_behind_the_last_answer_alone_is_no_part_of_others():
    """Phi-3.5's template ends the text with an additional token."""
    ends = CHATML + "{%- if not add_generation_prompt -%}{{- eos_token -}}{%- endif -%}"
    made = ChatTemplate(ends, bos="", eos="<|endoftext|>", control_tokens=MARKS)
    rendered = made.render(talk("Hi", "Hello", "Who?", "Me"))
    assert scored(rendered) == ["Hello<|im_end|>", "Me<|im_end|>\n<|endoftext|>"]
    assert rendered.rewritten == 0


def test_marks_in_a_content_stay_text():
    rendered = template().render(talk("a<|im_end|>b", "It ends with <|im_end|>."))
    assert scored(rendered) == ["It ends with <|im_end|>.<|im_end|>"]
    literal = [rendered.text[begin:end] for begin, end in rendered.literal]
    assert [each.count("<|im_end|>") for each in literal] == [1, 1]


def test_tools_and_their_calls_are_in_the_text():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    conversation = talk("2 and 3?", "", "", "5")
    conversation["messages"][1]["tool_calls"] = [call]
    conversation["messages"][2] = {"role": "tool", "content": "5"}
    rendered = template().render(conversation | {"tools": [{"type": "function", "function": {"name": "add"}}]})
    assert '<tools>\n{"type": "function", "function": {"name": "add"}}\n</tools>' in rendered.text
    assert scored(rendered)[0] == '\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>'


def test_a_template_that_refuses_or_is_not_valid_says_so():
    with pytest.raises(TemplateRefusesError, match="only users"):
        template("{{ raise_exception('only users') }}").render(talk("a", "b"))
    with pytest.raises(UserError, match="chat template of the model is not valid"):
        template("{% for")


def test_what_published_templates_use_beside_jinja():
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert template(text).render(talk("a", "b")).text == "ab"
    call = "{'b': 1, 'a': 'é'}|tojson(ensure_ascii=False, separators=(',', ':'), sort_keys=True)"
    found = template("{{ " + call + " }}{% for m in messages %}{{ m.content }}{% endfor %}").render(talk("a", "b"))
    assert found.text == '{"a":"é","b":1}ab'


def test_an_answer_of_no_weight_is_not_scored():
    conversation = talk("a", "b", "c", "d")
    conversation["messages"][1]["weight"] = 0
    assert scored(template().render(conversation)) == ["d<|im_end|>"]


def test_a_conversation_of_no_weight_says_so():
    conversation = talk("a", "b")
    conversation["messages"][1]["weight"] = 0
    with pytest.raises(TemplateRefusesError, match="no answer in it is to be learned"):
        template().render(conversation)


ANSWER = {"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2.5}}}]}
DROPS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>{% endfor %}{{ PROMPT }}"
PROMPT = "'<|im_start|>assistant\\n' if add_generation_prompt else ''"


def dropping(content: str, extra: str = "") -> ChatTemplate:
    return template(DROPS.replace("CONTENT", content).replace("PROMPT", PROMPT) + extra)


@pytest.mark.parametrize(
    ("content", "conversation", "what"),
    [
        ("m.content", {"messages": [*talk("a")["messages"], ANSWER]}, "tool calls"),
        ("m.content if m.role != 'assistant' else 'x'", talk("a", "bcd"), "the text of message 2"),
        ("m.content if m.role != 'system'", talk("a", "b", system="Be kind."), "the system's text, message 1"),
        ("m.content[:3]", talk("abc", "defgh"), "the text of message 2"),
        ("m.content", talk("a", "b") | {"tools": [{"function": {"name": "look"}}]}, "the tool 'look'"),
        (
            "m.content if m.role != 'tool'",
            {
                "messages": [
                    *talk("a", "b")["messages"],
                    {"role": "tool", "content": "four"},
                    talk("", "c")["messages"][1],
                ]
            },
            "the result of a tool, message 3",
        ),
    ],
)
def test_what_a_template_drops_is_refused_by_name(content, conversation, what):
    with pytest.raises(TemplateRefusesError, match=f"does not write {what}"):
        dropping(content).render(conversation)


@pytest.mark.parametrize("content", ["m.content | trim", "m.content | tojson", "m.content | upper", "'> ' + m.content"])
def test_what_a_template_spells_otherwise_is_not_dropped(content):
    rendered = dropping(content).render(talk(' a "b" ', ' c\n\n"d" \u00e9 '))
    assert len(rendered.scored) == 1


def test_reasoning_goes_where_the_template_reads_it():
    conversation = talk("a", "b", "c", "d")
    conversation["messages"][3]["reasoning_content"] = "because"
    for read in ("m.reasoning_content", "m['reasoning']", "m.get('thinking')", 'm["thinking"]'):
        knows = dropping(f"'<think>' + {read} + '</think>' + m.content if {read} else m.content")
        rendered = knows.render(conversation)
        assert scored(rendered)[-1] == "<think>because</think>d<|im_end|>"
        assert rendered.without_reasoning == 0
    assert dropping("m.content").render(conversation).without_reasoning == 1
    said = talk("a", "<think>because</think>b")
    assert dropping("m.content.split('</think>')[-1]").render(said).without_reasoning == 1
    assert dropping("m.content").render(said).without_reasoning == 0


def test_a_template_that_prints_the_time_is_rendered_at_one_moment():
    """At a thousandth of a second, so that two renderings at two moments differ."""
    text = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}" + DROPS.replace("CONTENT", "m.content").replace(
        "PROMPT", PROMPT
    )
    rendered = [template(text).render(talk("a", "b", "c", "d")) for _ in range(2)]
    assert rendered[0].text != rendered[1].text
    assert all(len(each.scored) == 2 for each in rendered)
    fixed = datetime.datetime(2026, 1, 31, 23, 59, 59, 999999)
    made = ChatTemplate(text, bos="", eos="", control_tokens=MARKS, moment=fixed)
    texts = [
        made.render(talk("a", "b")).text,
        made.prompt(talk("a")["messages"]).text,
        made.text(talk("a")["messages"]),
    ]
    assert all(each.startswith("2026-01-31 23:59:59.999999<|im_start|>") for each in texts)


def test_every_call_that_is_scored_stands_in_the_text():
    """Arguments of every JSON type, spelled as templates do."""
    values = ["x", 'a "b"\n', "\u00e9", 5, 2.5, 1e30, True, None, [], {"k": ["v", {}]}, ""]
    spellings = ("{0} | tojson", "{0} | tojson(indent=2)", "{0} | string", "{0} | items | list | string")
    for value, spelling in itertools.product(values, spellings):
        call = {"type": "function", "function": {"name": "look_up", "arguments": {"key": value}}}
        conversation = talk("a", "b")
        conversation["messages"][1]["tool_calls"] = [call]
        calls = "m.tool_calls[0].function.name + ' ' + (" + spelling.format("m.tool_calls[0].function.arguments") + ")"
        knows = dropping(f"m.content + {calls} if m.tool_calls else m.content")
        assert "look_up" in scored(knows.render(conversation))[0], (value, spelling)
        assert json.dumps(call)


def test_what_is_said_twice_is_written_twice():
    """The first one's text stood for the second, which the template drops."""
    first = "{% for m in messages %}{% if m.role == 'assistant' or loop.first %}"
    turn = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    ask = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    conversation = talk("Yes", "Hello", "Yes", "Me")
    assert len(scored(template().render(conversation))) == 2
    with pytest.raises(TemplateRefusesError, match="each of the messages that say the same"):
        template(first + turn + ask).render(conversation)
    function = {"name": "go", "arguments": {"from": "Rome", "to": "Oslo"}}
    back = {"name": "go", "arguments": {"from": "Oslo", "to": "Rome"}}
    calls = [{"type": "function", "function": each} for each in (function, back)]
    called = {
        "messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "", "tool_calls": calls}]
    }
    assert scored(template().render(called))[0].count('"name": "go"') == 2
    with pytest.raises(TemplateRefusesError, match="the tool calls of message 2"):
        template(CHATML.replace("message.tool_calls or []", "(message.tool_calls or [])[:1]")).render(called)
