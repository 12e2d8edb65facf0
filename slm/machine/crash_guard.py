"""Work that native code may end without a word is done in a child process; its death becomes one line.

A fault in native code (a wrong instruction, a read outside of memory) ends a process at once: no exception, no cleaning
up, and a shell prints "Segmentation fault" and nothing else. ``guarded`` forks before the work begins. The process that
the person started stays behind, passes signals on, and says what the other one was doing when it died.
"""

import mmap
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from slm.machine.crashes import CRASHES, end_with_parent, ended_by

_NOTE_BYTES = 4096
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_note: mmap.mmap | None = None
_command = 0


def command_pid() -> int:
    """The process that the person started: this one, or the one that watches it."""
    return _command or os.getpid()


def doing(what: str) -> None:
    """Note what is being done, such as "comparing a.gguf with its checkpoint", for the line that tells of a crash."""
    _write(0, what.encode())


def temporary(folder: Path) -> None:
    """Note a folder of unfinished files, which a crash must not leave behind."""
    _write(_NOTE_BYTES, os.fsencode(folder.absolute()))


def guarded(work: Callable[[], int | None], *, advice: Callable[[], str] = str) -> int | None:
    """``work()`` in a child process; returns its exit status. To be called where a command begins: the process that it
    returns in is the child, and the one that watches ends with the child's status.

    Where native code ends the child, one line on stderr names the signal, what was being done, and ``advice``. The
    folder noted as temporary is removed, and the status is 128 + the signal's number. Where the system cannot watch a
    child in this way (not Linux), the work is done in this process.
    """
    global _note, _command
    if not sys.platform.startswith("linux"):
        return work()
    _note = mmap.mmap(-1, 2 * _NOTE_BYTES)
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    _command = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(signal.SIGKILL)
        if os.getppid() != _command:  # it was ended in between
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return work()
    try:
        status = _wait(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if status >= 0:
        # The child has printed everything; this process ends without another word.
        os._exit(status)
    name = ended_by(status)
    if folder := _read(_NOTE_BYTES):
        shutil.rmtree(os.fsdecode(folder), ignore_errors=True)
    if name in CRASHES:
        what = _read(0).decode(errors="replace")
        where = f" while {what}" if what else ""
        print(f"error: native code died with {name}{where}; {advice()}".rstrip("; "), file=sys.stderr)
    elif name:
        print(f"error: ended by {name}", file=sys.stderr)
    return 128 - status


def _write(at: int, text: bytes) -> None:
    if _note is not None and len(text) < _NOTE_BYTES:
        _note[at : at + len(text) + 1] = text + b"\0"


def _read(at: int) -> bytes:
    return b"" if _note is None else _note[at : at + _NOTE_BYTES].split(b"\0", 1)[0]


def _wait(child: int) -> int:
    """The child's status as subprocess gives it. Signals that were sent to this process alone are passed on; those of a
    terminal (Ctrl-C) reach the child by themselves."""
    told = False
    while True:
        received = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if received.si_signo != signal.SIGCHLD:
            if received.si_signo == signal.SIGINT and not told:
                told = True  # at once: the child may be in native code, and hears of it afterwards
                print("\nCtrl-C: stopping after what is being computed", file=sys.stderr, flush=True)
            if received.si_pid:  # 0: the kernel's, to the whole group
                os.kill(child, received.si_signo)
            continue
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
