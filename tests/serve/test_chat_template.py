from dataclasses import fields

import pytest

from serve.chat_template import ChatPrompt, ChatTemplateError
from serve.engine.messages import ModelInfo

_BLANK = {field.name: 0 for field in fields(ModelInfo)}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def prompt(template, bos="<s>"):
    return ChatPrompt(ModelInfo(**{**_BLANK, "chat_template": template, "bos": bos, "eos": "</s>"}))


def test_the_models_own_template():
    chat = prompt("{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}>")
    assert chat.own
    assert chat.stop == ()
    assert chat.render(MESSAGES) == ("[system] Be brief.\n[user] Hi\n>", True)


def test_a_template_that_writes_bos_itself():
    text, add_special = prompt("{{ bos_token }}{{ messages[0].content | tojson }}").render(MESSAGES)
    assert text == '<s>"Be brief."'
    assert not add_special


def test_the_plain_form():
    chat = prompt(None)
    assert not chat.own
    assert chat.problem is None
    assert chat.render(MESSAGES) == ("System: Be brief.\n\nUser: Hi\n\nAssistant:", True)
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
        text, _ = prompt(attack).render(MESSAGES)
    except ChatTemplateError:
        return
    assert text == ""  # an attribute that the sandbox hides is undefined, which renders as nothing


def test_a_template_may_refuse_messages():
    with pytest.raises(ChatTemplateError, match="turns must alternate"):
        prompt("{{ raise_exception('turns must alternate') }}").render(MESSAGES)
