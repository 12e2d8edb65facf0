"""The official ``anthropic`` package against the server, with the fields that it and its users send."""

import pytest
from pydantic import BaseModel

anthropic = pytest.importorskip("anthropic")

HELLO = [{"role": "user", "content": "hello"}]


class Flag(BaseModel):
    ok: bool


@pytest.fixture(scope="module")
def client(chat_server):
    with anthropic.Anthropic(base_url=chat_server.url, api_key="none", max_retries=0) as client:
        yield client


def test_whole_and_streamed(client):
    more = {"model": "any-name", "max_tokens": 8, "messages": HELLO}
    greedy = {"temperature": 0}  # new versions of the package have no parameter for it
    whole = client.messages.create(
        **more,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "me"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
        stop_sequences=["<|im_end|>"],
        extra_body={"context_management": {"edits": []}, **greedy},
    )
    assert whole.model == "tiny-chat"
    assert whole.content[0].type == "text"
    plain = client.messages.create(**more, extra_body=greedy)
    with client.messages.stream(**more, extra_body=greedy) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == plain.usage.output_tokens
    assert text == plain.content[0].text


def test_a_parsed_answer(client):
    parsed = client.messages.parse(model="x", max_tokens=400, messages=HELLO, output_format=Flag).parsed_output
    assert isinstance(parsed, Flag)


def test_a_loop_of_calls(client):
    tool = {
        "name": "now",
        "description": "the time",
        "input_schema": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"]},
        "cache_control": {"type": "ephemeral"},
    }
    more = {"model": "x", "max_tokens": 200, "tools": [tool]}
    reply = client.messages.create(
        **more, messages=HELLO, tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert reply.stop_reason == "tool_use"
    call = reply.content[-1]
    assert call.input == {"zone": "UTC"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "noon"}]}
    messages = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**more, "max_tokens": 3}, messages=messages).content
