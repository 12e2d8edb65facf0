"""The official ``openai`` package against the server: synchronous and asynchronous, streamed and whole."""

import asyncio
import math

import httpx
import openai
import pytest
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sesame"
WORDS = (f"serve.api_keys=[{KEY}]", "serve.slots=8", "serve.only_known_models=true")


class Person(BaseModel):
    name: str
    ok: bool


class Flag(BaseModel):
    ok: bool


@pytest.fixture(scope="module")
def chatty(tmp_path_factory, chat_path, start_server):
    folder = tmp_path_factory.mktemp("client")
    with start_server(folder / "log", chat_path, *WORDS) as server:
        yield server


@pytest.fixture(scope="module")
def client(chatty):
    with openai.OpenAI(base_url=chatty.url + "/v1", api_key=KEY, max_retries=0) as client:
        yield client


def with_async(server, work):
    """Runs ``work(client)`` with the asynchronous client."""

    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
            return await work(client)

    return asyncio.run(run())


def ask(**more):
    return {"model": "tiny-chat", "messages": HELLO, "max_completion_tokens": 12, "temperature": 0, **more}


def in_flight(server):
    headers = {"Authorization": f"Bearer {KEY}"}
    lines = httpx.get(server.url + "/metrics", headers=headers).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("slm_sequences_in_flight "))


# -- the same from both clients -----------------------------------------------------------------------------------


def test_chat_whole_and_streamed_from_both_clients(client, chatty):
    whole = client.chat.completions.create(**ask())
    said = whole.choices[0].message.content
    assert said
    assert whole._request_id.startswith("req_")
    parts = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask(stream=True))]
    assert "".join(parts) == said
    # The client's helper takes a reply that was cut for a failure: this one ends at a stop string.
    stop = said[3:5]
    with client.chat.completions.stream(**ask(stop=stop)) as stream:
        assert any(event.type == "content.done" for event in stream)
        assert stream.get_final_completion().choices[0].message.content == said[: said.index(stop)]

    async def work(api):
        whole = await api.chat.completions.create(**ask())
        stream = await api.chat.completions.create(**ask(stream=True, stream_options={"include_usage": True}))
        chunks = [chunk async for chunk in stream]
        return whole, chunks

    again, chunks = with_async(chatty, work)
    assert again.choices[0].message.content == said
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == said
    # How much came from the prefix cache may differ.
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_completions_embeddings_responses_and_models_from_both_clients(client, chatty):
    def sync():
        text = client.completions.create(model="tiny-chat", prompt="the fox", max_tokens=6, temperature=0)
        vectors = client.embeddings.create(model="tiny-chat", input=["a fox", "a boat"])
        reply = client.responses.create(model="tiny-chat", input="hello", max_output_tokens=6, temperature=0)
        return text.choices[0].text, [each.embedding for each in vectors.data], reply.output_text

    async def work(api):
        text, vectors, reply = await asyncio.gather(
            api.completions.create(model="tiny-chat", prompt="the fox", max_tokens=6, temperature=0),
            api.embeddings.create(model="tiny-chat", input=["a fox", "a boat"], encoding_format="float"),
            api.responses.create(model="tiny-chat", input="hello", max_output_tokens=6, temperature=0),
        )
        models = [model.id async for model in api.models.list()]
        return (text.choices[0].text, [each.embedding for each in vectors.data], reply.output_text), models

    (text, vectors, reply), models = with_async(chatty, work)
    ours = sync()
    assert (text, reply) == (ours[0], ours[2])
    for a, b in zip(vectors, ours[1], strict=True):
        # One came as numbers, the other as base64.
        assert math.isclose(sum(x * y for x, y in zip(a, b, strict=True)), 1.0, abs_tol=1e-3)
    assert models == ["tiny-chat"]
    assert client.models.retrieve("tiny-chat").owned_by == "slm"

    async def streamed(api):
        stream = await api.responses.create(model="tiny-chat", input="hello", max_output_tokens=6, stream=True)
        return [event.type async for event in stream]

    assert with_async(chatty, streamed)[-1] in ("response.completed", "response.incomplete")


def test_many_at_once(client, chatty):
    prompts = [f"hello {i}" for i in range(24)]

    async def work(api):
        async def one(i, prompt):
            more = ask(messages=[{"role": "user", "content": prompt}], stream=bool(i % 2))
            answer = await api.chat.completions.create(**more)
            if not i % 2:
                return answer.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

        return await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts)))

    together = with_async(chatty, work)
    alone = [
        client.chat.completions.create(**ask(messages=[{"role": "user", "content": p}])).choices[0].message.content
        for p in prompts[:4]
    ]
    assert together[:4] == alone
    assert len(set(together)) > 12


# -- options ------------------------------------------------------------------------------------------------------


def test_both_shapes_of_logprobs(client):
    chat = client.chat.completions.create(**ask(logprobs=True, top_logprobs=3)).choices[0]
    for entry in chat.logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert max(top.logprob for top in entry.top_logprobs) == entry.logprob  # greedy
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    text = client.completions.create(model="tiny-chat", prompt="the fox", max_tokens=4, logprobs=2, echo=True)
    logprobs = text.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    n = len(logprobs.tokens)
    assert n == text.usage.prompt_tokens + 4 == len(logprobs.top_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset == sorted(logprobs.text_offset)


def test_n_stop_and_seed(client):
    def texts(**more):
        answer = client.chat.completions.create(**ask(temperature=1.0, **more))
        return [choice.message.content for choice in answer.choices]

    assert len(set(texts(n=3, seed=5))) == 3
    assert texts(n=2, seed=5) == texts(n=2, seed=5)
    assert texts(seed=5) != texts(seed=6)
    said = client.chat.completions.create(**ask()).choices[0].message.content
    stop = said[2:4]
    cut = client.chat.completions.create(**ask(stop=stop)).choices[0]
    assert cut.message.content == said[: said.index(stop)]
    assert cut.finish_reason == "stop"


def test_a_parsed_answer(client, chatty):
    # A random model closes no string by itself.
    more = {"temperature": 1.0, "seed": 1, "logit_bias": {str(ord('"')): 8}, "max_completion_tokens": 300}
    parsed = client.chat.completions.parse(**ask(response_format=Person, **more)).choices[0].message.parsed
    assert isinstance(parsed, Person)

    async def work(api):
        return (await api.chat.completions.parse(**ask(response_format=Person, **more))).choices[0].message.parsed

    assert with_async(chatty, work) == parsed
    # The other route has neither seed nor bias: a form that must end.
    answer = client.responses.parse(model="tiny-chat", input="x", text_format=Flag, max_output_tokens=400)
    assert isinstance(answer.output_parsed, Flag)


# -- errors and leaving -------------------------------------------------------------------------------------------


def test_errors_are_the_clients_own(client, chatty):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask(temperature=-1))
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny-chat", prompt="x " * 2000, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ask(model="gpt-9"))
    assert caught.value.code == "model_not_found"
    wrong = openai.OpenAI(base_url=chatty.url + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        wrong.models.list()
    assert caught.value.code == "invalid_api_key"

    async def work(api):
        for more, kind in (({"top_p": 2}, openai.BadRequestError), ({"model": "x"}, openai.NotFoundError)):
            with pytest.raises(kind):
                await api.chat.completions.create(**ask(**more))

    with_async(chatty, work)


def test_a_full_queue_is_a_rate_limit(tmp_path, slow_path, start_server):
    with start_server(tmp_path / "log", slow_path, "serve.slots=1", "serve.queue=0") as server:
        api = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        long = {"model": "slow", "prompt": "x", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
        with api.completions.create(**long, stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                api.completions.create(model="slow", prompt="x")
            assert caught.value.code == "queue_full"
            assert int(caught.value.response.headers["retry-after"]) >= 1
        # With retries, the client waits and is served.
        patient = api.with_options(max_retries=8)
        assert patient.completions.create(model="slow", prompt="x", max_tokens=1).choices


def test_closing_a_stream_ends_the_work(chatty, client):
    long = ask(max_completion_tokens=400, stream=True, extra_body={"ignore_eos": True})
    stream = client.chat.completions.create(**long)
    next(iter(stream))
    stream.close()
    chatty.wait(lambda: in_flight(chatty) == 0, timeout_s=5)

    async def work(api):
        streams = [await api.chat.completions.create(**long) for _ in range(6)]
        for stream in streams:
            await anext(stream)
            await stream.close()
        # A task that is cancelled leaves its request, too.
        task = asyncio.create_task(api.chat.completions.create(**{**long, "stream": False, "n": 8}))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_async(chatty, work)
    chatty.wait(lambda: in_flight(chatty) == 0, timeout_s=5)
    assert client.chat.completions.create(**ask()).choices[0].message.content
