"""The queue: one command at a time, since training takes the whole machine. All of it is on disk."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.report import size
from slm.studio.jobs import job as jobs
from slm.studio.jobs.job import Job

ROOM = 32 << 20
"""Bytes that must be free for a job to start: less would end one job of the queue after the other."""
STARTS_WITHIN_S = 20.0
"""Seconds in which the process of a job says that it began."""


class Queue:
    """The jobs of a folder. Any process may use it at any time, the jobs' own processes among them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def folder_of(self, id: str) -> Path:
        """The folder of a job. UserError where there is no such job."""
        path = self.folder / id
        if not id.isalnum() or jobs.read(path) is None:
            raise UserError("there is no such job any more: load the page again")
        return path

    def all(self) -> list[tuple[Job, Path]]:
        """Every job with its folder, in the order of the queue."""
        folders = list(self.folder.iterdir()) if self.folder.is_dir() else []
        found = [(job, folder) for folder in folders if (job := jobs.read(folder)) is not None]
        return sorted(found, key=lambda each: each[0].order)

    def running(self) -> bool:
        """Whether a job runs now."""
        return any(jobs.state(folder) == "running" for _, folder in self.all())

    def add(
        self, kind: str, title: str, words: list[str], run: str | None = None, form: dict[str, Any] | None = None
    ) -> Job:
        """Put a command at the end, and start it where nothing runs."""
        with self._locked():
            job = self._added(kind, title, words, run, form)
        self.start_next()
        return job

    def _added(self, kind: str, title: str, words: list[str], run: str | None, form: dict[str, Any] | None) -> Job:
        order = max((job.order for job, _ in self.all()), default=0.0) + 1
        id = f"{time.strftime('%Y%m%d%H%M%S')}{secrets.token_hex(3)}"
        job = Job(id=id, kind=kind, title=title, words=words, run=run, created=time.time(), order=order, form=form)
        jobs.write(self.folder / id, job)
        return job

    def waits_for(self) -> str | None:
        """Why no job starts, where none can."""
        if not self.folder.is_dir() or (free := shutil.disk_usage(self.folder).free) >= ROOM:
            return None
        return f"the disk has {size(free)} free, and a job starts where there are {size(ROOM)}: make room"

    def start_next(self) -> None:
        """Start the first waiting job, unless another runs or the disk is full."""
        if self.waits_for():
            return
        with self._locked():
            found = [(folder, jobs.state(folder)) for _, folder in self.all()]
            if any(state == "running" for _, state in found):
                return
            for folder, state in found:
                if state == "waiting" and self._start(folder):
                    return

    def stop(self, id: str) -> None:
        """As Ctrl-C does: training saves and ends. A job that waits is removed."""
        folder = self.folder_of(id)
        with self._locked():
            if jobs.state(folder) == "waiting":
                shutil.rmtree(folder)
                return
        command = jobs.facts(folder / jobs.BEGAN).get("command")
        if command and jobs.alive(command):
            os.kill(int(command["pid"]), signal.SIGINT)

    def again(self, id: str, words: list[str] | None = None) -> Job:
        """The same command once more, or with other ``words``, at the end of the queue: a run goes on from its last
        checkpoint. What is kept of the old job goes."""
        with self._locked():  # two windows: once
            folder = self.folder_of(id)
            job = jobs.read(folder)
            assert job is not None
            if jobs.state(folder) in ("waiting", "running"):
                raise UserError(f"{job.title} has not ended: wait for it, or stop it first")
            added = self._added(job.kind, job.title, words or job.words, job.run, job.form)
            shutil.rmtree(folder)  # after that, since a full disk takes no new job
        self.start_next()
        return added

    def move(self, id: str, before: str | None) -> None:
        """Put a waiting job before another one, or at the end."""
        with self._locked():
            waiting = [job for job, folder in self.all() if jobs.state(folder) == "waiting"]
            moved = next((job for job in waiting if job.id == id), None)
            if moved is None:
                raise UserError("only a job that waits can be moved: it has begun")
            others = [job for job in waiting if job.id != id]
            at = next((n for n, job in enumerate(others) if job.id == before), len(others))
            if before is not None and at == len(others):  # another window was quicker
                raise UserError("the other job has begun or is gone: look at the queue again")
            orders = sorted(job.order for job in waiting)
            for job, order in zip([*others[:at], moved, *others[at:]], orders, strict=True):
                jobs.write(self.folder / job.id, replace(job, order=order))

    def forget(self, id: str) -> None:
        """Remove a job that has ended from the list; its run stays."""
        with self._locked():
            folder = self.folder_of(id)
            if jobs.state(folder) == "running":
                raise UserError("it still runs: stop it first")
            shutil.rmtree(folder)

    def _start(self, folder: Path) -> bool:
        """Start the job's process, and wait until it says so. Whether it did."""
        with (folder / jobs.LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "slm.studio.jobs.runner", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                cwd=self.folder.parent.parent.parent,  # <workspace>/runs/.studio/jobs
            )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not (folder / jobs.BEGAN).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                atomic_write_text(folder / jobs.ENDED, json.dumps({"at": time.time(), "status": 1}))
                return False
            time.sleep(0.01)
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder.parent / "queue.lock"):
            yield
