"""What the page asks for, over a real workspace and real commands."""

import json

import pytest


def told(answer) -> str:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_the_page_and_its_files(client):
    page = client.get("/")
    assert "/web/app.js" in page.text
    assert "trusted-types 'none'" in page.headers["content-security-policy"]
    module = client.get("/web/app.js")
    assert client.get("/web/app.js", headers={"If-None-Match": module.headers["etag"]}).status_code == 304
    assert client.get("/web/vendor/preact.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/web/colors.css").status_code == 200
    for path in ("/web/../app.py", "/web/none.js", "/web/vendor/LICENSE.txt"):
        assert client.get(path).status_code == 404


def test_home_and_samples(client):
    home = client.get("/api/home").json()
    assert [(card["name"], card["bits_per_byte"]) for card in home["models"]] == [("notes", 1.25)]
    found = client.get("/api/samples").json()
    assert found["samples"][0]["run"] == "notes"
    bits = [each["bits_per_byte"] for each in found["books"]]
    assert bits == sorted(bits, reverse=True)
    assert all(len(each["text"]) > 100 for each in found["books"])


def test_a_report_runs_as_a_page_of_nobody(client):
    report = client.get("/api/report", params={"run": "runs/notes"})
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert "is in no folder" in told(client.get("/api/report", params={"run": "/etc"}))
    assert "no GGUF file" in told(client.get("/api/download", params={"path": "runs/notes/config.yaml"}))


def test_a_run_that_has_ended_is_one_event(client):
    with client.stream("GET", "/api/run/events", params={"run": "runs/notes"}) as stream:
        data = [line for line in stream.iter_lines() if line.startswith('data: {"')]
    (state,) = [json.loads(line[6:]) for line in data]
    assert (state["status"], state["step"], state["validations"][0]["bits_per_byte"]) == ("finished", 8, 1.25)
    assert state["samples"] == [{"step": 8, "text": "Once <b>upon</b> a time"}]
    assert [event["text"] for event in state["events"]] == ["started", "finished"]
    with client.stream("GET", "/api/run/events", params={"run": "runs/none"}) as stream:
        assert "runs/none does not exist" in stream.read().decode()


def test_an_upload_is_looked_at(client):
    id = client.post("/api/uploads", json={}).json()["id"]
    rows = "question,answer\n" + "".join(f"What is {n}?,It is {n}\n" for n in range(40))
    put = client.put(f"/api/uploads/{id}", params={"name": "my <qa>.csv"}, content=rows.encode())
    assert put.json() == {"bytes": len(rows)}
    found = client.post("/api/look", json={"sources": [{"upload": id}], "chat": True}).json()["result"]
    (source,) = found["sources"].values()
    assert source["conversations"] + found["text"][0]["left_out"].get("held out for validation", 0) == 40
    learned = [piece["text"] for piece in source["examples"][0] if piece["scored"]]
    assert learned[0].startswith("It is ")
    big = client.put(f"/api/uploads/{id}", params={"name": "b.txt"}, content=b"x" * 20_000)
    assert "an upload may have 10.0 kB" in told(big)


def test_a_text_is_looked_at(client, workspace):
    (workspace / "my 'texts'").mkdir()
    (workspace / "my 'texts'" / "a.txt").write_text("The cat sat on the mat.\n" * 300)
    (workspace / "my 'texts'" / "b.png").write_bytes(b"\x89PNG")
    found = client.post("/api/look", json={"sources": [{"path": "my 'texts'"}]}).json()["result"]
    (source,) = found["sources"].values()
    assert source["examples"][0].startswith("The cat sat")
    assert found["text"][0]["files"]["left_out"] == {"of types that are not read": 1}


@pytest.mark.parametrize(
    ("path", "values", "why"),
    [
        ("look", {}, "no text is chosen"),
        ("look", {"sources": [{"path": "/etc/passwd"}]}, "in no folder"),
        ("look", {"sources": [{"upload": "../.."}]}, "drop the files again"),
        ("train", {"name": "a/b", "time": "1m"}, "cannot be a name"),
        ("train", {"name": "notes", "time": "1m"}, "runs/notes exists already"),
        ("train", {"name": "new", "time": "soon"}, "time=soon is not a length of time"),
        ("train", {"name": "new"}, "choose the time"),
        ("tune", {"name": "new", "base": "/etc/x"}, "in no folder"),
        ("export", {"model": "runs/notes", "goal": "size"}, "give the number"),
        ("export", {"model": "runs/notes", "goal": "odd", "number": 1}, "choose what the file"),
        ("chat/load", {"path": "runs/notes"}, "export the run first"),
        ("jobs/nojob/stop", {}, "no such job"),
        ("models/delete", {"path": "/etc"}, "in no folder"),
    ],
)
def test_a_mistake_is_one_line(client, path, values, why):
    assert why in told(client.post(f"/api/{path}", json=values))


def test_a_body_that_is_none(client):
    assert "no JSON" in told(client.post("/api/look", content=b"{"))
    assert "no JSON object" in told(client.post("/api/look", content=b"[1]"))


def test_a_run_of_a_command_is_continued_by_its_name(client, workspace, monkeypatch):
    from slm.studio.jobs.queue import Queue

    monkeypatch.setattr(Queue, "start_next", lambda self: None)  # its command is tests/train/test_continued.py's
    cards = {card["name"]: card for card in client.get("/api/home").json()["models"]}
    assert (cards["notes"]["not_continued"], cards["notes"]["ended"]) == (None, "finished")
    id = client.post("/api/continue", json={"run": "runs/notes", "time": "20m"}).json()["id"]
    (job,) = [job for job, _ in Queue(workspace / "runs" / ".studio" / "jobs").all() if job.id == id]
    assert (job.words, job.run) == (["train", "resume='runs/notes'", "budget=1200s"], "runs/notes")
    assert "in the queue already" in told(client.post("/api/continue", json={"run": "runs/notes"}))
    client.post(f"/api/jobs/{id}/stop", json={})
    bare = workspace / "runs" / "bare"
    (bare / "checkpoints").mkdir(parents=True)
    why = {card["name"]: card for card in client.get("/api/home").json()["models"]}["bare"]["not_continued"]
    assert "has no config.yaml" in why
    assert "it cannot be continued" in told(client.post("/api/continue", json={"run": "runs/bare"}))
    bare.joinpath("checkpoints").rmdir()
    bare.rmdir()
