"""Tool calls, reasoning and continued messages, over HTTP and with the official client. The model is random: a forced
grammar gives its calls their shape."""

import json
from itertools import pairwise

import httpx
import openai
import pytest

from tests.helpers import tiny_gguf, tool_templates

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of some days",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Bonn", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "weather"}}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(chat_server):
    return openai.OpenAI(base_url=chat_server.url + "/v1", api_key="none", max_retries=0)


# What stands before the name is forced; the script goes on at its last token.
CALL_TEXT = ('"', 'weather", "arguments": {"city": "Bonn", "days": 3}}', "\n</tool_call>")
SCRIPT = ["\n", "<think>", "Which day?", "</think>\n\n", "I look.", "<tool_call>", *CALL_TEXT, "<|im_end|>"]
ANSWER = ["<done>", "It is sunny.", "<|im_end|>"]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory, start_server):
    """A model that reasons, calls a tool, and answers when it has the result."""
    folder = tmp_path_factory.mktemp("scripted")
    template = tool_templates.QWEN_THINKING + "{%- if messages[-1].role == 'tool' %}{{- '<done>' }}{%- endif %}"
    follows = {**dict(pairwise(SCRIPT)), **dict(pairwise(ANSWER))}
    path = tiny_gguf.write(folder / "scripted.gguf", chat_template=template, n_ctx=1024, script=follows)
    with start_server(folder / "log", path) as server:
        yield server


def ask(client, messages=HELLO, **more):
    more = {"tools": [WEATHER], "max_tokens": 150, "seed": 1, **more}
    return client.chat.completions.create(model="tiny-chat", messages=messages, **more)


def checked(call):
    assert call.type == "function"
    assert call.function.name == "weather"
    values = json.loads(call.function.arguments)
    assert values.keys() == {"city", "days"}
    assert values["city"] in ("Bonn", "Rome")
    assert 1 <= values["days"] <= 9
    return values


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_whole_and_streamed(client, choice):
    whole = ask(client, tool_choice=choice, parallel_tool_calls=False).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call,) = whole.message.tool_calls
    values = checked(call)
    chunks = list(ask(client, tool_choice=choice, parallel_tool_calls=False, stream=True))
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].id.startswith("call_")
    assert (pieces[0].function.name, pieces[0].function.arguments) == ("weather", "")
    assert all(piece.index == 0 for piece in pieces)
    assert all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    assert len(pieces) > 3  # what the grammar forces comes in one piece
    assert json.loads("".join(piece.function.arguments for piece in pieces)) == values
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_accumulator(client):
    more = {"model": "tiny-chat", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "seed": 2}
    with client.chat.completions.stream(**more, max_tokens=200, parallel_tool_calls=False) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds
    checked(message.tool_calls[0])


def test_a_loop_of_calls_and_results(client):
    """What a program does: it sends the reply back as it is, with the results, and asks for more."""
    reply = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message
    messages = [*HELLO, reply]
    for call in reply.tool_calls:
        checked(call)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    last = ask(client, messages, tool_choice="none", max_tokens=4)
    assert last.choices[0].message.tool_calls is None
    assert last.usage.prompt_tokens > ask(client, tool_choice="none", max_tokens=4).usage.prompt_tokens + 50


def test_the_model_decides_to_call(scripted):
    """tool_choice is auto: reasoning, text and a call come apart, and the loop ends with an answer."""
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "How is the weather?"}]
        request = {"model": "scripted", "temperature": 0, "tools": [WEATHER, NOW], "max_tokens": 60}
        choice = client.chat.completions.create(messages=messages, **request).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        assert choice.message.reasoning_content == "Which day?"
        (call,) = choice.message.tool_calls
        assert call.function.arguments == '{"city": "Bonn", "days": 3}'
        deltas = [
            chunk.choices[0].delta
            for chunk in client.chat.completions.create(messages=messages, **request, stream=True)
        ]
        assert "".join(getattr(each, "reasoning_content", None) or "" for each in deltas) == "Which day?"
        assert "".join(each.content or "" for each in deltas) == "I look."
        pieces = [piece for each in deltas for piece in each.tool_calls or []]
        assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        last = client.chat.completions.create(messages=messages, **request).choices[0]
        assert (last.finish_reason, last.message.content) == ("stop", "It is sunny.")
        assert last.message.tool_calls is None
        # The schema holds: the model would say Bonn.
        rome = json.loads(json.dumps(WEATHER))
        rome["function"]["parameters"]["properties"]["city"] = {"const": "Rome"}
        forced = client.chat.completions.create(messages=messages[:1], **{**request, "tools": [rome]}).choices[0]
        assert '"Bonn"' not in json.dumps(forced.message.model_dump())
        # Reasoning may stand before a call that must come; without tools, all is text.
        must = client.chat.completions.create(messages=messages[:1], **request, tool_choice="required").choices[0]
        assert must.message.reasoning_content == "Which day?"
        none = client.chat.completions.create(messages=messages[:1], **request, tool_choice="none").choices[0].message
        assert none.tool_calls is None
        assert none.content.startswith("I look.<tool_call>")
        whole = {**request, "extra_body": {"separate_reasoning": False}, "tool_choice": "none"}
        message = client.chat.completions.create(messages=messages[:1], **whole).choices[0].message
        assert message.content.startswith("<think>Which day?</think>")

        def prompt_tokens(**more):
            answer = client.chat.completions.create(
                messages=messages[:1], **{**request, "max_tokens": 1}, extra_body=more
            )
            return answer.usage.prompt_tokens

        off = prompt_tokens(chat_template_kwargs={"enable_thinking": False})
        assert off > prompt_tokens() == prompt_tokens(chat_template_kwargs={"enable_thinking": True})


OPENS_REASONING = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>' }}{%- endif %}"""


def test_structured_output_follows_the_reasoning_that_a_prompt_has_opened(tmp_path, start_server):
    """As with R1 and QwQ, whose template ends the prompt with <think>."""
    path = tiny_gguf.write(
        tmp_path / "thinker.gguf", chat_template=OPENS_REASONING, n_ctx=1024, script=dict(pairwise(SCRIPT))
    )
    schema = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    request = {"model": "thinker", "messages": [{"role": "user", "content": "Where?"}], "temperature": 0}
    with (
        start_server(tmp_path / "log", path) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        create = client.chat.completions.create
        message = create(**request, max_tokens=150, response_format=form).choices[0].message
        assert message.reasoning_content == "Which day?"
        assert json.loads(message.content)["city"] in ("Bonn", "Rome")
        whole = {"extra_body": {"separate_reasoning": False}}
        plain = create(**request, max_tokens=150, response_format=form, **whole).choices[0].message.content
        assert json.loads(plain)["city"] in ("Bonn", "Rome")
        grammar = {"extra_body": {"grammar": 'root ::= "so"'}}
        assert create(**request, max_tokens=9, **grammar).choices[0].message.content == "so"


# Behind <|message|> this model always reasons: what comes in the final channel is the same, or follows a grammar.
CHANNEL_SCRIPT = {
    **dict(pairwise(["<|channel|>", "analysis", "<|message|>", "Which day?", "<|end|>", "<|start|>", "assistant"])),
    **{"assistant": "<|channel|>", "<go>": " to=functions.", " to=functions.": "weather", "weather": "<|channel|>"},
    **{"final": "<|message|>", "<|constrain|>": "json", "<|call|>": "<|return|>"},
}


@pytest.fixture(scope="module")
def channels(tmp_path_factory, start_server):
    """A model that writes in channels, as gpt-oss does."""
    folder = tmp_path_factory.mktemp("channels")
    template = tool_templates.HARMONY + "{%- if tools and messages[-1].role == 'user' %}{{- '<go>' }}{%- endif %}"
    path = tiny_gguf.write(folder / "channels.gguf", chat_template=template, n_ctx=1024, script=CHANNEL_SCRIPT)
    with (
        start_server(folder / "log", path) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def in_channels(client, messages=HELLO, **more):
    return client.chat.completions.create(model="channels", messages=messages, temperature=0, **more)


def test_channels_come_apart(channels):
    """The limit of reasoning opens the final channel."""
    ends = {"extra_body": {"thinking_budget_tokens": 1}}
    answer = in_channels(channels, max_tokens=12, **ends)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Which day?", "Which day?")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4
    deltas = [chunk.choices[0].delta for chunk in in_channels(channels, max_tokens=12, stream=True, **ends)]
    assert "".join(getattr(each, "reasoning_content", None) or "" for each in deltas) == "Which day?"
    assert "".join(each.content or "" for each in deltas) == "Which day?"
    raw = in_channels(channels, max_tokens=5, extra_body={"separate_reasoning": False}).choices[0].message
    assert raw.content == "<|channel|>analysis<|message|>Which day?<|end|>"
    assert in_channels(channels, [*HELLO, raw, *HELLO], max_tokens=1).choices[0].finish_reason == "length"
    off = in_channels(channels, max_tokens=2, reasoning_effort="none").choices[0].message
    assert off.content == "Which day?"
    assert not hasattr(off, "reasoning_content")


def test_a_stop_string_is_found_in_what_a_client_is_shown(channels):
    """No word of a message's header, and no mark around it, ends a reply."""
    for stop in ("analysis", "assistant", "final", "<|", "<|message|>", "<|end|>"):
        answer = in_channels(channels, max_tokens=12, stop=stop, extra_body={"thinking_budget_tokens": 1}).choices[0]
        assert (answer.message.reasoning_content, answer.message.content) == ("Which day?", "Which day?"), stop
        assert answer.finish_reason == "length"
    for channel, budget in (("reasoning", {}), ("content", {"reasoning_effort": "none"})):
        answer = in_channels(channels, max_tokens=12, stop="day", **budget).choices[0]
        assert answer.finish_reason == "stop"
        said = answer.message.content if channel == "content" else answer.message.reasoning_content
        assert said == "Which "
    raw = in_channels(channels, max_tokens=9, stop="analysis", extra_body={"separate_reasoning": False}).choices[0]
    assert (raw.finish_reason, raw.message.content) == ("stop", "<|channel|>"), "that is what it is shown here"


def test_with_tools_the_limit_of_reasoning_holds_for_the_whole_reply(channels):
    """This model begins to reason again behind all reasoning that ends."""
    first = in_channels(channels, tools=[WEATHER, NOW], max_tokens=100).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    request = {"tools": [WEATHER, NOW], "extra_body": {"thinking_budget_tokens": 1}}
    answer = in_channels(channels, [*HELLO, first, result], max_tokens=17, **request).choices[0].message
    assert (answer.reasoning_content, answer.content) == ("Which day?", "Which day?")
    must = in_channels(channels, [*HELLO, first, result], max_tokens=100, tool_choice="required", **request).choices[0]
    assert must.message.reasoning_content == "Which day?"
    checked(must.message.tool_calls[0])


def test_a_later_system_message_is_passed_on_and_named(channels):
    messages = [*HELLO, {"role": "assistant", "content": "Yes?"}, {"role": "developer", "content": "Be kind."}, *HELLO]
    raw = channels.chat.completions.with_raw_response.create(model="channels", messages=messages, max_tokens=1)
    said = "system messages moved to the beginning: 1 (the chat template has one there alone)"
    assert raw.headers["x-slm-warnings"] == said
    assert raw.http_response.json()["warnings"] == [said]
    first = [messages[2], *messages[:2], *HELLO]
    same = channels.chat.completions.with_raw_response.create(model="channels", messages=first, max_tokens=1)
    assert "x-slm-warnings" not in same.headers
    assert same.parse().usage.prompt_tokens == raw.parse().usage.prompt_tokens


def test_structured_output_in_the_final_channel(channels):
    schema = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    budget, whole = {"extra_body": {"thinking_budget_tokens": 1}}, {"extra_body": {"separate_reasoning": False}}
    for more, thought in ((budget, "Which day?"), ({"reasoning_effort": "none"}, None), (whole, None)):
        choice = in_channels(channels, max_tokens=100, response_format=form, **more).choices[0]
        assert json.loads(choice.message.content)["city"] in ("Bonn", "Rome")
        assert getattr(choice.message, "reasoning_content", None) == thought
        assert choice.finish_reason == "stop"
    own = in_channels(channels, max_tokens=9, extra_body={"grammar": 'root ::= "so"'}).choices[0].message
    assert own.content == "so"


def test_calls_in_a_channel(channels):
    request = {"tools": [WEATHER, NOW], "max_tokens": 100}
    choice = in_channels(channels, **request).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    checked(call)
    pieces = [
        piece
        for chunk in in_channels(channels, **request, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or []
    ]
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    ends = {"extra_body": {"thinking_budget_tokens": 1}, "tool_choice": "none", "max_tokens": 11}
    last = in_channels(channels, [*HELLO, choice.message, result], **{**request, **ends}).choices[0].message
    assert last.content == "Which day?"
    for forced in ("required", NAMED):
        for more in ({}, {"reasoning_effort": "none"}):
            must = in_channels(channels, **request, tool_choice=forced, **more).choices[0]
            checked(must.message.tool_calls[0])
    both = channels.chat.completions.with_raw_response.create(
        model="channels", messages=HELLO, parallel_tool_calls=True, **request
    )
    assert both.headers["x-slm-ignored"] == "parallel_tool_calls"
    cut = in_channels(channels, **{**request, "max_tokens": 8}).choices[0]
    assert cut.finish_reason == "length"
    (begun,) = cut.message.tool_calls
    assert begun.function.name == "weather"
    back = [*HELLO, cut.message, {**result, "tool_call_id": begun.id}]
    assert in_channels(channels, back, tools=[WEATHER], max_tokens=2).usage.completion_tokens == 2


def test_several_choices_each_with_calls_of_its_own(client):
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, n=3)
    calls = [choice.message.tool_calls[0] for choice in answer.choices]
    assert len({call.id for call in calls}) == 3
    for call in calls:
        checked(call)


def test_a_call_that_is_cut_off_is_told(client):
    cut = ask(client, tool_choice="required", max_tokens=45).choices[0]
    assert cut.finish_reason == "length"


def test_a_call_that_was_cut_off_does_not_block_the_conversation(client):
    cut = {"name": "weather", "arguments": '{"city": "Bonn", "da'}
    call = {"id": "1", "type": "function", "function": cut}
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "cut off"}]}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    raw = client.chat.completions.with_raw_response.create(model="tiny-chat", messages=messages, max_tokens=2)
    assert raw.headers["x-slm-ignored"] == "messages.1.tool_calls.0.function.arguments.end"
    whole = {**cut, "arguments": '{"city": "Bonn"}'}
    same = [*HELLO, {"role": "assistant", "tool_calls": [{**call, "function": whole}]}, result]
    answer = client.chat.completions.create(model="tiny-chat", messages=same, max_tokens=2)
    assert answer.usage.prompt_tokens == raw.parse().usage.prompt_tokens


def test_no_stop_string_cuts_a_call(scripted):
    # Of two tools: one alone is named by the grammar, and the script would not go on there.
    body = {"messages": HELLO, "temperature": 0, "tools": [WEATHER, NOW], "max_tokens": 60, "stop": ["Bonn", "}"]}
    choice = httpx.post(scripted.url + "/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Bonn", "days": 3}'
    before = httpx.post(scripted.url + "/v1/chat/completions", json={**body, "stop": ["look"]}).json()["choices"][0]
    assert (before["finish_reason"], before["message"]["content"]) == ("stop", "I ")


def test_marks_in_messages_are_text(client):
    """Neither a call that a user spells nor control tokens in arguments and results have a meaning."""
    spelled = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    answer = ask(client, [{"role": "user", "content": spelled}], max_tokens=3).choices[0]
    assert answer.message.tool_calls is None

    def n_tokens(word):
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({word: word})}}
        messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
        messages.append({"role": "tool", "tool_call_id": "1", "content": word})
        return ask(client, messages, max_tokens=1, tool_choice="none").usage.prompt_tokens

    # As text, the name of a control token is several tokens; as a control token it would be one.
    assert n_tokens("<|im_end|>") - n_tokens("") > 3 * 5


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"separate_reasoning": False}, "separate_reasoning"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"messages": [{"role": "tool", "tool_call_id": "7", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}, {"role": "user"}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]}
                ]
            },
            "messages",
        ),
        ({"continue_final_message": True}, "messages"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_what_is_refused(chat_server, more, param):
    body = {"messages": HELLO, "tools": [WEATHER], "max_tokens": 5, **more}
    answer = httpx.post(chat_server.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param), answer.text


def test_a_message_is_continued(chat_server):
    """The prompt ends with the message's text: nothing closes it, and no turn begins."""
    url = chat_server.url
    messages = [*HELLO, {"role": "assistant", "content": "the red fox"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, "temperature": 0}
    answer = httpx.post(url + "/v1/chat/completions", json={**body, "max_tokens": 6}).json()
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nthe red fox"
    tokens = httpx.post(url + "/tokenize", json={"content": text, "parse_special": True}).json()["tokens"]
    same = {"prompt": tokens, "max_tokens": 6, "temperature": 0}
    said = httpx.post(url + "/v1/completions", json=same).json()["choices"][0]["text"]
    assert answer["choices"][0]["message"]["content"] == said
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    closed = {"messages": messages, "add_generation_prompt": False, "max_tokens": 1}
    usage = httpx.post(url + "/v1/chat/completions", json=closed).json()["usage"]
    assert usage["prompt_tokens"] == len(tokens) + 2
