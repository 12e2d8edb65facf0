"""Several models behind one server, under a memory budget that does not hold them all."""

import asyncio
import concurrent.futures
import json
import shutil
import time

import httpx
import openai
import pytest

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.process import PROCESS_NAME
from slm.serve.pool.memory_plan import needed_bytes, read_facts
from tests.helpers import programs

GIB = 2**30


def config(path, **more):
    return EngineConfig(model_path=path, threads=1, **more)


def need_gb(path, n=1.0, **more):
    return n * needed_bytes(read_facts(path), config(path, **more)) / GIB


@pytest.fixture(scope="module")
def three(tmp_path_factory, tiny_path, chat_path, slow_path, start_server):
    """tiny is the default; ``chat`` and ``slow`` come when asked for. There is room for two."""
    budget = need_gb(slow_path, 1.05) + need_gb(chat_path)
    log = tmp_path_factory.mktemp("log") / "server.log"
    words = [f"serve.models=[chat={chat_path},'slow={slow_path}']", f"serve.memory_budget_gb={budget}"]
    words.append("serve.slots=4")
    with start_server(log, tiny_path, *words) as server:
        yield server


def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def ask(server, model, prompt="hello", timeout=60, **more):
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
    body |= {} if model is None else {"model": model}
    return httpx.post(server.url + "/v1/completions", json=body, timeout=timeout)


def states(server):
    return httpx.get(server.url + "/health").json()["models"]


def engines(server):
    import psutil

    children = psutil.Process(server.process.pid).children(recursive=True)
    return sum(child.name() == PROCESS_NAME for child in children)


# -- names and memory ---------------------------------------------------------------------------------------------


def test_the_header_says_what_the_engine_would(server, tiny_path):
    facts = read_facts(tiny_path)
    card = httpx.get(server.url + "/v1/models").json()["data"][0]
    assert card["status"] == "ready"
    assert card["meta"]["n_vocab"] == facts.n_vocab == 317
    assert card["meta"]["n_params"] == facts.n_params
    assert card["meta"]["context"] == 512
    # n_layers x n_kv_heads x (keys and values of 64)
    assert facts.kv_values == 2 * 2 * 128


def test_a_model_that_can_never_fit_is_refused_in_one_line(tmp_path, tiny_path, slow_path):
    def serve(*words):
        errors = programs.run("slm.serve", list(words), tmp_path, status=2)
        assert "Traceback" not in errors
        (line,) = errors.strip().splitlines()
        return line

    budget = need_gb(tiny_path, 1.5)
    words = (f"serve.models=[{slow_path}]", f"serve.memory_budget_gb={budget}", "serve.slots=4")
    line = serve(f"model={tiny_path}", *words)
    assert "slow needs about 0." in line
    assert "raise serve.memory_budget_gb" in line
    line = serve(f"model={tiny_path}", "serve.models=[x=nowhere.gguf]", "port=0")
    assert "nowhere.gguf does not exist" in line


# -- choosing -----------------------------------------------------------------------------------------------------


def test_each_request_has_its_own_model(three, tiny_path, chat_path):
    assert ask(three, None).json()["model"] == "tiny"
    assert ask(three, "default").json()["model"] == "tiny"
    for name in ("chat", "tiny", "slow"):
        assert ask(three, name).json()["model"] == name
    api = client(three)
    with pytest.raises(openai.NotFoundError) as caught:
        api.completions.create(model="chta", prompt="x")
    assert caught.value.code == "model_not_found"
    assert "did you mean 'chat'?" in str(caught.value)
    # Its own template, its own vocabulary.
    messages = [{"role": "user", "content": "hello"}]
    said = api.chat.completions.create(model="chat", messages=messages, max_tokens=3)
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    tokens = {}
    for name in ("chat", "tiny"):
        body = {"model": name, "content": rendered, "parse_special": True}
        tokens[name] = httpx.post(three.url + "/tokenize", json=body, timeout=30).json()["tokens"]
    assert said.usage.prompt_tokens == len(tokens["chat"]) < len(tokens["tiny"])
    body = {"model": "chat", "tokens": tokens["chat"]}
    back = httpx.post(three.url + "/detokenize", json=body, timeout=30).json()["content"]
    assert back == "user\nhello\nassistant\n"  # control tokens are no text
    assert httpx.post(three.url + "/detokenize", json={**body, "model": "tiny"}, timeout=30).status_code == 400
    assert len(api.embeddings.create(model="chat", input="x").data[0].embedding) == 256
    assert api.responses.create(model="chat", input="x", max_output_tokens=2).model == "chat"


def test_models_health_and_metrics_tell_of_all(three):
    ask(three, "chat")
    api = client(three)
    cards = {card.id: card for card in api.models.list().data}
    assert list(cards) == ["tiny", "chat", "slow"]
    assert cards["chat"].status == "ready"
    # Known without loading it.
    assert cards["slow"].meta["n_params"] > cards["tiny"].meta["n_params"]
    assert cards["slow"].meta["context"] == 4096
    assert not cards["slow"].meta["chat_template"]
    assert cards["chat"].meta["chat_template"]
    assert api.models.retrieve("slow").id == "slow"
    assert states(three)["chat"] == "ready"
    metrics = three.metrics()
    assert metrics['slm_engine_up{model="chat"}'] == 1
    assert metrics['slm_completion_tokens_total{model="chat"}'] >= 4
    assert metrics['slm_request_seconds_count{model="chat"}'] >= 1
    assert metrics["slm_memory_budget_bytes"] > metrics['slm_model_bytes{model="chat"}'] > 50e6


def test_the_longest_unused_makes_room(three):
    for name in ("tiny", "chat"):
        assert ask(three, name).status_code == 200
    assert [states(three)[name] for name in ("tiny", "chat", "slow")] == ["ready", "ready", "unloaded"]
    before = three.metrics()
    assert ask(three, "slow").status_code == 200
    assert states(three)["tiny"] == "unloaded"
    assert states(three)["slow"] == "ready"
    assert ask(three, "tiny").status_code == 200
    assert states(three)["chat"] == "unloaded"
    three.wait(lambda: engines(three) == 2)
    after = three.metrics()
    assert after['slm_model_loads_total{model="tiny"}'] == before['slm_model_loads_total{model="tiny"}'] + 1
    # What was counted before it was unloaded stays counted.
    assert after['slm_completion_tokens_total{model="chat"}'] >= before['slm_completion_tokens_total{model="chat"}']


def test_a_busy_model_finishes_what_it_has_before_it_goes(three):
    """Two models work, a third is asked for: it waits for one of them, and so do new requests for that one."""
    ask(three, "tiny")
    ask(three, "slow")
    long = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, three, "tiny", **{**long, "max_tokens": 450})
        second = pool.submit(ask, three, "slow", **long)
        three.wait(lambda: three.metrics()['slm_sequences_in_flight{model="slow"}'] == 1)
        third = pool.submit(ask, three, "chat")
        fourth = pool.submit(ask, three, "tiny")
        answers = [each.result(60) for each in (first, second, third, fourth)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [450, 400, 4, 4]


def test_requests_for_a_model_on_its_way_wait_for_one_load(three):
    ask(three, "tiny")
    ask(three, "chat")
    before = three.metrics()['slm_model_loads_total{model="slow"}']
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: ask(three, "slow", f"hello {i}"), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert three.metrics()['slm_model_loads_total{model="slow"}'] == before + 1


def test_all_models_at_once_and_each_text_its_own(three):
    """More models than there is room for, asked in turn by many: all are answered, none is mixed up."""
    prompts = [f"{word} {i}" for i in range(3) for word in ("hello", "the boat")]
    alone = {(m, p): ask(three, m, p).json()["choices"][0]["text"] for m in ("tiny", "chat", "slow") for p in prompts}
    pairs = list(alone)[::2] + list(alone)[1::2]
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        texts = list(pool.map(lambda pair: ask(three, *pair).json()["choices"][0]["text"], pairs))
    assert texts == [alone[pair] for pair in pairs]
    assert sum(state == "ready" for state in states(three).values()) == 2


def test_a_client_that_leaves_while_its_model_is_loading(three):
    """Nobody is served for it, and nothing is unloaded for it any longer than it waits."""
    ask(three, "tiny")
    ask(three, "slow")
    body = {"model": "slow", "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    other = {"model": "tiny", "prompt": "x", "max_tokens": 480, "ignore_eos": True, "stream": True}
    url = three.url + "/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as a, httpx.stream("POST", url, json=other, timeout=60) as b:
        lines, others = a.iter_lines(), b.iter_lines()
        next(lines)
        next(others)
        with pytest.raises(httpx.ReadTimeout):
            ask(three, "chat", timeout=0.2)
        three.wait(lambda: three.metrics()['slm_requests_waiting_for_load{model="chat"}'] == 0)
        assert json.loads(next(line for line in lines if line).removeprefix("data: "))["choices"]
    assert ask(three, "chat").status_code == 200


def test_a_file_that_is_gone_or_damaged(tmp_path, tiny_path, chat_path, start_server):
    """Told in one line, tried again a little later; the other models work on."""
    other = tmp_path / "other.gguf"
    shutil.copy(chat_path, other)
    with start_server(tmp_path / "log", tiny_path, f"serve.models=[{other}]") as server:
        other.write_bytes(chat_path.read_bytes()[:50_000])
        answer = ask(server, "other")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_unavailable"
        assert "damaged" in answer.json()["error"]["message"]
        other.unlink()
        assert ask(server, "tiny").status_code == 200
        cards = httpx.get(server.url + "/v1/models").json()["data"]
        assert cards[1]["meta"] is None
        time.sleep(2.1)
        assert "cannot be read" in ask(server, "other").json()["error"]["message"]
        shutil.copy(chat_path, other)
        server.wait(lambda: ask(server, "other").status_code == 200)


def test_one_models_engine_dies_and_the_other_does_not_notice(tmp_path, tiny_path, chat_path, start_server):
    import os
    import signal

    model = tmp_path / "tiny.gguf"
    shutil.copy(tiny_path, model)
    words = [f"serve.models=[chat={chat_path}]", "serve.memory_budget_gb=4"]
    with start_server(tmp_path / "log", model, *words) as server:
        first = server.engine_pid()
        assert ask(server, "chat").status_code == 200
        # Another one of a model this small is there in no time: without its file it is not.
        away = model.rename(tmp_path / "away")
        os.kill(first, signal.SIGKILL)
        server.wait(lambda: states(server)["tiny"] != "ready")
        assert ask(server, "chat").status_code == 200
        # With a model that works, the server is of use.
        assert httpx.get(server.url + "/health").status_code == 200
        away.rename(model)
        server.wait(lambda: ask(server, "tiny").status_code == 200)
        # Starts without the file count, too: there may have been several.
        assert server.metrics()['slm_engine_restarts_total{model="tiny"}'] >= 1
        assert server.metrics()['slm_engine_restarts_total{model="chat"}'] == 0


def test_names_are_not_told_without_a_key(tmp_path, tiny_path, chat_path, start_server):
    words = [f"serve.models=[chat={chat_path}]", "serve.api_keys=[sesame]"]
    with start_server(tmp_path / "log", tiny_path, *words) as server:
        assert httpx.get(server.url + "/health").json() == {"status": "ok"}
        headers = {"Authorization": "Bearer sesame"}
        assert states_with(server, headers) == {"tiny": "ready", "chat": "unloaded"}


def states_with(server, headers):
    return httpx.get(server.url + "/health", headers=headers).json()["models"]


def test_many_clients_of_two_models(three):
    """Streams of both at once, through the asynchronous client."""

    async def run():
        async with openai.AsyncOpenAI(base_url=three.url + "/v1", api_key="none", max_retries=0) as api:

            async def one(i):
                model = ("tiny", "chat")[i % 2]
                stream = await api.completions.create(model=model, prompt=f"hello {i}", max_tokens=8, stream=True)
                return [chunk.model async for chunk in stream]

            return await asyncio.gather(*(one(i) for i in range(12)))

    for i, models in enumerate(asyncio.run(run())):
        assert set(models) == {("tiny", "chat")[i % 2]}


# -- idle models --------------------------------------------------------------------------------------------------


def test_a_model_may_be_unloaded_as_soon_as_the_server_answers(tmp_path, tiny_path, start_server):
    """Importing the routes takes longer than that; once it ended the start with a traceback."""
    with start_server(tmp_path / "log", tiny_path, "serve.idle_unload_s=0.01") as server:
        body = {"prompt": "x", "max_tokens": 2}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code == 200
        assert "Traceback" not in server.log.read_text()


def test_an_idle_model_is_unloaded_and_comes_back(tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.idle_unload_s=1") as server:
        body = {"prompt": "x", "max_tokens": 480, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as stream:
            texts = []
            for line in stream.iter_lines():
                texts += [line] if line else []
                if len(texts) < 6:
                    time.sleep(0.4)  # together longer than a second: a model in use is not idle
        assert texts[-1] == "data: [DONE]"
        assert json.loads(texts[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        server.wait(lambda: engines(server) == 0)
        health = httpx.get(server.url + "/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert server.metrics()["slm_engine_up"] == 0
        (card,) = httpx.get(server.url + "/v1/models").json()["data"]
        assert card["status"] == "unloaded"
        assert card["meta"]["n_vocab"] == 317
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda i: ask(server, None, f"hello {i}"), range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert engines(server) == 1
        assert server.metrics()["slm_completion_tokens_total"] == 480 + 4 * 4  # those before the unloading, too


def test_each_of_several_models_is_unloaded_when_it_is_idle(tmp_path, tiny_path, chat_path, start_server):
    words = [f"serve.models=[chat={chat_path}]", "serve.idle_unload_s=2", "serve.memory_budget_gb=4"]
    with start_server(tmp_path / "log", tiny_path, *words) as server:
        assert ask(server, "chat").status_code == 200
        end = time.monotonic() + 4
        while time.monotonic() < end:
            assert ask(server, "chat").status_code == 200
            time.sleep(0.2)
        assert states(server) == {"tiny": "unloaded", "chat": "ready"}
        server.wait(lambda: states(server)["chat"] == "unloaded")
        assert ask(server, "tiny").status_code == 200


def test_an_engine_that_was_started_again_has_the_template_of_its_file(tmp_path, tiny_path, chat_path, start_server):
    """The file was exported anew meanwhile."""
    import os
    import signal

    served = tmp_path / "served.gguf"
    shutil.copy(chat_path, served)
    with start_server(tmp_path / "log", served) as server:
        turns = ("user", "hello"), ("assistant", "hi"), ("user", "hello")
        body = {"messages": [{"role": role, "content": text} for role, text in turns], "max_tokens": 2}

        def says():
            answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)
            return answer.json()["usage"]["prompt_tokens"] if answer.status_code == 200 else None

        before = says()
        shutil.copy(tiny_path, tmp_path / "new.gguf")
        os.replace(tmp_path / "new.gguf", served)
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait(lambda: server.metrics()["slm_engine_restarts_total"] == 1)
        server.wait(lambda: says() is not None)
        rendered = {"content": "User: hello\n\nAssistant: hi\n\nUser: hello\n\nAssistant:", "add_special": True}
        plain = httpx.post(server.url + "/tokenize", json=rendered, timeout=30).json()["tokens"]
        assert says() == len(plain) != before
