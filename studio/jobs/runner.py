"""``python -m slm.studio.jobs.runner FOLDER``: run the job of a folder to its end, then start the next one.

It leads a separate session, so neither a closed terminal nor the end of studio reaches it.

Tested in tests/studio/jobs/test_queue.py.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from slm.data.storage import atomic_write_text
from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue

RESERVED, RESERVED_BYTES = "reserved", 1 << 18
"""Room that a job holds until it has ended."""


def main(folder: Path) -> None:
    """Run the job; what it prints goes to its log."""
    job = jobs.read(folder)
    assert job is not None
    # Studio may have been started in the background of a shell, which makes its children deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reserved = folder / RESERVED
    reserved.write_bytes(b"-" * RESERVED_BYTES)
    began: dict[str, Any] = {"at": time.time(), "runner": jobs.identity(os.getpid())}
    _write(folder / jobs.BEGAN, began)
    with (folder / jobs.LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "slm", *job.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    _write(folder / jobs.BEGAN, began | {"command": jobs.identity(process.pid)})
    status = process.wait()
    free = shutil.disk_usage(folder.parent).free
    reserved.unlink(missing_ok=True)  # so that the end can be written on a full disk, too
    _write(folder / jobs.ENDED, {"at": time.time(), "status": status, "free": free})
    Queue(folder.parent).start_next()


def _write(path: Path, facts: dict[str, Any]) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody removed the folder: the queue goes on
        atomic_write_text(path, json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
