"""What a live page costs the training next to it: ``python -m tests.soak.studio_cost [rounds=4] [seconds=20]``.

One run; in turn nobody looks at it, and a page follows it as a browser's does (the queue and the run, server-sent
events). Printed: tokens/s with the page and without, their ratio, and the processor seconds per second of studio and of
``slm watch``, which are the whole cost where cores are shared. Set-up (the first 10 s of a page) is measured by itself.
"""

import random
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import psutil

from tests.helpers.small_run import OPTIONS, records
from tests.helpers.studio import StudioProcess

WORDS = ("train", *OPTIONS, "name=mine", "train.max_steps=1000000", "train.eval_every=1000000")


def main(rounds: int = 4, seconds: float = 20.0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        chance = random.Random(1)
        words = ["".join(chance.choices("abdeiklmnorstu", k=6)) for _ in range(3000)]
        (workspace / "a.txt").write_text("\n\n".join(" ".join(chance.choices(words, k=200)) for _ in range(4000)))
        studio = StudioProcess(workspace)
        try:
            studio.queue.add("train", "mine", [*WORDS, f"data.files=[{workspace}/a.txt]"], "runs/mine")
            metrics = workspace / "runs" / "mine"
            while not (metrics / "metrics.jsonl").exists() or len(records(metrics)) < 40:
                time.sleep(1)
            measure(studio, metrics, rounds, seconds)
            for job, _ in studio.queue.all():
                studio.queue.stop(job.id)
        finally:
            studio.close()


def measure(studio: StudioProcess, run: Path, rounds: int, seconds: float) -> None:
    """``rounds`` times without a page, then with one."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    for n in range(rounds):
        for is_open in (False, True):
            page = Page(studio) if is_open else None
            time.sleep(10)  # its set-up: a Python process begins
            if page and not n:
                print(f"set-up of a page: {processor_seconds(studio)[1]:.2f} processor seconds of slm watch")
            before, own = tokens(run), processor_seconds(studio)
            began = time.monotonic()
            time.sleep(seconds)
            spent = time.monotonic() - began
            speeds[is_open].append((tokens(run) - before) / spent)
            after = processor_seconds(studio)
            costs[is_open].append((sum(after) - sum(own)) / spent)
            if page:
                page.close()
            print(
                f"page {'open  ' if is_open else 'closed'} {speeds[is_open][-1]:,.0f} tokens/s, "
                f"{1000 * costs[is_open][-1]:.1f} ms of processor a second",
                flush=True,
            )
    ratios = [with_it / without for with_it, without in zip(speeds[True], speeds[False], strict=True)]
    cost = statistics.median(costs[True])
    print(
        f"tokens/s open / closed: {', '.join(f'{each:.3f}' for each in ratios)}; median {statistics.median(ratios):.3f}"
    )
    print(
        f"studio and slm watch, page open: {1000 * cost:.1f} ms of processor a second, "
        f"{100 * cost / (psutil.cpu_count() or 1):.2f} % of {psutil.cpu_count()} cores"
    )


def tokens(run: Path) -> int:
    return next(each["tokens"] for each in reversed(records(run)) if "lr" in each)


def processor_seconds(studio: StudioProcess) -> tuple[float, float]:
    """Studio's, and those of the ``slm watch`` processes that it has now."""
    process = psutil.Process(studio.process.pid)
    watching = [each for each in process.children(recursive=True) if "watch" in each.cmdline()]
    return spent(process), sum(map(spent, watching))


def spent(process: psutil.Process) -> float:
    found = process.cpu_times()
    return found.user + found.system


class Page:
    """What a browser's page keeps open, in threads that read and do nothing else."""

    def __init__(self, studio: StudioProcess) -> None:
        base, query = studio.url.split("/?")
        self._client = httpx.Client(base_url=base, follow_redirects=True, timeout=None)
        self._client.get(f"/?{query}")
        self._over = False
        for path in ("/api/jobs/events", "/api/run/events?run=runs/mine"):
            threading.Thread(target=self._read, args=(path,), daemon=True).start()

    def _read(self, path: str) -> None:
        with self._client.stream("GET", path) as stream:
            for _ in stream.iter_bytes():
                if self._over:
                    return

    def close(self) -> None:
        self._over = True
        time.sleep(3)  # each stream has said something by then


if __name__ == "__main__":
    given = {
        name: float(value)
        for name, value in (re.fullmatch(r"(rounds|seconds)=([\d.]+)", each).groups() for each in sys.argv[1:])
    }
    main(int(given.get("rounds", 4)), given.get("seconds", 20.0))
