"""llama-server's own routes against a real server."""

import json

import gguf
import httpx
import openai
import pytest
from pydantic import TypeAdapter

from slm.llama.model import Model
from slm.serve.api.native import shapes
from tests.helpers import tiny_gguf

HELLO = [{"role": "user", "content": "hello"}]
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")


@pytest.fixture(scope="module")
def post(chat_server):
    def post(path, status=200, **body):
        answer = httpx.post(chat_server.url + path, json=body, timeout=30)
        assert answer.status_code == status, answer.text
        return answer.json()

    return post


def fits(cls, value):
    TypeAdapter(cls).validate_json(json.dumps(value), strict=True)


def test_completion(post):
    whole = post("/completion", prompt="the fox", n_predict=6, temperature=0, n_probs=3, return_tokens=True)
    fits(shapes.NativeCompletion, whole)
    assert whole["generation_settings"]["n_predict"] == whole["tokens_predicted"] == len(whole["tokens"]) == 6
    assert [each["id"] for each in whole["completion_probabilities"]] == whole["tokens"]
    assert all(len(each["top_logprobs"]) == 3 for each in whole["completion_probabilities"])
    assert post("/detokenize", tokens=whole["tokens"])["content"] == whole["content"]
    ids = post("/tokenize", content="the fox")["tokens"]
    mixed = [[*ids[:1], post("/detokenize", tokens=ids[1:])["content"]], ids]
    for each in post("/completions", prompt=mixed, n_predict=6, temperature=0):
        assert each["content"] == whole["content"]
        assert each["prompt"] == "the fox"
    assert post("/completion", prompt="the fox", n_predict=0)["content"] == ""
    # Names of special tokens are these tokens, as in llama-server.
    assert post("/completion", prompt="<|im_start|>", n_predict=1)["tokens_evaluated"] == 1


def test_streamed_completion(chat_server):
    body = {"prompt": "the fox", "n_predict": 6, "temperature": 0, "stream": True, "n_probs": 1}
    lines = httpx.post(chat_server.url + "/completion", json=body, timeout=30).text.split("\n\n")
    assert lines.pop() == ""
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    for each in parts:
        fits(shapes.NativeChunk, each)
    # A token that ends inside a character comes with the next one.
    for name in ("tokens", "completion_probabilities"):
        assert sum(len(each[name]) for each in parts) == 6
    fits(shapes.NativeCompletion, last)
    assert last["timings"]["predicted_n"] == 6
    whole = httpx.post(chat_server.url + "/completion", json={**body, "stream": False}, timeout=30).json()
    assert "".join(each["content"] for each in parts) == whole["content"]


def test_json_schema(post):
    text = post("/completion", prompt="x", json_schema={"type": "boolean"}, n_predict=40)["content"]
    assert json.loads(text) in (True, False)


def test_what_of_a_schema_is_not_enforced_is_named(chat_server, post):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}
    word = "schema at /: 'uniqueItems' is not enforced: items may repeat"
    several = post("/completion", prompt=["x", "y"], json_schema=schema, n_predict=40)
    assert [each["warnings"] for each in several] == [[word], [word]]
    for each in several:
        fits(shapes.NativeCompletion, each)
    body = {"prompt": "x", "json_schema": schema, "n_predict": 40, "stream": True, "return_progress": True}
    streamed = httpx.post(chat_server.url + "/completion", json=body)
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert [each.get("warnings") for each in events] == [[word], *[None] * (len(events) - 1)]
    fits(shapes.NativeChunk, events[0])
    assert streamed.headers["x-slm-warnings"] == word


def test_prompts_and_their_tokens(post):
    prompt = post("/apply-template", messages=HELLO)["prompt"]
    assert post("/v1/chat/completions", messages=HELLO, max_tokens=1, verbose=True)["__verbose"] == {"prompt": prompt}
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    n = len(post("/tokenize", content=prompt, parse_special=True)["tokens"])
    asked = {"object": "response.input_tokens", "input_tokens": n}
    assert post("/v1/chat/completions/input_tokens", messages=HELLO) == asked
    assert post("/chat/completions/input_tokens", messages=HELLO, max_tokens=1) == asked
    assert post("/v1/responses/input_tokens", input="hello") == asked
    assert post("/v1/messages/count_tokens", messages=HELLO) == {"input_tokens": n}
    assert post("/v1/chat/completions", messages=HELLO, max_tokens=1)["usage"]["prompt_tokens"] == n
    assert post("/v1/messages/count_tokens", 400, messages=[])["type"] == "error"


def test_tokens_with_their_pieces(post):
    text = "the old fox \u00e9"
    tokens = post("/tokenize", content=text)["tokens"]
    pieces = post("/tokenize", content=text, with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == tokens
    raw = [each["piece"] for each in pieces]
    assert b"".join(bytes(each) if isinstance(each, list) else each.encode() for each in raw) == text.encode()
    assert raw[-2:] == [[0xC3], [0xA9]]  # half a character each


def test_progress_of_a_prompt_in_every_form(chat_server):
    """Forms of a reply in blocks ended in a traceback."""
    more = {"stream": True, "return_progress": True}
    long = "the old fox and the little bird " * 8
    for path, body, first, kind in (
        ("/v1/responses", {"input": long, "max_output_tokens": 2}, "response.created", "response.in_progress"),
        ("/v1/messages", {"messages": [{"role": "user", "content": long}], "max_tokens": 2}, "ping", "ping"),
    ):
        text = httpx.post(chat_server.url + path, json={**body, **more}, timeout=30).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert events[0]["type"] == first
        reports = [each for each in events if "prompt_progress" in each]
        assert {each["type"] for each in reports} == {kind}
        assert reports[-1]["prompt_progress"]["processed"] == reports[-1]["prompt_progress"]["total"] > 50
        assert events[-1]["type"] in ("response.incomplete", "response.completed", "message_stop")
        if path == "/v1/responses":
            assert [each["sequence_number"] for each in events] == list(range(len(events)))
            assert sum(each["type"] == "response.created" for each in events) == 1
    api = openai.OpenAI(base_url=chat_server.url + "/v1", api_key="none", max_retries=0)
    with api.responses.stream(model="x", input=long, extra_body={"return_progress": True}) as stream:
        *_, last = stream
    assert last.type in ("response.incomplete", "response.completed")  # as long as the model wants
    assert last.response.output[0].content[0].text


def test_props_and_slots(chat_server, post):
    props = httpx.get(chat_server.url + "/props").json()
    fits(shapes.Props, props)
    assert props["model_path"].endswith("tiny-chat.gguf")
    assert props["chat_template"] == tiny_gguf.CHAT_TEMPLATE
    post("/completion", prompt="the old fox and the little bird went to the river", n_predict=2)
    slots = httpx.get(chat_server.url + "/slots?fail_on_no_slot=1").json()
    fits(list[shapes.Slot], slots)
    assert len(slots) == props["total_slots"]
    assert not any(each["is_processing"] for each in slots)
    assert max(each["n_cached"] for each in slots) > 10


def test_slots_that_work(slow_server):
    body = {"prompt": "x", "n_predict": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", slow_server.url + "/completion", json=body) as answer:
        lines = answer.iter_lines()  # once it is gone, the connection is closed
        next(lines)
        (slot,) = httpx.get(slow_server.url + "/slots").json()
        assert slot["is_processing"]
        assert slot["n_decoded"] > 0
        assert httpx.get(slow_server.url + "/slots?fail_on_no_slot=1").status_code == 503


def test_rerank_and_score(post):
    texts = ["the red boat", "hello", "the old fox"]
    ranked = post("/v1/rerank", query="the old fox", documents=texts, return_documents=True)
    fits(shapes.Rank, ranked)
    best = ranked["results"][0]
    assert (best["index"], best["document"]) == (2, {"text": "the old fox"})
    assert best["relevance_score"] == pytest.approx(1, abs=1e-5)
    assert sorted(each["index"] for each in ranked["results"]) == [0, 1, 2]
    assert len(post("/rerank", query="x", documents=texts, top_n=2)["results"]) == 2
    bare = post("/reranking", query="the old fox", texts=texts, top_n=1, return_text=True)
    assert [(each["index"], each["text"]) for each in bare] == [(2, "the old fox")]
    scores = post("/v1/score", text_1="the old fox", text_2=texts)
    fits(shapes.Scores, scores)
    by_index = {each["index"]: each["relevance_score"] for each in ranked["results"]}
    assert [each["score"] for each in scores["data"]] == pytest.approx([by_index[i] for i in range(3)], abs=1e-5)
    for body in ({}, {"documents": []}, {"documents": [1]}, {"documents": [""]}, {"documents": ["a"], "texts": ["a"]}):
        post("/rerank", 400, query="x", **body)
    post("/v1/score", 400, text_1=["a", "b"], text_2=["a", "b", "c"])


def test_a_reranking_model(tmp_path, start_server):
    path = tiny_gguf.write(tmp_path / "rank.gguf", pooling=gguf.PoolingType.RANK, encoder=True)
    texts = ["the red boat", "hello"]
    with start_server(tmp_path / "log", path) as server:

        def post(path, **body):
            answer = httpx.post(server.url + path, json=body, timeout=30)
            assert answer.status_code == 200, answer.text
            return answer.json()

        ranked = post("/rerank", query="the old fox", documents=texts)
        scores = {each["index"]: each["relevance_score"] for each in ranked["results"]}
        with Model(path) as model:
            ends = [model.bos] * model.add_bos, [model.eos] * model.add_eos, [model.separator] * model.add_separator
        for i, text in enumerate(texts):
            query, document = (post("/tokenize", content=each)["tokens"] for each in ("the old fox", text))
            begin, end, separator = ends
            pair = [*begin, *query, *end, *separator, *document, *end]
            expected = post("/v1/embeddings", input=pair)["data"][0]["embedding"]
            assert scores[i] == pytest.approx(expected[0], abs=1e-4)
        # The order of the two counts, unlike that of a cosine.
        there = post("/v1/score", text_1="the old fox", text_2="hello")["data"][0]["score"]
        back = post("/v1/score", text_1="hello", text_2="the old fox")["data"][0]["score"]
        assert there == pytest.approx(scores[1], abs=1e-4)
        assert abs(there - back) > 1e-3


def test_infill_without_the_tokens(post):
    said = post("/infill", 501, input_prefix="a", input_suffix="b")["error"]["message"]
    assert "no tokens for filling in" in said
    assert post("/v1/completions", 400, prompt="a", suffix="b")["error"]["param"] == "suffix"


def test_infill(tmp_path, start_server):
    # The model says after each of these what follows, so that the prompt's end is seen in the reply.
    script = dict(zip(FIM, ("a", "b", "the gap", "c"), strict=True))
    path = tiny_gguf.write(tmp_path / "fim.gguf", script=script)
    with start_server(tmp_path / "log", path) as server:

        def post(path, status=200, **body):
            answer = httpx.post(server.url + path, json=body, timeout=30)
            assert answer.status_code == status, answer.text
            return answer.json()

        made = post("/infill", input_prefix="x", prompt="y", input_suffix="z", n_predict=1, temperature=0)
        assert made["content"] == "the gap"
        assert made["tokens_evaluated"] == 6
        assert "dropped_prompt_tokens" not in made
        more = {"input_prefix": "x" * 600, "input_suffix": "z" * 600, "n_predict": 1, "temperature": 0}
        made = post("/infill", **more, input_extra=[{"filename": "f", "text": "t"}])
        assert made["content"] == "the gap"
        assert made["dropped_prompt_tokens"] == 1200 + 4 + 3 - made["tokens_evaluated"]
        text = post("/v1/completions", prompt="x", suffix="z", max_tokens=1, temperature=0)["choices"][0]["text"]
        assert text == "the gap"
        said = post("/v1/completions", 400, prompt="x" * 600, suffix="z")["error"]
        assert said["code"] == "context_length_exceeded"
        assert post("/v1/completions", 400, prompt="x", suffix="z", echo=True)["error"]["param"] == "echo"
        reply = post(
            "/api/generate", prompt="x", suffix="z", stream=False, options={"num_predict": 1, "temperature": 0}
        )
        assert reply["response"] == "the gap"


def test_paths_without_v1(chat_server, post):
    assert post("/chat/completions", messages=HELLO, max_tokens=1)["object"] == "chat.completion"
    assert post("/embeddings", input="x")["object"] == "list"
    assert post("/messages", messages=HELLO, max_tokens=1)["type"] == "message"
    assert post("/messages", 400, messages=[])["type"] == "error"
    for path in ("/models", "/models/tiny-chat", "/v1/health"):
        assert httpx.get(chat_server.url + path).status_code == 200


def test_load_and_unload(chat_server, post):
    def state():
        return httpx.get(chat_server.url + "/v1/models/tiny-chat").json()["status"]

    assert post("/models/unload", model="tiny-chat") == {"success": True}
    assert state() == "unloaded"
    assert httpx.get(chat_server.url + "/props").json()["is_sleeping"]
    assert httpx.get(chat_server.url + "/slots").json() == []
    assert httpx.get(chat_server.url + "/health").status_code == 200
    assert post("/models/unload", 400, model="default")["error"]["code"] == "model_not_loaded"
    assert post("/models/load", model="tiny-chat") == {"success": True}
    assert state() == "ready"
    post("/models/unload", model="tiny-chat")
    assert post("/completion", prompt="x", n_predict=1)["tokens_predicted"] == 1  # loads it again
    assert post("/models/load", 404, model="other")["error"]["code"] == "model_not_found"


def test_responses_go_on(chat_server, post):
    first = post("/v1/responses", input="my name is fox", max_output_tokens=4, instructions="be brief")
    assert (first["store"], first["previous_response_id"]) == (True, None)
    body = {"input": "what is my name?", "max_output_tokens": 2}
    lines = httpx.post(
        chat_server.url + "/v1/responses",
        json={**body, "previous_response_id": first["id"], "stream": True},
        timeout=30,
    ).text.strip()
    second = json.loads(lines.rsplit("data: ", 1)[1])["response"]
    assert second["previous_response_id"] == first["id"]
    said = first["output"][0]["content"][0]["text"]
    whole = [
        {"role": "user", "content": "my name is fox"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "what is my name?"},
    ]
    counted = post("/v1/responses/input_tokens", input=whole)["input_tokens"]
    assert second["usage"]["input_tokens"] == counted
    url = chat_server.url + "/v1/responses/"
    assert httpx.get(url + second["id"]).json() == second
    assert post("/v1/responses", **body, previous_response_id=second["id"], store=False)["store"] is False
    assert httpx.delete(url + first["id"]).json() == {"id": first["id"], "object": "response", "deleted": True}
    assert httpx.get(url + first["id"]).status_code == 404
    error = post("/v1/responses", 400, **body, previous_response_id=first["id"])["error"]
    assert error["param"] == "previous_response_id"
    unkept = post("/v1/responses", **body, store=False)
    assert httpx.get(url + unkept["id"]).status_code == 404
