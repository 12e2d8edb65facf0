"""A crash in native code becomes one line, signals reach the work, and nothing outlives the command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the work is done in the process itself")

SCRIPT = """
import ctypes, os, signal, sys, time
from pathlib import Path
from slm.data.errors import UserError
from slm import cli
from slm.machine.crash_guard import doing, guarded, temporary

folder = Path(sys.argv[1])

def work() -> int:
    doing("comparing a.gguf with its checkpoint")
    (folder / "unfinished").mkdir()
    temporary(folder / "unfinished")
    (folder / "work").write_text(str(os.getpid()))
    {body}

def main(argv):
    return guarded(work, advice=lambda: "build it again")

cli.run(main)
"""


def start(folder: Path, body: str) -> subprocess.Popen:
    code = SCRIPT.format(body=body)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def work_pid(folder: Path) -> int:
    until = time.monotonic() + 60
    while not (folder / "work").exists() or not (folder / "work").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    return int((folder / "work").read_text())


@pytest.mark.parametrize(
    ("body", "name"),
    [("ctypes.string_at(0)", "SIGSEGV"), ("os.abort()", "SIGABRT"), ("os.kill(os.getpid(), signal.SIGILL)", "SIGILL")],
)
def test_a_crash_is_one_line_and_what_was_left_is_removed(tmp_path, body, name):
    child = start(tmp_path, body)
    out, err = child.communicate(timeout=120)
    assert err == f"error: native code died with {name} while comparing a.gguf with its checkpoint; build it again\n"
    assert out == ""
    assert child.returncode == 128 + getattr(signal, name)
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("print('done'); return 0", 0, ""),
        ("print('done'); return 3", 3, ""),
        (
            "print('done'); raise UserError('no such file')",
            2,
            "error: no such file\n",
        ),
        ("print('done'); raise KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_every_other_end_is_the_works_own(tmp_path, body, status, says):
    child = start(tmp_path, body)
    out, err = child.communicate(timeout=120)
    assert (out, err, child.returncode) == ("done\n", says, status)
    assert (tmp_path / "unfinished").exists()  # a command removes its own


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_command_reaches_the_work_once(tmp_path, sent, status):
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); time.sleep(600)"
    child = start(tmp_path, body)
    work_pid(tmp_path)
    time.sleep(0.5)
    child.send_signal(sent)
    _, err = child.communicate(timeout=60)
    assert child.returncode == status
    assert err.count("interrupted") == (sent == signal.SIGINT)


def test_ctrl_c_at_a_terminal_arrives_once(tmp_path):
    """A terminal sends the signal to all processes of its group."""
    master, slave = os.openpty()
    body = "signal.signal(signal.SIGINT, lambda *_: print('got', flush=True)); time.sleep(2); return 0"
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body), str(tmp_path)],
        stdin=slave,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    work_pid(tmp_path)
    time.sleep(0.5)
    os.write(master, b"\x03")
    out, _ = child.communicate(timeout=60)
    os.close(master)
    os.close(slave)
    assert out == "got\n"
    assert child.returncode == 0


def test_the_work_does_not_outlive_a_killed_command(tmp_path):
    child = start(tmp_path, "time.sleep(600)")
    worker = work_pid(tmp_path)
    child.kill()
    child.communicate(timeout=60)
    until = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]:
        assert time.monotonic() < until, "the work went on"
        time.sleep(0.05)
