"""The virtual environment: made, repaired where it was moved or lost its pip, refused where it is somebody else's."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from slm.data.errors import UserError

_EXEC = re.compile(rb"'''exec' [\"']?([^\"'\n]+?)[\"']? \"\$0\"")


@dataclass(frozen=True)
class State:
    """What is in the environment's folder."""

    missing: bool = False
    """It has to be made."""
    old_home: str = ""
    """Where its scripts think that it is, if that is not where it is."""
    no_python: bool = False
    """Its Python does not start, and the Python of this process can take that one's place."""
    no_pip: bool = False
    stale: list[Path] = field(default_factory=list)
    """Scripts that would start a Python elsewhere."""


def inspect(venv: Path) -> State:
    """What has to be done about the folder. UserError where a person has to decide."""
    if venv.is_symlink():
        raise UserError(
            f"{venv} is a link to {os.readlink(venv)}: set-up would change that environment for whoever uses it. "
            f"Remove the link (rm {venv}) to have one made here, or start commands with {venv}/bin/python -m slm"
        )
    if not venv.exists() or (venv.is_dir() and not any(venv.iterdir())):
        return State(missing=True)
    if not (venv / "pyvenv.cfg").is_file():
        raise UserError(
            f"{venv} is no virtual environment (it has no pyvenv.cfg): move it away, or name another VENV=DIR"
        )
    version = _answer(venv, "import sys; print('%d.%d' % sys.version_info[:2])")
    if version is None:
        made_with = sorted(path.name.removeprefix("python") for path in (venv / "lib").glob("python3.*"))
        ours = "{}.{}".format(*sys.version_info[:2])
        if made_with != [ours]:
            raise UserError(
                f"{venv} was made with Python {' or '.join(made_with) or '(none)'}, which does not start any more: "
                f"remove it (rm -rf {venv}) to have it made with Python {ours}, or name the other one with PYTHON="
            )
        stale, old_home = _scripts(venv)
        return State(no_python=True, stale=stale, old_home=old_home)
    if not "3.11" <= version <= "3.13":
        raise UserError(f"{venv} has Python {version}, and slm needs 3.11 to 3.13: remove it (rm -rf {venv})")
    stale, old_home = _scripts(venv)
    return State(no_pip=_answer(venv, "import pip; print(1)") is None, stale=stale, old_home=old_home)


def holds(venv: Path, package: str) -> bool:
    """Whether a package is installed there."""
    return any(venv.glob(f"lib/python3.*/site-packages/{package}"))


def make_ready(venv: Path, state: State, *, uv: str | None) -> None:
    """Make the environment, or repair it, so that it has a Python and, where there is no uv, pip."""
    if state.missing:
        make = [uv, "venv", "--quiet", "--seed", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        _run([*make, str(venv)], f"{venv} could not be made")
        return
    if state.no_python:
        print(f"{venv}: its Python is gone, this one ({sys.executable}) takes its place.", flush=True)
        for path in (venv / "bin").glob("python*"):
            if path.is_symlink():
                path.unlink()
        _run([sys.executable, "-m", "venv", "--without-pip", str(venv)], f"{venv} could not be repaired")
    if state.stale:
        print(f"{venv} was moved from {state.old_home}: {len(state.stale)} of its scripts are corrected.", flush=True)
        correct_scripts(venv, state)
    if state.no_pip or (state.no_python and _answer(venv, "import pip; print(1)") is None):
        print(f"{venv} has no pip: it is installed again.", flush=True)
        seed = (
            [uv, "pip", "install", "--quiet", "--python", str(venv / "bin/python"), "pip"]
            if uv
            else [str(venv / "bin/python"), "-m", "ensurepip", "--upgrade"]
        )
        _run(seed, f"{venv} has no pip, and it could not be installed; rm -rf {venv} and make setup make it anew")


def _scripts(venv: Path) -> tuple[list[Path], str]:
    """The scripts that start a Python elsewhere, and the environment that they were made for."""
    here = os.path.realpath(venv / "bin")
    stale, homes = [], []
    for path in sorted((venv / "bin").iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        python = interpreter(path)
        # Another program's script (a shell's) has another interpreter.
        if python and re.fullmatch(r"python[\d.]*", os.path.basename(python)) and os.path.dirname(python) != here:
            if os.path.realpath(os.path.dirname(python)) == here:
                continue
            stale.append(path)
            homes.append(os.path.dirname(os.path.dirname(python)))
    return stale, max(set(homes), key=homes.count) if homes else ""


def interpreter(script: Path) -> str:
    """The path of the Python that a script starts, or ``""`` where its head names none."""
    with open(script, "rb") as file:
        head = file.read(1000)
    if not head.startswith(b"#!"):
        return ""
    first, _, rest = head.partition(b"\n")
    found = _EXEC.match(rest)  # a path with blanks, or a long one, cannot stand in the first line
    return os.fsdecode(found.group(1) if found else first[2:].strip())


def correct_scripts(venv: Path, state: State) -> None:
    """Write this environment's path into its scripts, the ones for activation included."""
    python = os.fsencode(os.path.join(os.path.realpath(venv), "bin", "python"))
    header = b"#!" + python + b"\n"
    if b" " in python or len(header) > 127:
        header = b"#!/bin/sh\n'''exec' \"" + python + b'" "$0" "$@"\n\' \'\'\'\n'
    for path in state.stale:
        content = path.read_bytes()
        lines = 3 if content.startswith(b"#!/bin/sh") else 1
        path.write_bytes(header + content.split(b"\n", lines)[lines])
    old, new = os.fsencode(state.old_home), os.fsencode(os.path.realpath(venv))
    for path in (venv / "bin").glob("activate*"):
        path.write_bytes(path.read_bytes().replace(old, new))


def _answer(venv: Path, code: str) -> str | None:
    """What the environment's Python prints, or None where it fails."""
    try:
        done = subprocess.run([str(venv / "bin/python"), "-I", "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise UserError(f"{failure}: {lines[-1]}")
