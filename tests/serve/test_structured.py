"""Structured output over HTTP, asked by the official client."""

import concurrent.futures
import json
import re

import httpx
import openai
import pytest

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def chat(client, **more):
    more = {"max_tokens": 200, "temperature": 1.0, "seed": 1, **more}
    return client.chat.completions.create(model="tiny", messages=MESSAGES, **more)


def test_a_schema_holds_with_and_without_streaming(client):
    for seed in range(4):
        whole = chat(client, response_format=FORMAT, seed=seed).choices[0]
        assert whole.finish_reason == "stop"
        value = json.loads(whole.message.content)
        assert {"name", "ok"} <= set(value) <= {"name", "age", "ok"}
        chunks = list(chat(client, response_format=FORMAT, seed=seed, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content


def test_side_by_side_each_with_its_own_grammar(client):
    def ask(i):
        grammar = f'root ::= "<{i}" [a-z]{{{i}}} ">"'
        answer = client.completions.create(model="tiny", prompt="x", seed=i, extra_body={"grammar": grammar})
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(1, 9)))
    for i, text in enumerate(texts, 1):
        assert text.startswith(f"<{i}")
        assert text[2:-1].isalpha()
        assert len(text) == i + 3


def test_json_object_and_n(client):
    bias = {str(ord(char)): 6 for char in '"}'}
    answer = chat(client, response_format={"type": "json_object"}, n=3, logit_bias=bias, max_tokens=300)
    for choice in answer.choices:
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"grammar": "root ::= ("}, "grammar", "line 1"),
        ({"grammar": 'root ::= root "x"'}, "grammar", "come to an end"),
        ({"structured_outputs": {"regex": "(?=x)"}}, "structured_outputs", "ahead or behind"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "1 to"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs", "exclude"),
        ({"grammar": "x" * 70_000}, "grammar", "65536"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "grammar", "exclude"),
        ({"grammar": 'root ::= "a"', "ignore_eos": True}, "ignore_eos", "exclude"),
        ({"response_format": {"type": "xml"}}, "response_format", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format", ""),
        ({"response_format": "json_object"}, "response_format", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"pattern": "(?=x)"}, "strict": True},
                }
            },
            "response_format",
            "'pattern'",
        ),
        ({"grammar": 'root ::= "a"', "logit_bias": {str(ord("a")): -100}}, None, "no token fits"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_kept_to_is_refused_never_ignored(server, body, param, word, stream):
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "stream": stream, **body})
    if param is None and stream and answer.status_code == 200:
        pytest.fail("the stream had begun")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param or "")
    assert word in error["message"]
    assert httpx.get(server.url + "/health").status_code == 200
    assert server.metrics()["slm_engine_restarts_total"] == 0


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, r"yes|no"),
        ({"structured_outputs": {"regex": "^[ab]{3}c?$"}}, r"[ab]{3}c?"),
        ({"structured_outputs": {"grammar": "start: /x{2,4}/ [\"!\"]"}}, r"x{2,4}!?"),
        ({"structured_outputs": {"json": {"enum": [1, 2]}}}, r"1|2"),
        ({"json_schema": {"type": "boolean"}}, r"true|false"),
        ({"grammar": 'root ::= "a" (root | "b") "c"'}, r"a+bc+"),
        ({"response_format": {"type": "json_object", "schema": {"properties": {"a": {"const": 1}}, "required": ["a"]}}},
         r'\{"a": 1\}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": None}}}}, r"null"),
    ],
)  # fmt: skip
def test_every_form_of_a_constraint(server, more, expected):
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 60, "seed": 3, **more})
    assert answer.status_code == 200, answer.text
    assert "warnings" not in answer.json()
    assert "x-slm-warnings" not in answer.headers
    assert re.fullmatch(expected, answer.json()["choices"][0]["text"])


def test_what_is_relaxed_is_named_in_every_response(server):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}
    asked = {"messages": MESSAGES, "max_tokens": 40, "seed": 1, "response_format": {"type": "json_schema"}}
    asked["response_format"]["json_schema"] = {"schema": schema}
    word = "schema at /: 'uniqueItems' is not enforced: items may repeat"
    whole = httpx.post(server.url + "/v1/chat/completions", json=asked)
    assert (whole.json()["warnings"], whole.headers["x-slm-warnings"]) == ([word], word)
    streamed = httpx.post(server.url + "/v1/chat/completions", json={**asked, "stream": True})
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert [each["warnings"] for each in events if "warnings" in each] == [[word]]
    assert streamed.headers["x-slm-warnings"] == word
    form = {"type": "json_schema", "schema": schema}
    other = httpx.post(
        server.url + "/v1/responses", json={"input": "x", "max_output_tokens": 40, "text": {"format": form}}
    )
    assert other.json()["warnings"] == [word]
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": schema}}}
    body = {"max_tokens": 5, "messages": MESSAGES, "tools": [tool]}
    theirs = httpx.post(server.url + "/v1/messages", json=body).json()
    assert theirs["warnings"] == [f"the parameters of f: {word.replace('/:', '/properties/a:')}"]


def test_a_hostile_grammar_stops_nobody_else(server):
    """Its masks take ever longer; another client's stream goes on meanwhile, and nothing is measured by the clock."""
    hostile = {"prompt": "x", "max_tokens": 60, "structured_outputs": {"grammar": "start: e\ne: e e e | /[a-z ]/"}}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(httpx.post, server.url + "/v1/completions", json=hostile, timeout=120) for _ in range(2)]
        plain = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 30, "ignore_eos": True})
        assert plain.json()["usage"]["completion_tokens"] == 30
        for each in slow:
            answer = each.result()
            if answer.status_code == 200:
                assert re.fullmatch("[a-z ]+", answer.json()["choices"][0]["text"])
            else:
                assert "too much work" in answer.json()["error"]["message"]


def test_grammars_can_be_turned_off(tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.grammar=false") as server:
        url = server.url + "/v1/completions"
        assert httpx.post(url, json={"prompt": "x", "grammar": 'root ::= "a"'}).status_code == 400
        answer = httpx.post(url, json={"prompt": "x", "response_format": FORMAT, "max_tokens": 2})
        assert answer.status_code == 200
