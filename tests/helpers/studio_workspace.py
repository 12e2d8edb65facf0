"""A workspace with everything that studio's screens show: runs, exported files, jobs in each state, a full trash.

Only files, as training, export and the queue leave them: nothing is trained.
"""

import json
import subprocess
import time
from pathlib import Path

from slm.studio.jobs import job as jobs
from slm.studio.jobs.job import Job
from tests.helpers import tiny_gguf

STEPS = 60
EVERY = 10
LONG = "a-name-of-forty-letters-without-a-space.csv"
TYPES = ("f32", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")


def write(root: Path, busy: subprocess.Popen[bytes]) -> Path:
    """The workspace in ``root``. ``busy``: a process that stands for the command of the job that runs."""
    notes, tuned = root / "runs" / "notes", root / "runs" / "notes-chat"
    run(notes, "data: {kind: files, files: [texts/a.txt, texts/b.md]}\ntrain: {max_steps: 60}\n")
    run(tuned, f"init_from: {notes}/checkpoints/step-00000060\ndata: {{files: [{LONG}]}}\ntrain: {{max_steps: 60}}\n")
    _asked(tuned)
    for folder, template in ((notes, None), (tuned, tiny_gguf.CHAT_TEMPLATE)):
        _exported(folder, template)
    _types(notes)
    broken = root / "models" / "torn.gguf"
    broken.parent.mkdir()
    broken.write_bytes((notes / "gguf" / "notes-Q8_0.gguf").read_bytes()[:100])
    deleted = root / "runs" / ".studio" / "trash" / "1"
    (deleted / "it").mkdir(parents=True)
    (deleted / "deleted.json").write_text(json.dumps({"from": "runs/old", "name": "old", "at": time.time() - 7200}))
    _jobs(root / "runs" / ".studio" / "jobs", busy)
    (root / "texts").mkdir()
    (root / "texts" / "a.txt").write_text("The cat sat on the mat and saw a dog.\n" * 40)
    (root / "texts" / "b.png").write_bytes(b"\x89PNG")
    rows = "".join(f"What colour is thing {n}?,It is {('red', 'blue')[n % 2]}.\n" for n in range(12))
    (root / LONG).write_text("question,answer\n" + rows)
    return root


def run(folder: Path, config: str) -> None:
    """A finished run."""
    for step in (STEPS // 2, STEPS):
        checkpoint = folder / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text("{}")
    (folder / "config.yaml").write_text(config)
    lines = []
    for n in range(1, STEPS + 1):
        facts = {"loss": 2 + 4 / n, "lr": 0.01, "tokens": 4096 * n, "elapsed_s": 2.0 * n, "tokens_per_s": 2048.0}
        lines.append({"step": n, **facts})
        if n % EVERY == 0:
            lines.append({"step": n, "tokens": 4096 * n, "val_loss": 2.1 + 4 / n, "val_bits_per_byte": 1.2 + 2 / n})
    lines.insert(25, {"step": 24, "time": 1.7e9 + 60, "event": "spike", "loss": 9.5, "times": 3.1})
    _lines(folder / "metrics.jsonl", lines)
    events = [
        {"event": "start", "step": 0, "time": 1.7e9, "n_params": 3_410_688},
        {"event": "start", "step": 30, "time": 1.7e9 + 90, "n_params": 3_410_688, "from": "step-00000030", "again": 4},
        {"event": "end", "step": STEPS, "time": 1.7e9 + 180, "status": "finished"},
    ]
    _lines(folder / "journal.jsonl", events)
    texts = (f"## step {n}\n\nOnce upon a time, the cat wrote {n} words.\n\n" for n in range(EVERY, STEPS + 1, EVERY))
    (folder / "samples.md").write_text("".join(texts))
    (folder / "report.html").write_text("<title>Report</title>")


def _asked(folder: Path) -> None:
    """Answers before and after, with the score."""
    what, before = "4 held-out questions", "before training: 1 of 4 right"
    asked = [
        {"event": "asked", "time": 1.7e9, "step": 0, "line": f"{what} {before}"},
        {
            "event": "asked",
            "time": 1.7e9 + 180,
            "step": STEPS,
            "line": f"{what} after training: 3 of 4 right; {before}",
        },
    ]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in asked)
    question = "> What colour is the lamp in the house by the river?\nexpected: It is red.\ngiven: It is {}."
    with (folder / "samples.md").open("a") as file:
        for step, colour in ((EVERY, "grey"), (STEPS, "red")):
            file.write(f"## step {step}\n\n{question.format(colour)}\n\n")


def _exported(folder: Path, template: str | None) -> None:
    (folder / "gguf").mkdir()
    path = tiny_gguf.write(folder / "gguf" / f"{folder.name}-Q8_0.gguf", chat_template=template)
    row = {"file": path.name, "type": "q8_0", "perplexity_change": 0.012, "perplexity_change_stderr": 0.001}
    (folder / "gguf" / "export.json").write_text(json.dumps({"files": [row | {"same_top": 0.97}]}))
    (folder / "gguf" / "Modelfile").write_text(f"FROM {path.name}\n")


def _types(folder: Path) -> None:
    (folder / "quantization").mkdir()
    row = {"size_mib": 1.0, "perplexity_change": 0.0, "perplexity_change_stderr": 0.1, "same_top": 0.99}
    rows = {
        name: row | {"size_mib": 2.0 / n, "perplexity_change": n * n / 500, "decode_tok_s": 100.0 * n}
        for n, name in enumerate(TYPES, 1)
    }
    (folder / "quantization" / "rows.json").write_text(json.dumps({"key": "", "rows": rows}))


def _jobs(folder: Path, busy: subprocess.Popen[bytes]) -> None:
    """One job that runs, two that wait, and three that ended: well, stopped, with an error."""
    now = time.time()
    form = {"sources": [{"path": LONG, "label": LONG}], "base": "nobody/none", "name": "failing", "lora": True}
    made = {
        "live": ("train", "running", None, {}),
        "first": ("train", "waiting", None, {}),
        "second": ("tune", "waiting", None, {}),
        "notes": ("train", "done", 0, {"form": {"name": "notes", "time": "10m"}}),
        "halted": ("train", "stopped", jobs.INTERRUPTED, {}),
        "failing": ("tune", "failed", 1, {"form": form}),
    }
    for order, (title, (kind, state, status, more)) in enumerate(made.items()):
        id, words = f"{order}", [kind, f"name={title}", "budget=10m", f"data.files=[{LONG}]"]
        facts = {"created": now - 900, "order": float(order), "run": f"runs/{title}", **more}
        jobs.write(folder / id, Job(id=id, kind=kind, title=title, words=words, **facts))
        if state != "waiting":
            began = {"at": now - 800, "command": jobs.identity(busy.pid)} if state == "running" else {"at": now - 800}
            (folder / id / jobs.BEGAN).write_text(json.dumps(began))
            error = f"error: there is no model nobody/none for data.files=[{LONG}]: give another\n"
            (folder / id / jobs.LOG).write_text("step 12: loss 3.21\n" + (error if state == "failed" else ""))
        if status is not None:
            (folder / id / jobs.ENDED).write_text(json.dumps({"at": now - 400, "status": status, "free": 1 << 40}))


def _lines(path: Path, found: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in found))
