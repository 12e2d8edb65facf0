"""What a person may meet: names that are no text, closed folders, two windows, folders that vanish, endless logs."""

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from slm.configuration import load_config
from slm.data.errors import UserError
from slm.studio.__main__ import _listen
from slm.studio.app import make_app
from slm.studio.config import StudioConfig
from slm.studio.jobs import job as jobs
from slm.studio.jobs.queue import Queue
from slm.studio.models import models
from slm.studio.places import Places
from slm.studio.routes.base import files_word
from slm.studio.routes.queue import view
from tests.studio.conftest import PORT, URL

NOBODY = 65534


def entered(root: Path) -> TestClient:
    app, token = make_app(StudioConfig(), root, PORT)
    browser = TestClient(app, base_url=URL)
    browser.get(f"/?token={token}")
    return browser


def test_names_that_are_no_text_have_a_card_that_says_so(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.gguf")).write_bytes(b"GGUF")
    (folder / "<img src=x>\n'\".gguf").write_bytes(b"GGUF")
    run = tmp_path / "runs" / os.fsdecode(b"r\xff")
    (run / "checkpoints").mkdir(parents=True)
    cards = entered(tmp_path).get("/api/home").json()["models"]
    faults = {card["name"]: card["fault"] for card in cards}
    assert "no UTF-8" in faults["caf?.gguf"]
    assert "no UTF-8" in faults["r?"]
    assert faults["<img src=x>\n'\".gguf"]  # torn, and named as it is
    told = entered(tmp_path).post("/api/chat/load", json={"path": "models/caf?.gguf"})
    assert (told.status_code, "does not exist" in told.json()["error"]) == (400, True)


@pytest.mark.parametrize("name", ["b\\'q", "two\nlines", "[a,b]=${c}", "it's \\\\x\\"])
def test_a_command_gets_the_name_as_it_is(tmp_path, name):
    (tmp_path / name).mkdir()
    word = files_word(Places(tmp_path), [tmp_path / name, tmp_path / name])
    values = load_config("train", ["data=local", word])
    assert values["data"]["files"] == [name, name]


@pytest.fixture
def closed():
    """A folder of a workspace that only others may open; root becomes nobody."""
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    root.chmod(0o777)
    folder = root / "runs" / "secret"
    (folder / "checkpoints").mkdir(parents=True)
    folder.chmod(0)
    yield root
    folder.chmod(0o700)
    shutil.rmtree(root)


@contextlib.contextmanager
def nobody():
    """As a user who may not read everything; pytest itself writes its files as it did."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def test_a_folder_without_permission_is_one_line_on_its_card(closed):
    with nobody():
        (card,) = models(Places(closed))
        with pytest.raises(PermissionError):
            Places(closed).path("runs/secret/checkpoints/a")
    assert (card["name"], "cannot be read" in card["fault"], card["ggufs"]) == ("secret", True, [])


def test_a_port_that_is_taken_is_one_line():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="is a studio open there already"):
            _listen(StudioConfig(port=other.getsockname()[1]))


def test_two_windows_change_the_same_queue(tmp_path):
    queue = Queue(tmp_path / "runs" / ".studio" / "jobs")
    queue.folder.mkdir(parents=True)
    held = queue._locked()
    ids = []
    with held:
        for title in "abc":
            ids.append(queue._added("plan", title, ["--version"], None, {"name": title}).id)
    jobs_by = dict(zip("abc", ids, strict=True))
    (queue.folder / jobs_by["a"] / jobs.ENDED).write_text(json.dumps({"at": 1.0, "status": 1}))
    with pytest.raises(UserError, match="look at the queue again"):
        queue.move(jobs_by["c"], jobs_by["a"])
    assert [job.title for job, _ in queue.all()] == ["a", "b", "c"]
    queue.start_next = lambda: None  # type: ignore[method-assign]
    again = queue.again(jobs_by["a"])
    assert again.form == {"name": "a"}
    for late in (queue.again, queue.forget, queue.stop):
        with pytest.raises(UserError, match="no such job"):
            late(jobs_by["a"])
    assert [job.title for job, _ in queue.all()] == ["b", "c", "a"]


def test_the_queue_goes_on_where_the_folder_of_a_job_vanished(tmp_path):
    queue = Queue(tmp_path / "runs" / ".studio" / "jobs")
    first = queue.add("plan", "first", ["--version"])
    second = queue.add("plan", "second", ["--version"])
    deadline = time.monotonic() + 120
    while (queue.folder / first.id).exists():
        shutil.rmtree(queue.folder / first.id, ignore_errors=True)  # its process may just write there
    while jobs.state(queue.folder / second.id) != "done":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_very_long_log_is_read_at_its_end(tmp_path):
    places = Places(tmp_path)
    queue = Queue(places.jobs)
    queue.start_next = lambda: None  # type: ignore[method-assign]
    job = queue.add("train", "long", ["train"], "runs/long", {"name": "long"})
    folder = queue.folder / job.id
    with (folder / jobs.LOG).open("wb") as log:
        for _ in range(64):
            log.write(b"step 1: loss 2\r" * 70_000)  # one line, 67 MB
        log.write("at the end <b>é</b>".encode())
    (folder / jobs.BEGAN).write_text(json.dumps({"at": 1.0, "runner": jobs.identity(os.getpid())}))
    began = time.process_time()
    shown = view(places, job, folder)
    assert time.process_time() - began < 0.1
    assert (shown["state"], shown["line"]) == ("running", "at the end <b>é</b>")
    found = entered(tmp_path).get(f"/api/jobs/{job.id}/log").json()
    assert found["text"].endswith("at the end <b>é</b>")
    assert len(found["text"]) < 300_000
