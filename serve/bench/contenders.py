"""The servers that ``slm.serve.bench`` measures: which there are, how each is started, and when it is ready; and
where llama.cpp's command-line tools are."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from slm.data.errors import UserError
from slm.machine.hardware import compute_threads
from slm.serve.bench.config import BenchOptions


def find_tool(name: str, given: str | None, next_to: str | None = None) -> str | None:
    """The path of a llama.cpp tool: as given, in the folder of another tool, or in PATH; None where it is not
    installed.

    Raises ``UserError`` for a given path that does not exist.
    """
    if given == "off":
        return None
    if given is not None:
        if not Path(given).is_file():
            raise UserError(f"{given} does not exist; give the path of {name}, or off to leave it out")
        return str(Path(given).resolve())
    if next_to is not None and (there := Path(next_to).parent / name).is_file():
        return str(there)
    return shutil.which(name)


SLOTS = 16
"""Slots of llama-server, which divides its context among them."""
SLOT_CONTEXT = 1024
"""Tokens."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server by its command line; ``{model}`` and ``{port}`` are filled in."""

    name: str
    command: tuple[str, ...]
    ready_path: str = "/health"


def ours(options: list[str]) -> Contender:
    """``python -m slm.serve`` with its defaults, except for ``options`` and a queue that is never full."""
    command = (sys.executable, "-m", "slm.serve", "model={model}", "port={port}", "serve.queue=1024", *options)
    return Contender(name="ours", command=command)


def llama_server(binary: str) -> Contender:
    """llama.cpp's own server, with as many slots as pay on a small machine."""
    context = SLOTS * SLOT_CONTEXT
    words = ["-t", compute_threads(), "-np", SLOTS, "-c", context]
    command = (binary, "-m", "{model}", "--host", "127.0.0.1", "--port", "{port}", *map(str, words))
    return Contender(name="llama-server", command=command)


def llama_cpp_server(python: str, *, interrupt: bool) -> Contender:
    """llama-cpp-python's server on all physical cores. By its own default (``interrupt``), a request ends another."""
    words = ["--n_threads", compute_threads(), "--n_ctx", SLOT_CONTEXT]
    if not interrupt:
        words += ["--interrupt_requests", "false"]
    command = (python, "-m", "llama_cpp.server", "--model", "{model}", "--host", "127.0.0.1", "--port", "{port}")
    name = "llama_cpp.server" + (" (defaults)" if interrupt else "")
    return Contender(name=name, command=(*command, *map(str, words)), ready_path="/v1/models")


def has_llama_cpp_server(python: str) -> bool:
    """Whether that interpreter can start ``llama_cpp.server`` (its extra dependencies are optional)."""
    probe = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    modules = ("llama_cpp", "uvicorn", "fastapi", "sse_starlette", "starlette_context", "pydantic_settings")
    try:
        return subprocess.run([python, "-c", probe, *modules], capture_output=True).returncode == 0
    except OSError as error:
        raise UserError(
            f"bench.llama_cpp_server={python} cannot be run ({error.strerror}): give the path of a Python, or off"
        ) from error


def contenders(options: BenchOptions) -> tuple[list[Contender], list[str]]:
    """Our server and the others that are installed, and a note for each that is left out."""
    found, notes = [ours(options.options)], list[str]()
    binary = find_tool("llama-server", options.llama_server)
    if binary:
        found.append(llama_server(binary))
    elif options.llama_server is None:
        notes.append("llama-server is not in PATH: left out (bench.llama_server=PATH measures it)")
    python = options.llama_cpp_server or sys.executable
    if python == "off":
        return found, notes
    if has_llama_cpp_server(python):
        found.append(llama_cpp_server(python, interrupt=False))
    else:
        notes.append("llama_cpp.server's extras are missing: left out (bench.llama_cpp_server=PYTHON measures it)")
    return found, notes


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that is ready."""

    port: int
    pid: int
    start_s: float
    """From the start of the process to the first good answer."""

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far: of the process itself, and of its children."""
        own = psutil.Process(self.pid)
        times = {"server": sum(own.cpu_times()[:2])}
        with contextlib.suppress(psutil.NoSuchProcess):
            times["children"] = sum(sum(child.cpu_times()[:2]) for child in own.children(recursive=True))
        return times


@contextlib.contextmanager
def running(contender: Contender, model: Path, *, timeout_s: float = 120) -> Iterator[Running]:
    """Starts a server on a free port, waits until it is ready, and ends it at the end of the block.

    Raises ``UserError`` with the last line of its log when it does not start.
    """
    port = free_port()
    words = [word.format(model=model, port=port) if "{" in word else word for word in contender.command]
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while not _ready(port, contender.ready_path):
                if process.poll() is not None or time.perf_counter() - began > timeout_s:
                    log.seek(0)
                    last = log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                    raise UserError(f"{contender.name} does not start: {' '.join(last) or 'its log is empty'}")
                time.sleep(0.02)
            yield Running(port=port, pid=process.pid, start_s=time.perf_counter() - began)
        finally:
            _end(process)


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _ready(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
