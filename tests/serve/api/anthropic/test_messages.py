"""/v1/messages over plain HTTP, against the events and fields that Anthropic documents."""

import json

import httpx
import pytest

from slm.serve.api.anthropic.requests import MessagesRequest, chat_request
from slm.serve.api.core.parsing import parse

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "weather",
    "description": "the weather",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]},
}


def post(server, **more):
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0, **more}
    return httpx.post(server.url + "/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})


def streamed(server, **more):
    events = post(server, **more, stream=True).text.strip().split("\n\n")
    pairs = [event.split("\n") for event in events]
    out = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [each["type"] for each in out]
    return out


def test_it_says_what_a_chat_says(chat_server):
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = post(chat_server, system=system).json()
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    chat = httpx.post(
        chat_server.url + "/v1/chat/completions", json={"messages": messages, "max_tokens": 12, "temperature": 0}
    ).json()
    assert answer["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"], "citations": None}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "max_tokens")
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == 12
    # A last message of the assistant is continued.
    more = post(chat_server, messages=[*HELLO, {"role": "assistant", "content": "the red"}], max_tokens=3).json()
    assert more["usage"]["output_tokens"] == 3


def test_a_stream_is_documented_events(chat_server):
    whole = post(chat_server).json()
    events = streamed(chat_server)
    kinds = [each["type"] for each in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    begun = events[0]["message"]
    assert (begun["content"], begun["stop_reason"]) == ([], None)
    assert events[1]["content_block"] == {"type": "text", "text": "", "citations": None}
    text = "".join(each["delta"]["text"] for each in events[2:-3])
    assert text == whole["content"][0]["text"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 12


def test_a_stop_sequence_is_named(chat_server):
    text = post(chat_server).json()["content"][0]["text"]
    stop = text[3:5]
    answer = post(chat_server, stop_sequences=["never at all", stop]).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert answer["content"][0]["text"] == text[: text.index(stop)]


def test_reasoning_that_only_anthropic_can_read_is_left_out_and_named():
    hidden = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    said = {"role": "assistant", "content": [hidden, {"type": "text", "text": "Yes."}]}
    body = parse(MessagesRequest, json.dumps({"messages": [*HELLO, said, *HELLO], "max_tokens": 1}).encode())
    chat = chat_request(body)
    assert [(each.role, each.text()) for each in chat.messages] == [
        ("user", "hello"),
        ("assistant", "Yes."),
        ("user", "hello"),
    ]
    assert body.ignored == ["messages.1.content.0"]


def test_a_strict_tool_is_refused_where_its_schema_cannot_be_enforced(chat_server):
    schema = {"type": "object", "properties": {"city": {"type": "array", "uniqueItems": True}}}
    loose = post(chat_server, tools=[{**WEATHER, "input_schema": schema}], max_tokens=1)
    assert "uniqueItems" in loose.headers["x-slm-warnings"]
    strict = post(chat_server, tools=[{**WEATHER, "input_schema": schema, "strict": True}], max_tokens=1)
    assert (strict.status_code, strict.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "uniqueItems" in strict.json()["error"]["message"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_loop_of_tool_use(chat_server, choice):
    messages = list(HELLO)
    more = {"tools": [WEATHER], "tool_choice": {**choice, "disable_parallel_tool_use": True}, "max_tokens": 100}
    answer = post(chat_server, messages=messages, **more).json()
    assert answer["stop_reason"] == "tool_use"
    (block,) = answer["content"]
    assert (block["type"], block["name"]) == ("tool_use", "weather")
    assert block["input"]["city"] in ("Bonn", "Rome")
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "sunny"}]}
    messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
    last = post(chat_server, messages=messages, tools=[WEATHER], tool_choice={"type": "none"}).json()
    assert [each["type"] for each in last["content"]] == ["text"]
    events = streamed(chat_server, **more)
    assert events[1]["content_block"]["type"] == "tool_use"
    assert events[1]["content_block"]["input"] == {}
    pieces = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert {each["type"] for each in pieces} == {"input_json_delta"}
    assert json.loads("".join(each["partial_json"] for each in pieces))["city"] in ("Bonn", "Rome")
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("more", "status", "kind", "word"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is missing"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, 400, "invalid_request_error", "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
            *(400, "invalid_request_error", "belong to the assistant"),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
            *(400, "invalid_request_error", "no call before it"),
        ),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, 400, "invalid_request_error", "name is missing"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, 400, "invalid_request_error", "tools"),
        ({"messages": [{"role": "user", "content": "x " * 2000}]}, 400, "invalid_request_error", "context length"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_its_form(chat_server, more, status, kind, word, stream):
    answer = post(chat_server, **more, stream=stream)
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert word in body["error"]["message"]
    assert body["request_id"] == answer.headers["x-request-id"]


def test_blocks_become_chat_messages():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Bonn"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True},
        {"type": "text", "text": "Again?"},
    ]
    body = {
        "messages": [{"role": "assistant", "content": content}, {"role": "user", "content": results}],
        "max_tokens": 5,
        "thinking": {"type": "disabled"},
    }
    chat = parse(MessagesRequest, json.dumps(body).encode()).as_chat()
    said, result, asked = chat.messages
    assert (said.reasoning_content, said.content) == ("hm", "I look.")
    assert said.tool_calls[0].function.arguments == '{"city": "Bonn"}'
    assert (result.role, result.tool_call_id, result.content) == ("tool", "1", "Error: no")
    assert (asked.role, asked.content) == ("user", "Again?")
    assert chat.template_options()["enable_thinking"] == ("thinking", False)
