"""The log of a run's starts and ends, and the report and plot that it keeps up to date."""

import contextlib
import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slm.model.config import ModelConfig
from slm.train.environment import Environment
from slm.train.report.run_record import RunRecord
from slm.train.run.event_log import EventLog
from tests.helpers.run_files import ParsedPage, parsed, training, validation, write_run
from tests.helpers.small_run import SAMPLES

SHAPE = ModelConfig(
    arch="llama",
    vocab_size=256,
    n_layers=1,
    d_model=256,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    ffn_dim=256,
    seq_len=32,
)
ENVIRONMENT = Environment(threads=1, precision="f32", compile=False, notes=())


def test_a_report_that_cannot_be_written_is_one_line_and_nothing_else(tmp_path):
    run = write_run(tmp_path / "run", [training(1), training(2), validation(2)])
    (run.root / "report.html").mkdir()
    (run.root / "report.html" / "in the way").touch()
    lines: list[str] = []
    log = EventLog(run.root, log=lines.append)
    log.start(2, None, SHAPE, ENVIRONMENT)
    log.refresh()
    log.refresh()
    assert len(lines) == 1
    assert "report.html could not be written" in lines[0]
    assert "training goes on" in lines[0]
    assert (run.root / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in run.root.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("error", "signalled", "status", "facts"),
    [
        (None, None, "finished", {}),
        (None, signal.SIGTERM, "stopped", {"signal": 15}),
        (KeyboardInterrupt(), None, "stopped", {"signal": 2}),
        (ValueError("the loss\nis nan"), None, "failed", {"reason": "the loss is nan"}),
    ],
)
def test_every_end_is_recorded(error, signalled, status, facts, tmp_path):
    run = write_run(tmp_path / "run", [training(1), training(2)])
    log = EventLog(run.root)
    log.start(0, Path("checkpoints/step-00000001"), SHAPE, ENVIRONMENT)
    with contextlib.ExitStack() as stack:
        if error is not None:
            stack.enter_context(pytest.raises(type(error)))
        stack.enter_context(log.until_the_end(lambda: 2, lambda: signalled))
        if error is not None:
            raise error
    run.update()
    start, end = run.event_log
    assert (start.facts["from"], start.facts["again"]) == ("step-00000001", 2)
    kind = {"error": "ValueError"} if status == "failed" else {}
    assert {key: value for key, value in end.facts.items() if value is not None} == {"status": status, **kind, **facts}
    assert run.status() == status
    seen = ParsedPage((run.root / "report.html").read_text())
    assert all(str(fact) in seen.text for fact in facts.values() if isinstance(fact, str))
    silent = tmp_path / "another"
    silent.mkdir()
    idle = EventLog(silent, active=False)
    idle.start(0, None, SHAPE, ENVIRONMENT)
    idle.refresh()
    assert list(silent.iterdir()) == []


def test_the_plot_is_drawn_once_for_what_is_there(tmp_path):
    run = write_run(tmp_path / "run", [training(1), training(2), validation(2)])
    log = EventLog(run.root)
    log.refresh()
    first = (run.root / "loss.png").stat()
    log.end(2, "finished")
    assert (run.root / "loss.png").stat().st_ino == first.st_ino
    with (run.root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(training(3)) + "\n")
    log.refresh()
    assert (run.root / "loss.png").stat().st_ino != first.st_ino


def test_a_run_reports_how_it_was_stopped_and_resumed(command, launch, train, tmp_path):
    """A real run: interrupted, killed, finished."""
    root = tmp_path / "runs" / "told"
    words = ("train.eval_every=10", "train.checkpoint_every=10", "train.calibrate_head=false")
    arguments = command("name=told", "train.max_steps=100000", SAMPLES, *words)

    def reach(step: int) -> subprocess.Popen:
        process, deadline = launch(arguments), time.monotonic() + 120
        run = RunRecord(root)
        while run.step() < step:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
            run.update()
        return process

    process = reach(15)
    assert RunRecord(root).status() == "running"
    assert (root / "report.html").exists(), "there is a report after the first validation"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    stopped = RunRecord(root)
    stopped.update()
    assert stopped.status() == "stopped"
    assert "stopped by SIGINT" in ParsedPage((root / "report.html").read_text()).text
    process = reach(stopped.step() + 25)
    process.kill()
    process.communicate(timeout=60)
    assert RunRecord(root).status() != "running"
    gone = RunRecord(root)
    gone.update()
    assert gone.status() == "gone"
    assert "ended unexpectedly" in parsed(gone, gone.status()).text
    last = max(int(path.name[5:]) for path in (root / "checkpoints").glob("step-????????"))
    code, _, err = train([*arguments, f"train.max_steps={last + 8}"])
    assert code == 0, err
    assert "warning" not in err
    run = RunRecord(root)
    run.update()
    assert run.status() == "finished"
    assert [event.kind for event in run.event_log] == ["start", "end", "start", "start", "end"]
    seen = ParsedPage((root / "report.html").read_text())
    assert "100.0 %" in seen.text
    assert f"resumed from step-{stopped.step():08d}" in seen.text
    assert f"resumed from step-{last:08d}" in seen.text
    assert "before that it ended unexpectedly" in seen.text
    assert re.search(r"[\d,]+ parameters · qwen3 · vocabulary 320", seen.text)
    assert "Once upon a time" in seen.text
    assert seen.data["running"] is False
    assert [event["step"] for event in seen.data["runs"][0]["events"]] == [stopped.step(), last]
    assert (root / "loss.png").exists()
