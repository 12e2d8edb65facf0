"""Commands that a screen waits for (``slm data-stats``, ``slm plan``): their last line is the answer.

Tested in tests/studio/test_asking.py, tests/studio/test_app.py.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.studio.jobs.job import error_line, final_json

LINE_BYTES = 32 << 20
"""The longest line of a command."""


async def ask(words: list[str], cwd: Path) -> dict[str, Any]:
    """The final JSON line of a command, and what it printed before (``said``).

    UserError with the command's own line where it fails. If this task is cancelled, the command ends.
    """
    process = await _start(words, cwd, stderr=asyncio.subprocess.PIPE)
    try:
        out, err = await process.communicate()
    finally:
        await _end(process)
    text = out.decode("utf-8", errors="replace")
    if process.returncode != 0:
        raise UserError(error_line(text + err.decode("utf-8", errors="replace"), process.returncode))
    found = final_json(text)
    if found is None:
        raise UserError(f"slm {words[0]} ended without its last line: {error_line(text, 0)}")
    said = [line for line in text.splitlines() if line.strip()][:-1]
    return {"result": found, "said": said}


async def lines(words: list[str], cwd: Path) -> AsyncIterator[str]:
    """The lines that a command prints, as they come. UserError with its own line where it fails."""
    process = await _start(words, cwd, stderr=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async for line in process.stdout:
            yield line.decode("utf-8", errors="replace").rstrip("\n")
        said = (await process.stderr.read()).decode("utf-8", errors="replace")
        if await process.wait() != 0:
            raise UserError(error_line(said, process.returncode))
    finally:
        await _end(process)


async def _start(words: list[str], cwd: Path, stderr: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slm", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        cwd=cwd,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        limit=LINE_BYTES,
        start_new_session=True,  # a Ctrl-C in studio's terminal is studio's
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command with what it has started: a plan's measurement would go on alone."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads its session
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # its pipes, before studio's end closes the loop
