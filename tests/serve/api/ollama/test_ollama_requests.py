"""Requests of Ollama's API, and what they become."""

import pytest

from slm.serve.api.errors import ApiError
from slm.serve.api.ollama.requests import OllamaChatRequest, OllamaEmbedRequest, OllamaGenerateRequest
from tests.helpers.api import error, parsed

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def chat(**fields):
    return parsed(OllamaChatRequest, {"model": "tiny", "messages": HELLO, **fields}).as_chat()


def test_options():
    made = chat(
        options={
            **{"temperature": 0.5, "top_k": 7, "top_p": 0.25, "seed": 3, "stop": ["x"], "repeat_penalty": 1.5},
            **{"num_ctx": 8192, "num_predict": 9, "num_thread": 2, "mirostat": 0, "mirostat_tau": 5.0},
        }
    )
    assert (made.temperature, made.top_k, made.top_p, made.seed, made.stops()) == (0.5, 7, 0.25, 3, ("x",))
    assert made.repeat_penalty == 1.5
    assert made.limit() == 9
    assert chat(options={"num_predict": -1}).limit() is chat(options={"num_predict": -2}).limit() is None
    assert chat(options={"repeat_last_n": -1}).repeat_last_n == 65536


@pytest.mark.parametrize(
    "options", [{"wings": 2}, {"mirostat": 3}, {"temperature": "hot"}, {"num_predict": 1.5}, {"stop": 3}]
)
def test_options_that_are_refused(options):
    with pytest.raises(ApiError) as caught:
        chat(options=options)
    assert next(iter(options)) in caught.value.body["error"]["message"]


def test_format_thinking_and_logprobs():
    assert chat().response_format is None
    assert chat(format="json").response_format.type == "json_object"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert chat(format=schema).response_format.json_schema.schema_ == schema
    assert chat(think=True).chat_template_kwargs == chat(think="high").chat_template_kwargs == {"enable_thinking": True}
    assert chat(think=False).chat_template_kwargs == {"enable_thinking": False}
    assert chat().chat_template_kwargs == {}
    assert (chat(logprobs=True, top_logprobs=2).n_top(), chat().n_top()) == (2, None)


def test_messages_and_tools():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "s"},
        *HELLO,
        {"role": "assistant", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "2"},
    ]
    made = chat(messages=messages, tools=[TOOL])
    system, _, said, result = made.messages
    assert (system.role, system.content) == ("system", "s")
    assert said.reasoning_content == "hm"
    assert said.tool_calls[0].function.arguments == '{"a": 1}'
    assert (result.role, result.name, result.content) == ("tool", "add", "2")
    assert made.tools[0].function.name == "add"
    picture = [{**HELLO[0], "images": ["aGk="]}]
    assert error(OllamaChatRequest, {"messages": picture})["param"] == "messages.0.images"


def test_generate():
    def made(**fields):
        return parsed(OllamaGenerateRequest, {"prompt": "p", **fields})

    assert [(each.role, each.content) for each in made(system="s").as_chat().messages] == [
        ("system", "s"),
        ("user", "p"),
    ]
    assert made(system="s").as_completion().prompt == "s\n\np"
    assert made(system="s", raw=True).as_completion().prompt == "p"
    assert made(logprobs=True, top_logprobs=3).as_completion().logprobs == 3
    for fields in ({"context": [1]}, {"template": "x"}, {"images": ["x"]}):
        assert error(OllamaGenerateRequest, {"prompt": "p", **fields})["param"] == next(iter(fields))


def test_keep_alive():
    for value, unloads in (
        (0, True),
        ("0", True),
        ("0s", True),
        (0.0, True),
        ("5m", False),
        (-1, False),
        (None, False),
    ):
        assert parsed(OllamaGenerateRequest, {"keep_alive": value}).unloads is unloads
    assert parsed(OllamaEmbedRequest, {"input": "x"}).inputs() == ["x"]
