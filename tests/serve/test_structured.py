"""Structured output over HTTP, asked by the official client."""

import concurrent.futures
import json

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
        ({"grammar": 'root ::= root "x" | "x"'}, "grammar", "on the left"),
        ({"grammar": "x" * 70_000}, "grammar", "65536"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "grammar", "exclude"),
        ({"grammar": 'root ::= "a"', "ignore_eos": True}, "ignore_eos", "exclude"),
        ({"response_format": {"type": "xml"}}, "response_format", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format", ""),
        ({"response_format": "json_object"}, "response_format", ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"pattern": "(?=x)"}}}},
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


def test_grammars_can_be_turned_off(tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.grammar=false") as server:
        url = server.url + "/v1/completions"
        assert httpx.post(url, json={"prompt": "x", "grammar": 'root ::= "a"'}).status_code == 400
        answer = httpx.post(url, json={"prompt": "x", "response_format": FORMAT, "max_tokens": 2})
        assert answer.status_code == 200
