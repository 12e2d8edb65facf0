"""A server of files that no longer match their run: the person is told, and the server serves."""

import os
import threading
import time

import httpx
import pytest

from slm import exported
from slm.serve.pool.file_check import THREAD_NAME, FileCheck
from tests.helpers.servers import running_server
from tests.helpers.tiny_gguf import exported_run


@pytest.mark.parametrize("by_path", [False, True])
def test_a_file_older_than_its_runs_newest_checkpoint_is_named(tmp_path, by_path):
    run = exported_run(tmp_path / "w1", exported_at=3, trained_to=60)
    (path,) = (run / "gguf").glob("*.gguf")
    with running_server(tmp_path / "log", path if by_path else run) as server:
        lines = [line for line in server.log.read_text().splitlines() if "step 3" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"note: {path.name} is from step 3, but ")
    assert lines[0].endswith(f"renew with: make export MODEL={run} QUANT=q4_k_m")


def overwrite(path):
    """Change a weight in the file, which stays a valid GGUF of the same length."""
    with open(path, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


def test_overwritten_weights_are_found_in_the_background(tmp_path):
    run = exported_run(tmp_path / "w1", exported_at=3, trained_to=3)
    (path,) = (run / "gguf").glob("*.gguf")
    overwrite(path)
    with running_server(tmp_path / "log", run) as server:
        server.wait(lambda: "warning" in httpx.get(server.url + "/health").json())
        answer = httpx.get(server.url + "/health")
        assert answer.status_code == 200
        assert answer.json()["status"] == "ok"
        assert "1 model file" in answer.json()["warning"]
        assert path.name not in answer.text  # the route is open to everybody
        body = {"prompt": "the", "max_tokens": 2}
        assert httpx.post(server.url + "/v1/completions", json=body).status_code == 200
    lines = [line for line in server.log.read_text().splitlines() if "damaged" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"warning: {path} is damaged: its SHA-256 is ")


def finished(check, path):
    check.start(path)
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(10)
    return check.damage


def test_a_file_is_checked_once_and_again_when_it_changed(tmp_path, monkeypatch, capsys):
    run = exported_run(tmp_path / "w1", exported_at=3, trained_to=3)
    (path,) = (run / "gguf").glob("*.gguf")
    read = []
    original = exported.sha256
    monkeypatch.setattr(exported, "sha256", lambda path: read.append(path) or original(path))
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    check = FileCheck()
    assert finished(check, link) is None
    assert finished(check, link) is None
    assert read == [path]
    overwrite(path)
    os.utime(path, ns=(time.time_ns(), time.time_ns()))
    assert "is damaged" in finished(check, link)
    assert capsys.readouterr().err.count("\n") == 1
    overwrite(path)  # as it was
    os.utime(path, ns=(time.time_ns() + 10**9, time.time_ns() + 10**9))
    assert finished(check, link) is None


def test_a_file_without_a_record_is_not_read(tmp_path, tiny_path, monkeypatch):
    monkeypatch.setattr(exported, "sha256", lambda path: pytest.fail("read"))
    assert finished(FileCheck(), tiny_path) is None
    assert finished(FileCheck(), tmp_path / "none.gguf") is None
