"""/v1/responses, asked by the official client."""

import json

import httpx
import openai
import pytest

FORMAT = {
    "type": "json_schema",
    "name": "flag",
    "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
}


@pytest.fixture(scope="module")
def client(chat_server):
    return openai.OpenAI(base_url=chat_server.url + "/v1", api_key="none", max_retries=0)


def ask(client, given="hello", **more):
    return client.responses.create(
        model="tiny-chat", input=given, **{"temperature": 0, "max_output_tokens": 12, **more}
    )


def test_it_says_what_a_chat_says(client):
    answer = ask(client)
    messages = [{"role": "user", "content": "hello"}]
    chat = client.chat.completions.create(model="tiny-chat", messages=messages, temperature=0, max_tokens=12)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.id.startswith("resp_")


def test_messages_and_instructions(client):
    parts = [
        {"role": "user", "content": [{"type": "input_text", "text": "he"}, {"type": "input_text", "text": "llo"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and?"},
    ]
    answer = ask(client, parts, instructions="Be brief.")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and?"},
    ]
    chat = client.chat.completions.create(model="tiny-chat", messages=messages, temperature=0, max_tokens=12)
    assert answer.output_text == chat.choices[0].message.content
    # What it answered can be sent back as it is.
    again = [{"role": "user", "content": "hello"}, *(each.model_dump() for each in answer.output)]
    assert ask(client, again).output_text


def test_streaming(client, chat_server):
    whole = ask(client)
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.incomplete"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
    body = {"input": "hello", "stream": True, "max_output_tokens": 2}
    raw = httpx.post(chat_server.url + "/v1/responses", json=body).text
    assert raw.startswith("event: response.created\ndata: ")
    assert "[DONE]" not in raw


def test_a_schema_holds(client):
    answer = ask(client, text={"format": FORMAT}, max_output_tokens=200)
    assert answer.status == "completed"
    assert json.loads(answer.output_text).keys() == {"ok"}


def test_a_kept_response_still_names_what_of_its_schema_is_not_enforced(chat_server):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}
    word = "schema at /: 'uniqueItems' is not enforced: items may repeat"
    form = {"type": "json_schema", "name": "few", "schema": schema}
    body = {"input": "hello", "text": {"format": form}, "max_output_tokens": 60}
    url = chat_server.url + "/v1/responses"
    whole = httpx.post(url, json=body, timeout=30).json()
    events = httpx.post(url, json={**body, "stream": True}, timeout=30).text.split("\n\n")
    last = json.loads(events[-2].partition("data: ")[2])["response"]
    for response in (whole, last):
        assert response["warnings"] == [word]
        assert httpx.get(f"{url}/{response['id']}").json() == response


WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]},
}


def test_function_calls_and_their_results(client):
    """As programs do it: what came is sent back with the results."""
    given = [{"role": "user", "content": "hello"}]
    more = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 100}
    answer = ask(client, given, **more)
    assert answer.status == "completed"
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Bonn", "Rome")
    given += [*answer.output, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    last = ask(client, given, tools=[WEATHER], tool_choice="none")
    assert [each.type for each in last.output] == ["message"]
    events = list(ask(client, given[:1], **more, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    assert "".join(pieces) == done.arguments
    assert json.loads(done.arguments)["city"] in ("Bonn", "Rome")
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added"
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert events[-1].response.output[0].arguments == done.arguments


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": 1}}, "reasoning"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"role": "boss", "content": "x"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 3}, "max_tokens"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"pattern": "(?=a)"}, "strict": True}}},
            "response_format",
        ),
    ],
)
def test_what_is_refused(chat_server, more, param):
    answer = httpx.post(chat_server.url + "/v1/responses", json={"input": "hello", **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


def test_too_long_an_input_is_a_400_also_when_streaming(chat_server):
    for stream in (False, True):
        answer = httpx.post(chat_server.url + "/v1/responses", json={"input": "x " * 2000, "stream": stream})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_as_many_messages_as_a_chat_may_have_and_instructions(chat_server):
    """The instructions become a message, too: one more than fits was answered with a 500."""
    body = {"input": [{"role": "user", "content": "x"}] * 4096, "instructions": "x"}
    answer = httpx.post(chat_server.url + "/v1/responses", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "input"


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_surrogate_pair_that_is_repeated_is_replaced(chat_server, stream):
    """It is valid JSON; the answer repeats the instructions, and UTF-8 cannot carry it."""
    raw = b'{"input": "x", "max_output_tokens": 2, "instructions": "cut \\ud83d", "stream": %s}' % (
        b"true" if stream else b"false"
    )
    answer = httpx.post(chat_server.url + "/v1/responses", content=raw)
    assert answer.status_code == 200
    assert '"instructions":"cut ?"' in answer.text
    assert not stream or "response.incomplete" in answer.text
