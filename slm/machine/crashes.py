"""What a child process died of, told from its exit status."""

import signal

CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")
"""Signals that native code dies of by its own doing. Others come from outside and say nothing about the code."""


def ended_by(status: int) -> str | None:
    """The name of the signal that ended a process of exit status ``status`` (as subprocess gives it), or None."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return None
