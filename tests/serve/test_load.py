"""Many clients at once, some of whom leave: nothing is lost or mixed up, and no slot leaks.

SLM_LOAD_REQUESTS sets how many requests there are (10,000 for the whole proof, a minute or two for each way).
"""

import asyncio
import json
import os
import random

import httpx
import psutil
import pytest

N_REQUESTS = int(os.environ.get("SLM_LOAD_REQUESTS", "160"))
N_CLIENTS = 64
PREFIXES = (
    "the old fox and the little bird went to the river to find the red boat ",
    "once upon a time there was a girl who had a blue hat ",
    "",
)
LOOP = "the red boat and the blue hat and the red boat and the blue hat and "
LENGTHS = (1, 4, 16, 16, 40)
"""Most tokens of a reply."""
# Without half precision anywhere, greedy text does not depend on what else is computed.
EXACT = ("serve.kv_type=f32", "serve.flash_attn=false", "serve.slots=8", "serve.queue=200", "serve.access_log=false")


async def complete(client, url, asked, *, stream, leave_after=None):
    """The text; None when the client left early."""
    prompt, max_tokens = asked
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
    if not stream:
        return (await client.post(url, json=body)).json()["choices"][0]["text"]
    parts = []
    async with client.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200
        n_lines = 0
        async for line in answer.aiter_lines():
            n_lines += 1
            if n_lines == leave_after:
                return None
            if line == "data: [DONE]":
                return "".join(parts)
            if line and not line.startswith(":"):  # a comment says that the server is busy
                parts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    raise AssertionError("the stream ended without [DONE]")


async def load(url, watch):
    """``watch(done)`` is called after every request."""
    rng = random.Random(0)
    words = ["hello", "x", "the boat", "why", LOOP]
    prompts = [(f"{rng.choice(PREFIXES)}{rng.choice(words)} {i % 40}", rng.choice(LENGTHS)) for i in range(40)]
    limits = httpx.Limits(max_connections=N_CLIENTS + 4)
    left, done = iter(range(N_REQUESTS)), 0
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        serial = {prompt: await complete(client, url, prompt, stream=False) for prompt in prompts}

        async def one_client(seed):
            nonlocal done
            rng = random.Random(seed)
            for _ in left:
                prompt = rng.choice(prompts)
                leave_after = rng.randint(1, 8) if rng.random() < 0.1 else None
                stream = leave_after is not None or rng.random() < 0.7
                text = await complete(client, url, prompt, stream=stream, leave_after=leave_after)
                assert text is None or text == serial[prompt]
                done += 1
                watch(done)

        await asyncio.gather(*(one_client(seed) for seed in range(N_CLIENTS)))
    assert done == N_REQUESTS


WAYS = {
    "a cache per slot": (),
    "one cache for all": ("serve.kv_tokens=600",),
    "with draft tokens": ("serve.speculate=lookup", "serve.draft_tokens=4"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_client_gets_its_own_text(tmp_path, tiny_path, start_server, way):
    with start_server(tmp_path / "log", tiny_path, *EXACT, *WAYS[way]) as server:
        rss: dict[int, tuple[float, float]] = {}

        def watch(done: int) -> None:
            if done in (N_REQUESTS // 5, N_REQUESTS):
                pids = (server.process.pid, server.engine_pid())
                rss[done] = tuple(psutil.Process(pid).memory_info().rss / 2**20 for pid in pids)

        asyncio.run(load(server.url + "/v1/completions", watch))
        (first, last) = rss.values()
        print(f"{way}: {N_REQUESTS} requests; MiB of server and engine after a fifth {first} and at the end {last}")
        # Short runs are still growing into what they need.
        if N_REQUESTS >= 5000:
            assert all(b < a + max(10, 0.05 * a) for a, b in zip(first, last, strict=True))
        assert server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0) < 1
        assert server.wait(lambda: server.metrics()["slm_sequences_running"] == 0) < 1
        metrics = server.metrics()
        assert metrics["slm_engine_restarts_total"] == 0
        assert metrics["slm_prompt_tokens_cached_total"] > 0.2 * metrics["slm_prompt_tokens_total"]
