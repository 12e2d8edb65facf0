"""Embeddings over HTTP, asked by the official client."""

import math

import httpx
import openai
import pytest


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_embeddings(client, server):
    def embed(given, **more):
        return client.embeddings.create(model="tiny", input=given, **more)

    texts = ["once upon a time", "the old fox", "once upon a time"]
    answer = embed(texts)  # the client asks for base64
    assert [each.index for each in answer.data] == [0, 1, 2]
    a, b, c = [each.embedding for each in answer.data]
    assert len(a) == 256
    assert math.isclose(sum(x * x for x in a), 1, abs_tol=1e-5)
    assert sum(x * y for x, y in zip(a, c, strict=True)) > 0.999
    assert sum(x * y for x, y in zip(a, b, strict=True)) < 0.999
    ids = httpx.post(server.url + "/tokenize", json={"content": texts[0]}).json()["tokens"]
    for given in (texts[0], ids, [ids]):
        same = embed(given, encoding_format="float").data[0].embedding
        assert max(abs(x - y) for x, y in zip(a, same, strict=True)) < 2e-3
    for given in (
        [ids[0], httpx.post(server.url + "/detokenize", json={"tokens": ids[1:]}).json()["content"]],
        {"prompt_string": texts[0]},
        [{"content": [{"type": "text", "text": "once upon"}, {"type": "text", "text": " a time"}]}, texts[0]],
        [[*ids[:2], httpx.post(server.url + "/detokenize", json={"tokens": ids[2:]}).json()["content"]], "x"],
    ):
        answer = httpx.post(server.url + "/v1/embeddings", json={"input": given}).json()["data"]
        assert len(answer) == (2 if isinstance(given, list) and not isinstance(given[0], int) else 1)
        assert max(abs(x - y) for x, y in zip(a, answer[0]["embedding"], strict=True)) < 2e-3
    assert embed(texts[0]).usage.prompt_tokens == len(ids)
    assert server.metrics()["slm_embedding_tokens_total"] > 0


@pytest.mark.parametrize(
    ("given", "more", "param"),
    [
        ("", {}, "input"),
        ([], {}, "input"),
        ([[]], {}, "input"),
        (["a", ""], {}, "input"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, {}, "input"),
        ([{"content": [{"type": "image_url"}]}], {}, "input"),
        ([10**6], {}, "input"),
        ([7] * 600, {}, "input"),
        ("a", {"dimensions": 8}, "dimensions"),
        ("a", {"encoding_format": "int8"}, "encoding_format"),
        ("a", {"inputs": 1}, "inputs"),
    ],
)
def test_bad_embedding_requests(server, given, more, param):
    answer = httpx.post(server.url + "/v1/embeddings", json={"input": given, **more})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
