"""Several models behind one server: loaded when a request asks for them, unloaded when another needs their memory or
when nobody has used them for a while.

The pool lives on the server's asyncio loop. A request takes a lease of its model, and the model stays loaded while
anyone holds one. Models are loaded one at a time, in the order in which requests asked for them. When there is no
room, the least recently used models are unloaded first. Where all are in use, the least recently used of them accepts
no more requests until those that it has are finished; so nobody waits for ever behind a busy model.

Tested in tests/serve/test_several_models.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from slm.data.errors import UserError, one_line
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.protocol import ModelInfo
from slm.serve.pool.counters import Counters
from slm.serve.pool.engine_client import EngineClient
from slm.serve.pool.file_check import FileCheck
from slm.serve.pool.memory_plan import ModelFacts, adapter_bytes, check_fits, needed_bytes, read_facts
from slm.serve.pool.request_stream import QueueFullError

if TYPE_CHECKING:
    from slm.serve.chat_template import ChatPrompt

State = Literal["unloaded", "loading", "ready", "leaving", "restarting", "hung"]
_RETRY_S = 2.0
"""For so long after a failed load, requests get its error; then it is tried again."""


class ModelNotLoadedError(Exception):
    """The model cannot be loaded; the message says why."""


class ModelSource(Protocol):
    """Where models come from that are not served yet; see ``slm.serve.pool.pull``."""

    def may(self, word: str) -> bool:
        """Whether this names one that may be fetched."""

    async def pull(self, word: str) -> None:
        """Adds it to the pool. Raises ``ModelNotLoadedError``, ``QueueFullError``."""

    def progress_of(self, word: str) -> AsyncIterator[tuple[int, int]]:
        """``pull``, with the bytes that are there and those in all (0: not known yet)."""

    def how_far(self, word: str) -> str:
        """How far one is that is being fetched, for a message."""


class Loaded:
    """What there is of a model while it is loaded. ``n_bytes``: of memory, by estimate."""

    def __init__(self, engine: EngineClient, n_bytes: int) -> None:
        self.engine, self.n_bytes = engine, n_bytes
        self._chat: tuple[ModelInfo, ChatPrompt] | None = None

    @property
    def info(self) -> ModelInfo:
        """Facts of the newest engine; a restarted one may have found another file."""
        assert self.engine.info is not None
        return self.engine.info

    @property
    def chat(self) -> ChatPrompt:
        """The chat template of that engine's file."""
        if self._chat is None or self._chat[0] is not self.info:
            from slm.serve.chat_template import ChatPrompt  # its libraries are imported after the engine has started

            self._chat = (self.info, ChatPrompt(self.info))
        return self._chat[1]


class Served:
    """One model of the server, loaded or not."""

    def __init__(self, name: str, config: EngineConfig, parent: str | None = None) -> None:
        self.name, self.config = name, config
        self.parent = parent
        """For a LoRA adapter: the name of its model."""
        self.adapter_scales: tuple[float, ...] = ()
        """For requests that choose no adapters; (): what the configuration says."""
        self.created = int(time.time())
        self.counters = Counters()
        self.loaded: Loaded | None = None
        self.loading: asyncio.Task[None] | None = None
        self.leaving = False
        self.n_users = 0
        self.n_waiting = 0
        self.last_used = 0.0
        self.failed: tuple[float, str] | None = None
        self.file_check = FileCheck()
        self._facts: tuple[tuple[int, int], ModelFacts] | None = None

    @property
    def path(self) -> Path:
        """The GGUF file."""
        return self.config.model_path

    @property
    def run_name(self) -> str | None:
        """The name of the run that the file (or the adapter) was exported from: the same for every quantization."""
        folder = (self.config.adapter or self.path).resolve().parent
        return folder.parent.name if folder.name == "gguf" else None

    @property
    def state(self) -> State:
        """As /v1/models reports it."""
        if self.loaded is None:
            return "loading" if self.loading is not None else "unloaded"
        if self.leaving:
            return "leaving"
        if self.loaded.engine.hangs:
            return "hung"
        return "ready" if self.loaded.engine.ready else "restarting"

    def facts(self) -> ModelFacts:
        """Facts of the file as it is now. Raises ``UserError`` when it is gone or damaged."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None
        key = (status.st_mtime_ns, status.st_size)
        if self._facts is None or self._facts[0] != key:
            self._facts = (key, read_facts(self.path))
        return self._facts[1]

    def needed(self) -> int:
        """Bytes of memory that the model takes, by estimate. Reads the headers of its files, which takes a while on a
        slow disk. Raises ``UserError`` like ``facts``."""
        draft = self.config.draft_model
        facts = read_facts(draft) if draft else None
        return adapter_bytes(self.config) + needed_bytes(self.facts(), self.config, facts)


class Lease:
    """The right to use a loaded model until ``release``."""

    def __init__(self, pool: Pool, served: Served) -> None:
        assert served.loaded is not None
        self._pool, self._served, self._held = pool, served, True
        self.name = served.name
        self.engine, self.info, self.chat = served.loaded.engine, served.loaded.info, served.loaded.chat
        served.n_users += 1
        pool.used.set()
        served.last_used = time.monotonic()

    @property
    def adapter_scales(self) -> tuple[float, ...]:
        """The scales for requests that choose no adapters."""
        return self._served.adapter_scales

    def release(self) -> None:
        """Ends the lease. Safe to call again."""
        if self._held:
            self._held = False
            self._served.n_users -= 1
            self._served.last_used = time.monotonic()
            self._pool.wake()


class Pool:
    """The server's models. All methods belong to the event loop's thread."""

    def __init__(
        self,
        models: list[Served],
        *,
        budget: int | None,
        max_waiting: int,
        idle_s: float | None = None,
        grows: bool = False,
    ) -> None:
        """``grows``: models may be added to it."""
        assert models
        assert len({each.name for each in models}) == len(models)
        self.models = {each.name: each for each in models}
        self.default = models[0]
        self._grows = grows
        self.source: ModelSource | None = None
        """Adds models that a request names, where that is allowed."""
        self.budget = budget
        """Bytes; None: no limit, for a server with a single model."""
        self.idle_s = idle_s
        """A model that nobody has used for this many seconds is unloaded; None: it stays."""
        self.used = asyncio.Event()
        """Set with every lease; for whoever waits for a quiet moment."""
        self._idle_task: asyncio.Task[None] | None = None
        self._max_waiting = max_waiting
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closing = False

    @property
    def several(self) -> bool:
        """Whether there is more than one model, or may be."""
        return self._grows or len(self.models) > 1

    def add(self, served: Served) -> None:
        """Serves another model, loaded when a request asks for it."""
        assert self._grows
        assert served.name not in self.models
        self.models[served.name] = served

    def find(self, name: str) -> Served | None:
        """The model with this name, or else the first one of the run with this name."""
        if name in self.models:
            return self.models[name]
        return next((each for each in self.models.values() if each.run_name == name), None)

    @property
    def used_bytes(self) -> int:
        """Memory of the loaded models, by estimate."""
        return sum(each.loaded.n_bytes for each in self.models.values() if each.loaded is not None)

    async def start(self) -> Loaded:
        """Loads the first model. Raises ``UserError`` when that fails, or when one of the models never fits."""
        if self.budget is not None:
            for each in self.models.values():
                check_fits(each.name, await asyncio.to_thread(each.needed), self.budget)
        await self._load(self.default)
        assert self.default.loaded is not None
        return self.default.loaded

    def unload_when_idle(self) -> None:
        """From now on, each model that nobody has used for ``idle_s`` seconds is unloaded."""
        if self.idle_s is not None:
            for each in self.models.values():
                each.last_used = max(each.last_used, time.monotonic())
            self._idle_task = asyncio.create_task(self._unload_idle(self.idle_s))

    def ready(self, name: str) -> Lease | None:
        """A lease, if the model is loaded and accepts requests."""
        served = self.models[name]
        return Lease(self, served) if served.loaded is not None and not served.leaving else None

    async def lease(self, name: str) -> Lease:
        """Waits until the model is loaded.

        Raises ``ModelNotLoadedError``, or ``QueueFullError`` when too many requests wait for it.
        """
        served = self.models[name]
        while (lease := self.ready(name)) is None:
            if served.failed is not None and time.monotonic() - served.failed[0] < _RETRY_S:
                raise ModelNotLoadedError(served.failed[1])
            if served.n_waiting >= served.config.slots + self._max_waiting:
                raise QueueFullError(f"{served.n_waiting} requests are waiting for {name} to be loaded; try later.")
            if served.loading is None:
                served.loading = asyncio.create_task(self._load_in_turn(served))
            served.n_waiting += 1
            try:
                await asyncio.shield(served.loading)
            finally:
                served.n_waiting -= 1
                self.wake()
        return lease

    async def unload(self, name: str) -> bool:
        """Unloads a model when its requests are finished; new ones wait and load it again. False: it was not loaded."""
        served = self.models[name]
        async with self._turn:
            if served.loaded is None:
                return False
            served.leaving = True
            try:
                while served.n_users:
                    await self._next_change()
                await self._unload(served)
            finally:
                served.leaving = False
        return True

    def wake(self) -> None:
        """Makes the task that waits for memory look again. Called when a request or a model has left."""
        self._changed.set()

    # -- loading -------------------------------------------------------------------------------------------

    async def _load_in_turn(self, served: Served) -> None:
        """Loads a model when its turn comes, unless no request waits for it any more."""
        try:
            async with self._turn:
                # A model that was being unloaded is kept if a request arrives in time.
                if served.loaded is None and await self._make_room(served):
                    await self._load(served)
                    served.failed = None
        except UserError as error:
            served.failed = (time.monotonic(), one_line(error))
        finally:
            served.loading = None

    async def _load(self, served: Served) -> None:
        n_bytes = await asyncio.to_thread(served.needed)
        engine = EngineClient(
            served.config,
            max_waiting=self._max_waiting,
            counters=served.counters,
            name=served.name if self.several else "",
        )
        try:
            await engine.start()
        except BaseException as error:
            await engine.close()
            if isinstance(error, OSError | EOFError | RuntimeError | MemoryError):
                raise UserError(f"no engine process can be started: {one_line(error)}") from error
            raise
        served.loaded = Loaded(engine, n_bytes)
        served.last_used = time.monotonic()
        served.file_check.start(served.path)

    async def _make_room(self, wanted: Served) -> bool:
        """Unloads other models until there is room. False when no request waits for this one any more."""
        if self.budget is None:
            return True
        need = await asyncio.to_thread(wanted.needed)
        check_fits(wanted.name, need, self.budget)
        while True:
            if wanted.n_waiting == 0 or self._closing:
                self._keep_all()
                return False
            if self.used_bytes + need <= self.budget:
                self._keep_all()
                return True
            loaded = [each for each in self.models.values() if each.loaded is not None]
            # First an idle model, then one that is leaving already, then the least recently used.
            victim = min(loaded, key=lambda each: (each.n_users > 0, not each.leaving, each.last_used))
            if victim.n_users == 0:
                await self._unload(victim)
                continue
            victim.leaving = True
            await self._next_change()

    def _keep_all(self) -> None:
        for each in self.models.values():
            each.leaving = False

    async def _unload(self, served: Served) -> None:
        loaded, served.loaded = served.loaded, None
        assert loaded is not None
        served.leaving = False
        await loaded.engine.close()
        self.wake()

    async def _unload_idle(self, limit_s: float) -> None:
        """Unloads each model that nobody has used for ``limit_s`` seconds, until it is cancelled."""
        while True:
            due_s = limit_s  # whoever is used later than now is due later than that
            for each in self.models.values():
                left_s = each.last_used + limit_s - time.monotonic()
                if each.loaded is None or each.n_users or each.n_waiting:
                    continue
                if left_s > 0:
                    due_s = min(due_s, left_s)
                    continue
                async with self._turn:  # nobody loads meanwhile: there is memory for one engine of it, not for two
                    if each.loaded is not None and not each.n_users and each.last_used + limit_s <= time.monotonic():
                        await self._unload(each)
            await asyncio.sleep(due_s)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def close(self) -> None:
        """Ends every engine; requests in flight fail."""
        self._closing = True
        if self._idle_task is not None:
            self._idle_task.cancel()
        for each in self.models.values():
            if each.loading is not None:
                each.loading.cancel()
        loaded = [each.loaded for each in self.models.values() if each.loaded is not None]
        await asyncio.gather(*(each.engine.close() for each in loaded))
