"""Models that are loaded to chat with: ``slm serve`` processes on free ports of this machine, of which the page knows
nothing but a number."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.studio.jobs import job as jobs
from slm.studio.places import Places

MOST = 3
"""Models at the same time."""
SILENT_S = 180.0
"""Seconds without a sign of life after which a model that is loaded, or that replies, is given up."""
IDLE_S = 900.0
"""Seconds without a message after which a model is unloaded."""


@dataclass
class Server:
    """One process, and how to reach it."""

    id: str
    path: str
    port: int
    key: str
    process: subprocess.Popen[bytes]
    log: Path
    facts: dict[str, Any] = field(default_factory=dict)
    used: float = field(default_factory=time.monotonic)
    busy: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


class Servers:
    """The processes of this studio. They end with it; those that a killed one left are ended at the next start."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._kept = places.state / "servers" / f"{os.getpid()}.json"
        self._by_path: dict[str, Server] = {}
        self._loading = asyncio.Lock()

    def end_leftovers(self) -> None:
        """End what an earlier studio did not. Another one that still runs here keeps its own."""
        for path in self._kept.parent.glob("*.json"):
            kept = jobs.facts(path)
            if jobs.alive(kept.get("studio")):
                continue
            for process in kept.get("processes", []):
                if jobs.alive(process):
                    os.kill(int(process["pid"]), signal.SIGTERM)
            path.unlink(missing_ok=True)

    async def load(self, path: Path, *, measure: bool) -> Server:
        """A server of this GGUF file. The one that was used longest ago goes where there are ``MOST``.

        ``measure``: whether it may measure the best number of threads, for which the machine has to be idle. UserError
        with its own line where it does not start.
        """
        async with self._loading:
            shown = self._places.shown(path)
            if (known := self._by_path.get(shown)) and known.process.poll() is None:
                known.used = time.monotonic()
                return known
            while len(self._by_path) >= MOST:
                self.unload(min(self._by_path.values(), key=lambda each: (each.busy, each.used)).path)
            server = self._start(shown, measure)
            self._by_path[shown] = server
            self._keep()
            try:
                server.facts = await self._until_loaded(server)
            except BaseException:
                self.unload(shown)
                raise
            return server

    def of(self, id: str) -> Server:
        """A loaded model by its id. UserError where it was unloaded."""
        found = next((each for each in self._by_path.values() if each.id == id), None)
        if found is None or found.process.poll() is not None:
            raise UserError("this model is not loaded any more: choose it again")
        found.used = time.monotonic()
        return found

    def unload(self, path: str, *, hangs: bool = False) -> None:
        """End a model's process; at once where it ``hangs``, since it then may not hear that it is to end."""
        if server := self._by_path.pop(path, None):
            if hangs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.process.pid, signal.SIGKILL)  # its engine, too
            else:
                server.process.terminate()
            self._keep()

    def unload_below(self, path: str) -> None:
        """End the processes of a file, or of those in a folder."""
        for each in list(self._by_path):
            if each == path or each.startswith(f"{path}/"):
                self.unload(each)

    def unload_idle(self) -> None:
        """End the processes that nobody has used for ``IDLE_S``."""
        for server in list(self._by_path.values()):
            if not server.busy and time.monotonic() - server.used > IDLE_S:
                self.unload(server.path)

    def close(self) -> None:
        """End them all."""
        for path in list(self._by_path):
            self.unload(path)

    def _start(self, shown: str, measure: bool) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        key, id = secrets.token_urlsafe(24), secrets.token_hex(6)
        words = [f"model={shown}", f"port={port}", "host=127.0.0.1", "serve.access_log=off"]
        log = self._places.state / "servers" / f"{id}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "slm", "serve", *words, *([] if measure else ["serve.tune=off"])],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._places.root,
                env=os.environ | {"SLM_API_KEY": key, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        return Server(id=id, path=shown, port=port, key=key, process=process, log=log)

    async def _until_loaded(self, server: Server) -> dict[str, Any]:
        """What the server says of its model.

        A large file on a slow disk or a busy machine takes as long as it takes: the wait ends where the process does,
        or where it neither computes nor prints for ``SILENT_S``.
        """
        signs, seen = _signs_of_life(server), time.monotonic()
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            while time.monotonic() - seen < SILENT_S:
                if server.process.poll() is not None:
                    text = server.log.read_text(encoding="utf-8", errors="replace")
                    raise UserError(jobs.error_line(text, server.process.returncode))
                with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, IndexError):
                    answer = await client.get(f"{server.url}/v1/models", headers=server.headers)
                    if answer.status_code == 200 and (found := answer.json()["data"][0])["status"] == "ready":
                        return dict(found)
                if (now := _signs_of_life(server)) != signs:
                    signs, seen = now, time.monotonic()
                await asyncio.sleep(0.1)
        self.unload(server.path, hangs=True)
        said = jobs.last_line(server.log.read_text(encoding="utf-8", errors="replace"))
        raise UserError(
            f"{server.path}: nothing has come from its server for {SILENT_S:.0f} s"
            + (f", last: {said[:200]}" if said else "")
            + ". Choose it again"
        )

    def _keep(self) -> None:
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        processes = [jobs.identity(each.process.pid) for each in self._by_path.values()]
        atomic_write_text(self._kept, json.dumps({"studio": jobs.identity(os.getpid()), "processes": processes}))


def _signs_of_life(server: Server) -> tuple[float, int]:
    """Processor seconds of the server with its engine, and bytes that it has printed."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(server.process.pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # a measurement of threads that has just ended
                seconds += sum(each.cpu_times()[:2])
    return round(seconds, 2), server.log.stat().st_size
