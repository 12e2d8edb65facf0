"""Commands that a screen waits for: their end is the end of what they have started."""

import asyncio
import contextlib
import gc

import psutil
import pytest

from slm.data.storage import cache_home
from slm.studio.asking import ask


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # of pipes that were left open
def test_a_plan_that_is_cancelled_ends_with_its_measurement(tmp_path, monkeypatch):
    caches = tmp_path / "caches" / "slm"  # without what an earlier plan has measured
    caches.mkdir(parents=True)
    (caches / "kernels").symlink_to(cache_home() / "kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches.parent))
    (tmp_path / "a.txt").write_text("The cat sat on the mat and saw a dog.\n" * 400)
    words = ["plan", "preset=auto", "budget=1h", "plan.plot=", "data=local", "data.files=['a.txt']"]
    before = set(psutil.Process().children(recursive=True))  # what starts other tests' programs
    started: set[psutil.Process] = set()

    async def cancelled() -> None:
        asking = asyncio.create_task(ask(words, tmp_path))
        while not measuring(started):
            started.update(set(psutil.Process().children(recursive=True)) - before)
            assert not asking.done(), "it measured nothing"
            await asyncio.sleep(0.05)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    gc.collect()
    _, left = psutil.wait_procs(started, timeout=20)
    assert left == []


def measuring(processes: set[psutil.Process]) -> bool:
    """Whether one of them is a process of a measurement, which the command has started."""
    for each in processes:
        with contextlib.suppress(psutil.Error):
            if "multiprocessing.spawn" in " ".join(each.cmdline()):
                return True
    return False
