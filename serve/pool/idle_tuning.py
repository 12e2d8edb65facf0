"""Measures threads and batch sizes while nobody uses the server, so that the first start answers at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from slm.data.errors import UserError
from slm.serve.engine.config import EngineConfig
from slm.serve.pool.autotune import stop_measuring
from slm.serve.pool.model_pool import Pool, Served

QUIET_S = 5.0
"""Without a request, before a measurement begins."""
_MOST_QUIET_S = 600.0
"""After each attempt that came to nothing, the server must have been quiet for twice as long, up to this many
seconds."""


class IdleTuning:
    """``wants``: whether a model is to be measured. ``measure``: takes seconds; returns its configuration with the
    choice, or None where other programs use the cores. Both run in threads.

    A request ends a measurement, which begins anew when the server is quiet again. The choice is kept on the disk; a
    running engine gets it when it is loaded the next time.
    """

    def __init__(
        self,
        pool: Pool,
        wants: Callable[[EngineConfig], bool],
        measure: Callable[[EngineConfig], EngineConfig | None],
    ) -> None:
        self._pool, self._wants, self._measure = pool, wants, measure
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to wait for a quiet moment."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends the measurement that runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        for served in self._pool.models.values():
            # Adapters run with what their model has; what is not loaded has no memory of the budget.
            with contextlib.suppress(UserError, OSError):
                if served.parent is None and served.loaded is not None:
                    await self._tune(served)

    async def _tune(self, served: Served) -> None:
        quiet_s = QUIET_S
        while await asyncio.to_thread(self._wants, served.config):
            await self._quiet(quiet_s)
            found = await self._undisturbed(served.config)
            quiet_s = min(2 * quiet_s, _MOST_QUIET_S)
            if found is None:
                continue
            before = served.config.threads
            served.config = replace(
                served.config,
                threads=found.threads,
                batch=found.batch,
                ubatch=found.ubatch,
                flash_attn=found.flash_attn,
            )
            later = "" if found.threads == before else f" instead of {before}, from the next start on"
            if found.flash_attn is False:
                later += ", and no flash attention from the next start on"
            print(f"tuning   measured {served.name} in a quiet moment: {found.threads} threads{later}", flush=True)
            return

    async def _undisturbed(self, config: EngineConfig) -> EngineConfig | None:
        """What was measured; None also where a request came meanwhile."""
        self._pool.used.clear()
        measuring = asyncio.create_task(asyncio.to_thread(self._measure, config))
        used = asyncio.create_task(self._pool.used.wait())
        try:
            await asyncio.wait({measuring, used}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            used.cancel()
            while not measuring.done():
                stop_measuring()
                await asyncio.wait({measuring}, timeout=0.05)
        return measuring.result()

    async def _quiet(self, seconds: float) -> None:
        """Waits until no request has come for so long and none is running."""
        while True:
            self._pool.used.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._pool.used.wait()
            except TimeoutError:
                if not any(each.n_users or each.n_waiting for each in self._pool.models.values()):
                    return
