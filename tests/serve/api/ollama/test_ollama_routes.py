"""Ollama's API over plain HTTP, and with its official client where that is installed."""

import json

import httpx
import llama_cpp.llama_cpp as llama
import pytest
from pydantic import TypeAdapter

from slm.serve.api.ollama import shapes
from slm.serve.api.ollama.models import FILE_TYPES

HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"num_predict": 5, "temperature": 0}


@pytest.fixture(scope="module")
def post(chat_server):
    def post(path, status=200, **body):
        answer = httpx.post(chat_server.url + path, json={"model": "tiny-chat:latest", **body}, timeout=30)
        assert answer.status_code == status, answer.text
        return [json.loads(line) for line in answer.text.splitlines()] if body.get("stream") else answer.json()

    return post


def fits(cls, value):
    TypeAdapter(cls).validate_json(json.dumps(value), strict=True)


def test_chat_and_generate(post):
    whole = post("/api/chat", messages=HELLO, options=OPTIONS, stream=False)
    *parts, last = post("/api/chat", messages=HELLO, options=OPTIONS, stream=True)
    assert "".join(each["message"]["content"] for each in parts) == whole["message"]["content"]
    assert whole["model"] == "tiny-chat:latest"
    assert (last["done"], last["eval_count"], last["done_reason"]) == (True, 5, "length")
    # The prompt of /api/generate is a user's message.
    assert (
        post("/api/generate", prompt="hello", options=OPTIONS, stream=False)["response"] == whole["message"]["content"]
    )
    raw = post("/api/generate", prompt="<|im_start|>", raw=True, options=OPTIONS, stream=False)
    assert raw["prompt_eval_count"] == 1
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    text = post("/api/chat", messages=HELLO, format=schema, stream=False)["message"]["content"]
    assert json.loads(text)["ok"] in (True, False)


@pytest.mark.parametrize("raw", [False, True])
def test_what_of_a_format_is_not_enforced_is_named(post, raw):
    form = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}
    body = {"prompt": "hello", "raw": raw, "format": form, "options": {"num_predict": 40}}
    word = "schema at /: 'uniqueItems' is not enforced: items may repeat"
    whole = post("/api/generate", **body, stream=False)
    assert whole["warnings"] == [word]
    fits(shapes.OllamaText, whole)
    lines = post("/api/generate", **body, stream=True)
    assert [each.get("warnings") for each in lines] == [[word], *[None] * (len(lines) - 1)]


def test_streams_by_default(chat_server):
    body = {"model": "tiny-chat", "messages": HELLO, "options": OPTIONS}
    with httpx.stream("POST", chat_server.url + "/api/chat", json=body) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert json.loads(list(answer.iter_lines())[-1])["done"]


def test_embeddings(post):
    two = post("/api/embed", input=["the fox", "x" * 5000])
    fits(shapes.OllamaEmbed, two)
    assert two["truncated_inputs"] == 1
    one = post("/api/embeddings", prompt="the fox")
    # Batches of other shapes round differently.
    assert one["embedding"] == pytest.approx(two["embeddings"][0], abs=1e-3)
    assert post("/api/embed", input=[])["embeddings"] == []
    assert "at most 512" in post("/api/embed", 400, input="x" * 5000, truncate=False)["error"]
    assert post("/api/embed", 400, input="")["error"]
    assert post("/api/embed", 400, input="x", dimensions=3)["error"]


def test_models(chat_server, post):
    def get(path):
        return httpx.get(chat_server.url + path).json()

    listed = get("/api/tags")
    fits(shapes.OllamaModels, listed)
    (entry,) = listed["models"]
    assert entry["name"] == "tiny-chat:latest"
    assert entry["details"]["quantization_level"] == "F32"
    shown = post("/api/show")
    fits(shapes.OllamaShow, shown)
    assert shown["details"] == entry["details"]
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] == 512
    assert "im_start" in shown["template"]
    running = get("/api/ps")
    fits(shapes.OllamaProcesses, running)
    assert running["models"][0]["context_length"] == 512
    fits(shapes.OllamaVersion, get("/api/version"))
    # Without a text, a model is loaded or unloaded.
    assert post("/api/generate", keep_alive=0)["done_reason"] == "unload"
    assert get("/api/ps")["models"] == []
    assert post("/api/chat", messages=[])["done_reason"] == "load"
    assert len(get("/api/ps")["models"]) == 1


def test_errors_have_ollamas_form(chat_server, post):
    for body in ({"messages": 3}, {"messages": HELLO, "options": {"wings": 2}, "stream": False}):
        assert set(post("/api/chat", 400, **body)) == {"error"}
    assert set(post("/api/nothing", 404)) == {"error"}
    assert httpx.post(chat_server.url + "/api/chat", content=b"{").json()["error"]


def test_names_of_file_types():
    prefix = "LLAMA_FTYPE_MOSTLY_"
    known = {getattr(llama, name): name.removeprefix(prefix) for name in dir(llama) if name.startswith(prefix)}
    known[llama.LLAMA_FTYPE_ALL_F32] = "F32"
    assert {number: name for number, name in FILE_TYPES.items() if name} == known


def test_the_official_client(chat_server):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=chat_server.url)
    name = client.list().models[0].model
    assert client.show(name).modelinfo["general.architecture"] == "llama"
    whole = client.chat(model=name, messages=HELLO, options=OPTIONS)
    parts = [each.message.content for each in client.chat(model=name, messages=HELLO, options=OPTIONS, stream=True)]
    assert "".join(parts) == whole.message.content
    assert client.generate(model=name, prompt="hello", options=OPTIONS).response == whole.message.content
    streamed = client.generate(model=name, prompt="hello", options=OPTIONS, stream=True)
    assert "".join(each.response for each in streamed) == whole.message.content
    assert len(client.embed(model=name, input=["a", "b"]).embeddings) == 2
    assert len(client.embeddings(model=name, prompt="a").embedding) == len(
        client.embed(model=name, input="a").embeddings[0]
    )
    assert [each.model for each in client.ps().models] == [name]

    def add(a: int, b: int) -> int:
        """Adds.

        Args:
            a: one
            b: other
        """
        return a + b

    client.chat(model=name, messages=HELLO, tools=[add], options=OPTIONS)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    assert "ok" in json.loads(client.chat(model=name, messages=HELLO, format=schema).message.content)
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model=name, messages=HELLO, options={"wings": 2})
    assert caught.value.status_code == 400
    assert "wings" in caught.value.error
