"""``slm studio`` as a process over a workspace, and the end of what it started."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue


class StudioProcess:
    """A studio on a free port; killed and started again it is on the same one."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.queue = Queue(workspace / "runs" / ".studio" / "jobs")
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it has printed its address (``url``)."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slm", "studio", f"port={self.port}", "open=false"],
            cwd=self.workspace,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", self.process.stdout.readline())
        assert found
        self.url, self.port = found[0], int(found[1])

    def kill(self) -> None:
        """As ``kill -9``."""
        self.process.kill()
        self.process.wait()

    def kill_command(self, title: str) -> None:
        """``kill -9`` of the command that the job of this title runs."""
        (folder,) = [folder for job, folder in self.queue.all() if job.title == title]
        os.kill(jobs.facts(folder / jobs.BEGAN)["command"]["pid"], signal.SIGKILL)

    def close(self) -> None:
        """End it, and what jobs a failed test left."""
        self.process.terminate()
        self.process.wait(20)
        for _, folder in self.queue.all():
            began = jobs.facts(folder / jobs.BEGAN)
            for each in (began.get("runner"), began.get("command")):
                if each and jobs.alive(each):
                    os.kill(each["pid"], signal.SIGKILL)
