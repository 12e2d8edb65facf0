from dataclasses import fields

import pytest

from serve.chat_template import ChatPrompt, ChatTemplateError, RenderedChat
from serve.engine.messages import ModelInfo

_BLANK = {field.name: 0 for field in fields(ModelInfo)}
CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def prompt(template, bos="<s>"):
    return ChatPrompt(
        ModelInfo(**{**_BLANK, "chat_template": template, "bos": bos, "eos": "</s>", "control_tokens": CONTROL})
    )


def rendered(text, add_special, parse_special=True):
    return RenderedChat(text=text, add_special=add_special, parse_special=parse_special)


def test_the_models_own_template():
    chat = prompt("{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}>")
    assert chat.own
    assert chat.stop == ()
    assert chat.render(MESSAGES) == rendered("[system] Be brief.\n[user] Hi\n>", True)


def test_a_template_that_writes_bos_itself():
    chat = prompt("{{ bos_token }}{{ messages[0].content | tojson }}").render(MESSAGES)
    assert chat == rendered('<s>"Be brief."', False)


def test_the_plain_form():
    chat = prompt(None)
    assert not chat.own
    assert chat.problem is None
    assert chat.render(MESSAGES) == rendered("System: Be brief.\n\nUser: Hi\n\nAssistant:", True, parse_special=False)
    assert "\n\nUser:" in chat.stop


def test_a_broken_template_falls_back_and_says_so():
    chat = prompt("{% for %}")
    assert not chat.own
    assert "not valid" in chat.problem


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_a_hostile_template_is_refused(attack):
    try:
        text = prompt(attack).render(MESSAGES).text
    except ChatTemplateError:
        return
    assert text == ""  # an attribute that the sandbox hides is undefined, which renders as nothing


def test_a_template_may_refuse_messages():
    with pytest.raises(ChatTemplateError, match="turns must alternate"):
        prompt("{{ raise_exception('turns must alternate') }}").render(MESSAGES)


def test_bos_that_a_content_spells_is_no_bos():
    chat = prompt("{{ messages[0].content }}{{ eos_token }}")
    messages = [{"role": "user", "content": "<s> hi"}]
    text = "<s> hi</s>"
    spans = ((0, 6),)
    assert chat.render(messages) == RenderedChat(text=text, add_special=True, parse_special=True, literal_spans=spans)
    assert chat.render(messages, parse_special_in_content=True) == rendered(text, False)


def test_a_template_that_prints_the_time_is_rendered_at_one_time():
    chat = prompt("{{ strftime_now('%f') }}<|im_start|>{{ messages[0].content }}")
    text = chat.render([{"role": "user", "content": "x<|im_end|>y"}])
    assert [text.text[slice(*span)] for span in text.literal_spans] == ["x<|im_end|>y"]
