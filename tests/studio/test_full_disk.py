"""A disk that is full while a job runs: one clear line, nothing lost, and it goes on where there is room again."""

import os
import re
import subprocess

import pytest
from starlette.testclient import TestClient

from slm.model.checkpoint import verify
from slm.runs import list_checkpoints
from slm.studio.app import make_app
from slm.studio.config import StudioConfig
from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue
from slm.studio.places import Places
from slm.studio.routes.queue import view
from tests.helpers.small_run import OPTIONS, last_step, records, write_corpus
from tests.studio.conftest import PORT, URL
from tests.studio.jobs.test_queue import state, wait_for


@pytest.fixture
def disk(tmp_path):
    """A workspace on a separate disk, 96 MB; skipped where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "slm-test", folder], capture_output=True).returncode:
        pytest.skip("a tmpfs can only be mounted by root")
    yield folder
    # The process of the last job may still be about to go.
    wait_for(lambda: subprocess.run(["umount", folder], capture_output=True).returncode == 0)


def fill(disk) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_job(disk, tmp_path):
    corpus = write_corpus(tmp_path / "texts.jsonl")
    words = ["train", *OPTIONS, f"data.files=[{corpus}]", "name=mine", "train.max_steps=100000"]
    words += ["train.eval_every=99999", "train.checkpoint_every=20", "train.keep_last=1"]
    queue = Queue(disk / "runs" / ".studio" / "jobs")
    places, root = Places(disk), disk / "runs" / "mine"
    app, token = make_app(StudioConfig(), disk, PORT)
    browser = TestClient(app, base_url=URL)
    browser.get(f"/?token={token}")
    job = queue.add("train", "mine", words, "runs/mine")
    waiting = queue.add("plan", "next", ["--version"])
    wait_for(lambda: last_step(root) > 20)
    fill(disk)
    wait_for(lambda: state(queue, job) != "running")
    before = {each["step"]: each["loss"] for each in records(root) if "lr" in each}
    shown = view(places, job, queue.folder / job.id)
    assert shown["state"] == "failed"
    assert re.search("No space left on device|no room for the checkpoint", shown["error"])
    assert re.search("make room|free some", shown["error"])
    assert "\n" not in shown["error"]
    verify(list_checkpoints(root)[-1])  # the last one is whole

    # What waits is not used up, and what is asked for meanwhile is refused in one line.
    fill(disk)
    assert state(queue, waiting) == "waiting"
    told = browser.post(f"/api/jobs/{job.id}/again", json={})
    assert (told.status_code, told.json()["error"]) == (
        507,
        "the disk is full, so nothing was done: make room, then try again",
    )
    assert state(queue, job) == "failed"
    assert "make room" in (queue.waits_for() or "")

    os.unlink(disk / "ballast")
    again = browser.post(f"/api/jobs/{job.id}/again", json={}).json()["id"]
    wait_for(lambda: jobs.state(queue.folder / waiting.id) == "done")
    wait_for(lambda: last_step(root) > max(before))
    after = {each["step"]: each["loss"] for each in records(root) if "lr" in each}
    assert {step: after[step] for step in before} == before
    queue.stop(again)
    wait_for(lambda: not queue.running())
