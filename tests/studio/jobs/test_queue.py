"""The queue with real commands and real processes: order, errors, stop, kill, and a studio that comes back."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from slm.data.errors import UserError
from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue
from tests.helpers.small_run import OPTIONS, last_step, records, write_corpus


def wait_for(happened: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def queue(tmp_path) -> Queue:
    return Queue(tmp_path / "runs" / ".studio" / "jobs")


def state(queue: Queue, job: jobs.Job) -> str:
    return jobs.state(queue.folder / job.id)


def test_jobs_run_one_after_the_other_and_say_how_they_ended(queue):
    first = queue.add("plan", "a", ["plan", "preset=tiny", "tokens_per_s=1000"])
    assert state(queue, first) == "running"
    wrong = queue.add("plan", "b", ["plan", "preset=tinny"])
    last = queue.add("plan", "c", ["--version"])
    gone = queue.add("plan", "d", ["--version"])
    assert [state(queue, job) for job in (wrong, last, gone)] == ["waiting"] * 3
    queue.move(last.id, before=wrong.id)
    assert [job.title for job, _ in queue.all()] == ["a", "c", "b", "d"]
    queue.move(last.id, before=None)
    assert [job.title for job, _ in queue.all()] == ["a", "b", "d", "c"]
    with pytest.raises(UserError, match="has begun"):
        queue.move(first.id, before=None)
    with pytest.raises(UserError, match="has not ended"):
        queue.again(first.id)
    queue.stop(gone.id)  # one that waits is removed
    wait_for(lambda: state(queue, last) == "done")
    assert [(job.title, jobs.state(folder)) for job, folder in queue.all()] == [
        ("a", "done"),
        ("b", "failed"),
        ("c", "done"),
    ]
    assert jobs.final_json(jobs.tail(queue.folder / first.id))["n_params"] > 1e6
    assert "did you mean 'tiny'" in jobs.error_line(jobs.tail(queue.folder / wrong.id), 2)
    queue.forget(wrong.id)
    with pytest.raises(UserError, match="no such job"):
        queue.again(wrong.id)


def test_a_base_that_the_hub_cannot_give_is_one_line(queue, tmp_path):
    (tmp_path / "qa.csv").write_text("question,answer\nWhat?,That.\nWho?,He.\n")
    words = ["tune", "base=nobody-has/this-model", "name=x", "data=chat", "data.files=[qa.csv]"]
    job = queue.add("tune", "x", words, "runs/x")
    wait_for(lambda: state(queue, job) == "failed", 180)
    told = jobs.error_line(jobs.tail(queue.folder / job.id), 2)
    assert "nobody-has/this-model" in told
    assert "\n" not in told
    assert not (tmp_path / "runs" / "x").exists()  # the name is still free


def studio(workspace: Path) -> tuple[subprocess.Popen, httpx.Client]:
    """``slm studio`` on a free port, and a browser that came in."""
    process = subprocess.Popen(
        [sys.executable, "-m", "slm", "studio", "port=0", "open=false"],
        cwd=workspace,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"(http://127\.0\.0\.1:\d+)/(\?token=\S+)", process.stdout.readline())
    assert found
    client = httpx.Client(base_url=found[1], follow_redirects=True, timeout=30)
    assert client.get(f"/{found[2]}").status_code == 200
    return process, client


@pytest.mark.slow
def test_a_run_outlives_studio_is_found_again_stopped_killed_and_resumed_exactly(tmp_path):
    corpus = write_corpus(tmp_path / "texts.jsonl")
    words = [
        "train",
        *OPTIONS,
        f"data.files=[{corpus}]",
        "name=mine",
        "train.max_steps=100000",
        "train.eval_every=99999",
    ]
    words += ["train.checkpoint_every=20", "train.keep_last=2"]
    queue = Queue(tmp_path / "runs" / ".studio" / "jobs")
    root = tmp_path / "runs" / "mine"
    process, client = studio(tmp_path)
    try:
        job = queue.add("train", "mine", words, "runs/mine")
        wait_for(lambda: last_step(root) > 20)
        process.kill()
        process.wait()
        process, client = studio(tmp_path)
        (shown,) = first_event(client)["jobs"]
        assert (shown["state"], shown["run"], shown["progress"]["share"] > 0) == ("running", "runs/mine", True)
        assert client.post(f"/api/jobs/{job.id}/stop").status_code == 200
        wait_for(lambda: state(queue, job) == "stopped")
        saved = last_step(root)

        job = queue.add("train", "mine", words, "runs/mine")
        wait_for(lambda: last_step(root) > saved + 25)
        command = jobs.facts(queue.folder / job.id / jobs.BEGAN)["command"]
        os.kill(command["pid"], signal.SIGKILL)
        wait_for(lambda: state(queue, job) == "failed")
        (_, shown) = first_event(client)["jobs"]
        assert shown["error"] == "it was killed (SIGKILL)"
        before = {each["step"]: each["loss"] for each in records(root) if "lr" in each}

        again = client.post(f"/api/jobs/{job.id}/again", json={}).json()["id"]
        log = queue.folder / again / jobs.LOG
        wait_for(lambda: log.is_file() and "resuming" in log.read_text() and last_step(root) >= max(before))
        after = {each["step"]: each["loss"] for each in records(root) if "lr" in each}
        assert {step: after[step] for step in before} == before
        client.post(f"/api/jobs/{again}/stop")
        wait_for(lambda: not queue.running())
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        for _, folder in queue.all():
            began = jobs.facts(folder / jobs.BEGAN)
            for each in (began.get("runner"), began.get("command")):
                if jobs.alive(each):
                    os.kill(each["pid"], signal.SIGKILL)


def first_event(client: httpx.Client) -> dict:
    import json

    with client.stream("GET", "/api/jobs/events") as stream:
        return next(json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))


def test_a_process_that_vanished_is_named(queue):
    job = jobs.Job(id="a1", kind="train", title="x", words=["train"], created=1.0, order=1.0)
    jobs.write(queue.folder / "a1", job)
    (queue.folder / "a1" / jobs.BEGAN).write_text('{"at": 1, "runner": {"pid": 1, "started": 1.0}}')
    assert state(queue, job) == "gone"  # process 1 is another one
    assert "the machine went down" in jobs.error_line("", None)
    assert not queue.running()


def test_last_lines_of_logs():
    text = 'a\nstep 1\rstep 2\r\x1b[Kstep 3\n\n{"a": 1}\n'
    assert jobs.last_line(text) == "step 3"
    assert jobs.final_json(text) == {"a": 1}
    assert jobs.error_line("x\nerror: no such file: look\nmore", 2) == "no such file: look"
    assert "the disk is full" in jobs.error_line("step 3\n", 1, free=4096)
    assert jobs.error_line("error: no room\n", 1, free=4096) == "no room"
    assert jobs.error_line("Traceback\nValueError: x\n", 1) == "it ended with status 1: ValueError: x"
