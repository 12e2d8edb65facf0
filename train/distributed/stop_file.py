"""What the launcher of several processes and the processes themselves tell each other, beside torchrun."""

from pathlib import Path

EXIT_FILE = "SLM_EXIT_FILE"
"""Environment variable: the file in which a process leaves its exit code for the launcher."""
MAIN_HOST = "SLM_MAIN_HOST"
"""Environment variable: ``1`` in the processes of the machine that keeps the run's directory."""


def stop_file(exit_file: Path) -> Path:
    """Where the launcher leaves the exit code of a run that was asked to stop before all its processes listened."""
    return exit_file.with_name("stop")
