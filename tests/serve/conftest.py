import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from serve.worker import PROCESS_NAME

_spec = importlib.util.spec_from_file_location("tiny_gguf", Path(__file__).parents[1] / "tiny_gguf.py")
tiny_gguf = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_gguf)


@pytest.fixture(scope="session")
def tiny_gguf_module():
    """tests/tiny_gguf.py, for models of other kinds than those below."""
    return tiny_gguf


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """A base model: no chat template."""
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def chat_path(tmp_path_factory):
    """A model with a chat template."""
    folder = tmp_path_factory.mktemp("gguf-chat")
    return tiny_gguf.write(folder / "tiny-chat.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def slow_path(tmp_path_factory):
    """A model of many layers: slow enough that a request can be caught in the middle."""
    path = tmp_path_factory.mktemp("gguf-slow") / "slow.gguf"
    return tiny_gguf.write(path, n_ctx=4096, n_layers=12)


@dataclass
class Server:
    process: subprocess.Popen
    url: str
    log: Path

    def engine_pid(self) -> int:
        import psutil

        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == PROCESS_NAME and child.status() != psutil.STATUS_ZOMBIE:
                    return child.pid
        raise AssertionError("no engine process")

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return {n: float(v) for n, v in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def wait(self, condition, timeout_s: float = 10) -> float:
        began = time.perf_counter()
        while not condition():
            assert time.perf_counter() - began < timeout_s, self.log.read_text()
            time.sleep(0.02)
        return time.perf_counter() - began


@contextlib.contextmanager
def running_server(
    log: Path, model: Path, *words: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
):
    """A real `python -m serve` on a free port. `prefix`: a command that goes over to the one that follows it."""
    # Every step makes a chunk of its own: a tiny model would be done before the second is due.
    always = ("port=0", "serve.threads=1", "serve.stream_ms=0")
    command = [*prefix, sys.executable, "-m", "serve", f"model={model}", *always, *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    root = Path(__file__).parents[2]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=root, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 30
        while not (found := re.search(r"^url +(http://\S+)/v1", log.read_text(), re.M)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield Server(process, found.group(1), log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="session")
def start_server():
    return running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_path):
    with running_server(tmp_path_factory.mktemp("log") / "server.log", tiny_path) as server:
        yield server


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory, chat_path):
    with running_server(tmp_path_factory.mktemp("log") / "server.log", chat_path) as server:
        yield server


@pytest.fixture
def slow_server(tmp_path, slow_path):
    """One slot, two places to wait."""
    with running_server(tmp_path / "server.log", slow_path, "serve.slots=1", "serve.queue=2") as server:
        yield server
