"""Models that are loaded to chat with: a real server, one line where it does not start, an end with studio."""

import json
import os
import signal
import subprocess
import threading
import time

import psutil
from starlette.testclient import TestClient

from slm.studio import serving
from slm.studio.app import make_app
from slm.studio.config import StudioConfig
from slm.studio.jobs import job as jobs
from tests.helpers import tiny_gguf
from tests.studio.conftest import PORT, URL


def test_a_model_is_loaded_answers_and_is_unloaded(client, workspace):
    (workspace / "models").mkdir()
    tiny_gguf.write(workspace / "models" / "tiny.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE)
    (workspace / "models" / "torn.gguf").write_bytes(b"GGUF" + b"\0" * 50)
    told = client.post("/api/chat/load", json={"path": "models/torn.gguf"})
    assert told.status_code == 400
    assert "torn.gguf" in told.json()["error"]
    loaded = client.post("/api/chat/load", json={"path": "models/tiny.gguf"}).json()
    assert loaded["model"]["meta"]["chat_template"]
    again = client.post("/api/chat/load", json={"path": "models/tiny.gguf"}).json()
    assert again["id"] == loaded["id"]
    asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0}
    reply = client.post(f"/api/chat/{loaded['id']}/say", json=asked)
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[0])["choices"]
    wrong = client.post(f"/api/chat/{loaded['id']}/say", json=asked | {"temperature": -1})
    assert (wrong.status_code, "temperature" in wrong.json()["error"]["message"]) == (400, True)
    kept = json.loads((workspace / "runs" / ".studio" / "servers" / f"{os.getpid()}.json").read_text())["processes"]
    assert client.post(f"/api/chat/{loaded['id']}/unload").status_code == 200
    assert "not loaded any more" in client.post(f"/api/chat/{loaded['id']}/say", json=asked).json()["error"]
    psutil.wait_procs([psutil.Process(each["pid"]) for each in kept if psutil.pid_exists(each["pid"])], timeout=10)
    assert not any(psutil.pid_exists(each["pid"]) and psutil.Process(each["pid"]).status() != "zombie" for each in kept)


def test_a_server_that_says_nothing_is_given_up(client, workspace, monkeypatch):
    """One that is loading and one that replies: not by the clock, but where there is no sign of life."""
    model = {"path": str(tiny_gguf.write(workspace / "silent.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE))}
    kept = workspace / "runs" / ".studio" / "servers" / f"{os.getpid()}.json"
    stopped: list[psutil.Process] = []

    def stop() -> None:
        (found,) = json.loads(kept.read_text())["processes"]
        stopped.append(psutil.Process(found["pid"]))
        stopped[-1].suspend()

    def stop_when_it_begins() -> None:
        while not (kept.is_file() and json.loads(kept.read_text())["processes"]):
            time.sleep(0.01)
        stop()

    with monkeypatch.context() as patient:
        patient.setattr(serving, "SILENT_S", 2.0)
        stopping = threading.Thread(target=stop_when_it_begins)
        stopping.start()
        told = client.post("/api/chat/load", json=model)
        stopping.join()
    assert (told.status_code, "nothing has come from its server for 2 s" in told.json()["error"]) == (400, True)
    assert json.loads(kept.read_text())["processes"] == []
    loaded = client.post("/api/chat/load", json=model).json()
    monkeypatch.setattr(serving, "SILENT_S", 2.0)
    stop()
    told = client.post(f"/api/chat/{loaded['id']}/say", json={"prompt": "x", "max_tokens": 4})
    assert "nothing has come from its server for 2 s" in told.json()["error"]
    assert "not loaded any more" in client.post(f"/api/chat/{loaded['id']}/say", json={"prompt": "x"}).json()["error"]
    gone, left = psutil.wait_procs(stopped, timeout=20)
    assert (len(gone), left) == (2, [])


def test_what_a_killed_studio_left_is_ended_at_the_next_start(tmp_path):
    """And not what another studio of the same folder has loaded."""
    left, other, studio = (subprocess.Popen(["sleep", "60"]) for _ in range(3))
    kept = tmp_path / "runs" / ".studio" / "servers"
    kept.mkdir(parents=True)
    gone = {"pid": studio.pid, "started": 1.0}  # an earlier process of that number
    for name, owner, process in (("1", gone, left), ("2", jobs.identity(studio.pid), other)):
        found = {"studio": owner, "processes": [jobs.identity(process.pid)]}
        (kept / f"{name}.json").write_text(json.dumps(found))
    with TestClient(make_app(StudioConfig(), tmp_path, PORT)[0], base_url=URL):
        assert left.wait(10) == -signal.SIGTERM
        assert other.poll() is None
    for process in (other, studio):
        process.kill()
        process.wait()
