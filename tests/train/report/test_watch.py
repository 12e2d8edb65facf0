"""A run seen from another terminal: a real pseudo-terminal, real locks, a real run."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from slm.configuration import build
from slm.train.report.watch import FollowedRun, WatchConfig, main
from slm.train.run_lock import take_lock
from tests.helpers import REPOSITORY
from tests.helpers.small_run import SAMPLES

PATIENT = 120


def watch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slm.train.report.watch", *arguments]


class Terminal:
    """A command in a new pseudo-terminal, 100 columns wide."""

    def __init__(self, command: list[str], rows: int = 40) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.raw = b""

    @property
    def text(self) -> str:
        """What was written so far, without the sequences that move and colour."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode(errors="replace"))

    def read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            self.raw += os.read(self._master, 65536)

    def wait(self, expected: str) -> None:
        """Until ``expected``, a regular expression, was written."""
        deadline = time.monotonic() + PATIENT
        while not re.search(expected, self.text):
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None or select.select([self._master], [], [], 0)[0], self.text
            self.read(0.2)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def ended(self) -> int:
        """The exit code, what is still to be read having been read."""
        deadline = time.monotonic() + PATIENT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self.read(0.1)
        while select.select([self._master], [], [], 0.2)[0]:
            self.read(0)
        return self.process.returncode

    def as_before(self) -> bool:
        """Whether the terminal's modes are those from before the command."""
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal():
    opened = []

    def start(*arguments: str, **options) -> Terminal:
        opened.append(Terminal(watch(*arguments), **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


class WrittenRun:
    """A run's files as training writes them, and the lock that it holds."""

    def __init__(self, root: Path, max_steps: int = 100) -> None:
        self.root = root
        root.mkdir(parents=True)
        (root / "config.yaml").write_text(f"train: {{max_steps: {max_steps}, eval_every: 2}}\n")
        self._lock = (root / ".lock").open("a+")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.step = 0
        self.log_event("start")

    def add(self, steps: int, sample: str = "Once upon a time") -> None:
        with (self.root / "metrics.jsonl").open("a") as file:
            for _ in range(steps):
                self.step += 1
                one = {"step": self.step, "tokens": 10 * self.step, "loss": 2.5, "lr": 1e-3, "grad_norm": 0.5}
                one |= {"tokens_per_s": 1234.0, "data_wait": 0.0, "rss_gb": 1.5, "elapsed_s": float(self.step)}
                file.write(json.dumps(one) + "\n")
            val = {"step": self.step, "tokens": 10 * self.step, "val_loss": 2.6, "val_bits_per_byte": 1.3}
            file.write(json.dumps(val) + "\n")
        with (self.root / "samples.md").open("a") as file:
            file.write(f"## step {self.step}\n\n{sample}\n\n")

    def log_event(self, event: str, **facts) -> None:
        with (self.root / "journal.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "step": self.step, "time": time.time(), **facts}) + "\n")

    def vanish(self) -> None:
        """As after kill -9."""
        self._lock.close()

    def end(self, status: str) -> None:
        self.log_event("end", status=status)
        self._lock.close()


def test_a_real_run_is_followed_in_a_terminal_and_through_a_pipe(command, launch, terminal, tmp_path):
    root = tmp_path / "runs" / "seen"
    training = launch(
        command("name=seen", "train.max_steps=100000", "train.eval_every=20", "train.checkpoint_every=20", SAMPLES)
    )
    deadline = time.monotonic() + PATIENT
    while not (root / "metrics.jsonl").exists():
        assert training.poll() is None, training.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Nothing was saved yet: "latest" is the run that is written to all the same.
    live = terminal(f"run={root.parent}/latest", "watch.every_s=0.1")
    leaver = terminal(f"run={root}", "watch.every_s=0.1")
    piped = subprocess.Popen(
        watch(f"run={root}", "watch.every_s=0.1"),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    live.wait(r"seen +running")
    live.wait(r"bits per byte at step 40")
    for part in (
        "nats per token",
        "tokens/s",
        "GiB resident",
        "ETA",
        "sample of step",
        "Once upon a time",
        "q or Ctrl-C",
    ):
        assert part in live.text, part
    leaver.wait(r"step [\d,]+/100,000")
    leaver.press(b"q")
    assert leaver.ended() == 0
    assert leaver.as_before()
    assert training.poll() is None, "the run goes on"
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=PATIENT)
    assert live.ended() == 0
    assert live.as_before()
    assert re.search(r"seen +stopped", live.text)
    assert "\x1b[?25h" in live.raw.decode(), "the cursor is shown again"
    out, err = piped.communicate(timeout=PATIENT)
    assert piped.returncode == 0, err
    lines = out.splitlines()
    assert "running" in lines[0]
    assert "stopped" in lines[-1]
    steps = [int(step.replace(",", "")) for step in re.findall(r"^step ([\d,]+) .* nats per token, ", out, re.M)]
    assert steps == list(range(20, 20 * len(steps) + 1, 20))
    assert "\x1b" not in out


@pytest.mark.parametrize("leave", [b"\x03", b"\x04", signal.SIGINT, signal.SIGTERM])
def test_leaving_in_any_way_restores_the_terminal(leave, terminal, tmp_path):
    run = WrittenRun(tmp_path / "run")
    run.add(4)
    seen = terminal(f"run={run.root}", "watch.every_s=0.1")
    seen.wait("sample of step 4")
    if isinstance(leave, bytes):
        seen.press(leave)
    else:
        seen.process.send_signal(leave)
    assert seen.ended() == (143 if leave == signal.SIGTERM else 0)
    assert seen.as_before()
    assert "Traceback" not in seen.text
    run.vanish()


def test_a_run_that_vanishes_may_come_back_under_its_name(terminal, tmp_path):
    root = tmp_path / "run"
    run = WrittenRun(root)
    run.add(4)
    seen = terminal(f"run={root}", "watch.every_s=0.05", f"watch.patience_s={PATIENT}")
    piped = subprocess.Popen(
        watch(f"run={root}", "watch.every_s=0.05", f"watch.patience_s={PATIENT}"),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "step 4/100" in piped.stdout.readline()
    seen.wait("sample of step 4")
    run.vanish()
    seen.wait("ended unexpectedly")
    # Set aside, as resume=never does it; then a new run of the same name.
    os.rename(root, tmp_path / "run.1")
    time.sleep(0.3)
    run = WrittenRun(root, max_steps=50)
    run.add(2, "Another beginning")
    seen.wait("step 2/50")
    seen.wait("Another beginning")
    run.end("finished")
    assert seen.ended() == 0
    assert re.search(r"run +finished", seen.text)
    rest = piped.communicate(timeout=PATIENT)[0]
    assert "step 2 " in rest
    assert "finished" in rest.splitlines()[-1]


def test_a_directory_that_was_just_made_is_not_the_end_of_its_run(tmp_path):
    """A run makes its directory a moment before it takes the lock."""
    root = tmp_path / "run"
    WrittenRun(root).vanish()
    followed = FollowedRun(root, patience_s=PATIENT)
    followed.update()
    assert not followed.is_over()
    os.rename(root, tmp_path / "run.1")
    root.mkdir()
    followed.update()
    assert not followed.is_over()


def test_patience_has_an_end(tmp_path):
    run = WrittenRun(tmp_path / "run")
    run.add(4)
    process = subprocess.Popen(
        watch(f"run={run.root}", "watch.every_s=0.05", "watch.patience_s=0.2"),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "running" in process.stdout.readline()
    run.vanish()
    assert "ended unexpectedly" in process.communicate(timeout=PATIENT)[0].splitlines()[-1]
    assert process.returncode == 0


def test_a_finished_run_is_printed_once_and_can_do_nothing_to_the_terminal(terminal, tmp_path):
    run = WrittenRun(tmp_path / "run", max_steps=4)
    run.add(4, "wild \x1b]0;title\x07\x1b[2J\x9b31m [bold]text[/bold]\r over")
    running = subprocess.run(
        watch(f"run={run.root}", "watch.once=true"), cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENT
    )
    assert running.returncode == 0
    assert "running" in running.stdout
    run.end("finished")
    seen = terminal(f"run={run.root}")
    assert seen.ended() == 0
    assert seen.as_before()
    for part in ("finished", "step 4/4", "100.0 %", "2.6000 nats per token", "1,234 tokens/s", "[bold]text[/bold]"):
        assert part in seen.text, part
    for bad in (b"\x1b]0", b"\x07", b"\x1b[2J", b"\x9b31m"):
        assert bad not in seen.raw
    shutil.rmtree(run.root)
    gone = subprocess.run(watch(f"run={run.root}"), cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENT)
    assert gone.returncode == 2
    assert "does not exist" in gone.stderr
    assert len(gone.stderr.strip().splitlines()) == 1


def test_a_narrow_screen_cuts_no_label(tmp_path):
    run = WrittenRun(tmp_path / "run", max_steps=4)
    run.add(4, "text")
    shown = subprocess.run(
        watch(f"run={run.root}", "watch.once=true"),
        cwd=REPOSITORY,
        env=os.environ | {"COLUMNS": "48"},
        capture_output=True,
        text=True,
        timeout=PATIENT,
    ).stdout
    assert "bits per byte" in shown
    assert "\u2026" not in shown  # no ellipsis
    assert max(map(len, shown.splitlines())) <= 48
    run.vanish()


def test_a_small_terminal_is_enough(terminal, tmp_path):
    run = WrittenRun(tmp_path / "run")
    run.add(4, "word " * 2000)
    seen = terminal(f"run={run.root}", "watch.every_s=0.05", rows=12)
    seen.wait("step 4/100")
    seen.press(b"q")
    assert seen.ended() == 0
    # A picture is drawn over the one before by going up row by row: one that is too high could not be reached.
    up = [len(rows) // len("\x1b[1A\x1b[2K") for rows in re.findall(r"(?:\x1b\[1A\x1b\[2K)+", seen.raw.decode())]
    assert up
    assert max(up) < 12
    run.vanish()


def test_a_run_that_is_starting_is_waited_for(tmp_path):
    """It holds its lock before it has written anything else."""
    root = tmp_path / "early"
    lock = take_lock(root)
    command = watch(f"run={root}", "watch.every_s=0.1", "watch.patience_s=0")
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "waiting for the run" in process.stdout.readline()
        (root / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": 8, "loss": 2.5, "lr": 0.1}) + "\n")
        (root / "config.yaml").write_text("name: early\n")
        assert "early" in process.stdout.readline()
        lock.release()
        process.communicate(timeout=PATIENT)
    missing = subprocess.run(watch(f"run={tmp_path / 'none'}"), cwd=REPOSITORY, capture_output=True, text=True)
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1


def test_the_options_have_limits():
    assert build(WatchConfig, {"run": "x", "watch": {"once": True}}).watch.once
    for options in ({"every_s": 0}, {"patience_s": -1}):
        with pytest.raises(ValueError, match="must be from"):
            build(WatchConfig, {"watch": options})


def test_programs_get_one_line_of_json(tmp_path, capsys):
    root = tmp_path / "mine"
    root.mkdir()
    (root / "config.yaml").write_text("train: {max_steps: 4}\nfacts: {predicted: {bits_per_byte: 1.5}}\n")
    records = [{"step": n, "loss": 5.0 - n, "lr": 0.1, "tokens": n, "elapsed_s": n} for n in (1, 2)]
    records.append({"step": 2, "tokens": 2, "val_loss": 3.0, "val_bits_per_byte": 2.0})
    (root / "checkpoints" / "step-00000002").mkdir(parents=True)
    (root / "checkpoints" / "step-00000002" / "config.json").write_text("{}")
    (root / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    assert main([f"run={root}", "watch.json=true"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    state = json.loads(line)
    assert (state["status"], state["step"], state["progress"], state["predicted"]) == (
        "stopped",
        2,
        0.5,
        {"bits_per_byte": 1.5},
    )
    assert state["curve"]["loss"] == [4.0, 3.0]
    assert state["validations"][0]["bits_per_byte"] == 2.0
    assert [each["step"] for each in state["saves"]] == [2]


def test_a_run_that_is_taught_is_followed_from_its_teacher_on(tmp_path):
    """``distill.born_again``: before the run itself there is its teacher, for a share of the time."""
    teacher = WrittenRun(tmp_path / "mine-teacher", max_steps=4)
    teacher.add(4)
    command = watch(f"run={tmp_path / 'mine'}", "watch.json=true", "watch.every_s=0.05", f"watch.patience_s={PATIENT}")
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        state = json.loads(process.stdout.readline())
        assert (state["name"], state["status"], state["progress"]) == ("mine-teacher", "running", 1.0)
        teacher.end("finished")
        assert json.loads(process.stdout.readline())["status"] == "finished"
        run = WrittenRun(tmp_path / "mine", max_steps=8)
        run.add(2)
        while (state := json.loads(process.stdout.readline()))["name"] != "mine" or not state["step"]:
            pass
        assert (state["status"], state["progress"]) == ("running", 0.25)
        run.end("finished")
        rest = process.communicate(timeout=PATIENT)[0].splitlines()
        assert json.loads(rest[-1])["status"] == "finished"
    assert process.returncode == 0


def test_a_teacher_that_was_stopped_is_waited_for_no_longer(tmp_path, capsys):
    teacher = WrittenRun(tmp_path / "mine-teacher")
    teacher.add(2)
    teacher.end("stopped")
    assert main([f"run={tmp_path / 'mine'}", "watch.json=true", f"watch.patience_s={PATIENT}"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["name"], json.loads(line)["status"]) == ("mine-teacher", "stopped")
