"""Two servers behind nginx with the configuration docs/deploy/nginx.conf, and one of them killed under load."""

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import textwrap
import time

import httpx
import pytest

N_REQUESTS = 60
N_CLIENTS = 8


def committed(repository, ports, listen):
    """docs/deploy/nginx.conf, with these ports."""
    block = (repository / "docs" / "deploy" / "nginx.conf").read_text()
    for name, port in zip(("slm-1", "slm-2"), ports, strict=True):
        assert f"server {name}:8080 " in block
        block = block.replace(f"server {name}:8080 ", f"server 127.0.0.1:{port} ")
    assert "listen 8080;" in block
    return block.replace("listen 8080;", f"listen 127.0.0.1:{listen};")


def directives(text):
    """The lines of a configuration without comments, spaces and addresses."""
    lines = [re.sub(r"\s*#.*", "", line).strip() for line in text.splitlines()]
    return [re.sub(r"^server \S+", "server ADDRESS", line) if line.endswith("5s;") else line for line in lines if line]


def test_the_document_shows_the_committed_configuration(repository):
    text = (repository / "docs" / "serving-operation.md").read_text()
    shown = directives(textwrap.dedent(re.search(r"^    upstream slm \{.*?(?=^\S)", text, re.M | re.S).group(0)))
    whole = directives((repository / "docs" / "deploy" / "nginx.conf").read_text())
    assert len(shown) > 15
    # The document leaves out the last location, which hides /metrics.
    assert whole[: len(shown) - 1] == shown[:-1]
    assert whole[len(shown) - 1 :] == ["location = /metrics {", "return 404;", "}", "}"]


@contextlib.contextmanager
def nginx(folder, block, port):
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid; error_log {folder}/error.log; daemon off; worker_processes 1;\n"
        f"events {{ worker_connections 256; }}\nhttp {{ access_log off; {paths}\n{block}\n}}\n"
    )
    command = [program, "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 15
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


async def load(url, victim):
    """What became of each request: (whether it began before the kill, whether it was a stream, its trouble)."""
    left, outcomes, killed = iter(range(N_REQUESTS)), [], asyncio.Event()

    async def ask(client, i, rng):
        body = {"prompt": f"the fox {i}", "max_tokens": rng.randint(15, 50), "ignore_eos": True}
        if i % 3 == 0:
            answer = await client.post(url, json=body)
            return None if answer.status_code == 200 else f"{answer.status_code} {answer.text}"
        last = ""
        async with client.stream("POST", url, json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                return str(answer.status_code)
            async for line in answer.aiter_lines():
                last = line or last
        return None if last == "data: [DONE]" else f"ended in {last[:100]}"

    async with httpx.AsyncClient(timeout=60) as client:

        async def one_client(seed):
            rng = random.Random(seed)
            for i in left:
                before = not killed.is_set()
                try:
                    trouble = await ask(client, i, rng)
                except httpx.HTTPError as error:
                    trouble = repr(error)
                outcomes.append((before, i % 3 != 0, trouble))

        async def kill():
            while len(outcomes) < N_REQUESTS // 3:
                await asyncio.sleep(0.01)
            engine = victim.engine_pid()
            killed.set()
            os.kill(victim.process.pid, signal.SIGKILL)
            os.kill(engine, signal.SIGKILL)

        await asyncio.gather(kill(), *(one_client(seed) for seed in range(N_CLIENTS)))
    return outcomes


def test_one_of_two_servers_is_killed(tmp_path, slow_path, start_server, repository):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        words = ("serve.slots=6", "serve.access_log=off", "serve.hosts=[slm]")
        servers = [stack.enter_context(start_server(tmp_path / f"{i}.log", slow_path, *words)) for i in range(2)]
        ports = [server.url.rpartition(":")[2] for server in servers]
        stack.enter_context(nginx(tmp_path, committed(repository, ports, port), port))
        url = f"http://127.0.0.1:{port}"
        # Each does its share.
        for _ in range(4):
            assert httpx.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
        assert all(server.metrics()["slm_request_seconds_count"] > 0 for server in servers)
        assert httpx.get(url + "/metrics").status_code == 404  # of which server would it be?
        outcomes = asyncio.run(load(url + "/v1/completions", servers[0]))
        assert len(outcomes) == N_REQUESTS
        troubled = [each for each in outcomes if each[2] is not None]
        # Only streams that the dead server had begun; whatever else it had was asked again of the other.
        assert all(before and stream for before, stream, _ in troubled), troubled
        assert len(troubled) <= N_CLIENTS
        assert servers[1].wait(lambda: servers[1].metrics()["slm_sequences_in_flight"] == 0) < 5
