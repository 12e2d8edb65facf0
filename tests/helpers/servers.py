"""Real servers for tests: ``python -m slm.serve`` on a free port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from slm.serve.engine.process import PROCESS_NAME
from tests.helpers import REPOSITORY
from tests.helpers.programs import Program


@dataclass
class Server:
    process: subprocess.Popen | Program
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
    """A real ``python -m slm.serve`` on a free port. ``prefix``: a command that goes over to the one that follows it.

    Without one, and where ``env`` does not change what Python itself reads, it is forked with everything imported.
    """
    # Every step makes its own chunk: a tiny model would be done before the second is due.
    always = ("port=0", "serve.threads=1", "serve.stream_ms=0")
    options = [f"model={model}", *always, *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    process: subprocess.Popen | Program
    if prefix or "PYTHONPATH" in environment:
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "slm.serve", *options],
                cwd=REPOSITORY,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
    else:
        log.write_bytes(b"")
        process = Program("slm.serve", options, log.parent, environment=environment, session=True, log=log)
    try:
        deadline = time.monotonic() + 30
        while not (found := re.search(r"^url +(https?://\S+)/v1", log.read_text(), re.M)):
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
