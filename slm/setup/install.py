"""What is installed, and with what: the CPU build of torch first, then slm with everything else, by uv where that is
there, else by pip; llama.cpp is compiled meanwhile (slm/setup/llama.py)."""

import json
import os
import platform
import re
import subprocess
import time
import tomllib
from pathlib import Path

from slm.data.errors import UserError
from slm.setup import index, llama
from slm.setup.requirements import may_write

CUDA_SIZE = "2.7 GB to download and 4.8 GB on disk"
"""Size of torch 2.13 and its dependencies from PyPI on Linux x86-64: sums over 27 wheels, 2026-11-21."""


EXTRAS = {"run": ("logging", "documents"), "tests": ("dev",), "docs": ("docs",)}
"""By what the environment is for: what runs, what else tests and the comparisons with other programs need, and what
builds the site."""


def install(venv: Path, torch_index: str, *, uv: str | None, purpose: str = "run") -> None:
    """Install slm into the environment, or for ``tests`` what these need besides. UserError where that fails; pip has
    then printed why. llama.cpp may still be under construction afterwards: ``llama.wait`` waits for it."""
    python = venv / "bin/python"
    tool = installer(python, uv)
    begin = time.monotonic()
    what = {"run": "slm", "tests": "what the tests need", "docs": "what builds the site"}[purpose]
    print(f"Installing {what} into {venv} with {'uv' if uv else 'pip'}.", flush=True)
    with llama.locked(venv / "packages.lock"):
        if purpose == "run":
            if not uv:
                _run([*tool, "--upgrade", "pip"], "pip could not be renewed", venv)
            llama.start(venv)
            if not _has_torch(tool):
                source, line = torch_source(tool, torch_index)
                if line:
                    print(line, flush=True)
                _run([*tool, *source, torch_requirement()], "torch could not be installed", venv)
        _run([*tool, *requirements(*EXTRAS[purpose])], f"{what} could not be installed", venv)
        if purpose == "run":
            _run([*tool, "--no-deps", "--no-build-isolation", "--editable", "."], "slm could not be installed", venv)
    print(f"Installed {what} in {time.monotonic() - begin:.0f} s.", flush=True)


def requirements(*extras: str) -> list[str]:
    """What pyproject.toml asks for, with these extras; llama-cpp-python comes from slm/setup/llama.py."""
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    found = [*settings["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return [each for each in found if not each.startswith(llama.PACKAGE)]


def installer(python: Path, uv: str | None) -> list[str]:
    """The command that installs, up to its packages."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    cache = [] if may_write(folder) else ["--no-cache" if uv else "--no-cache-dir"]
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(python), *cache]
    # A module is compiled when it is first imported: most of the 30,000 never are.
    return [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *cache]


def torch_requirement() -> str:
    """As pyproject.toml has it."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(each for each in project["dependencies"] if re.match(r"torch\W", each))


def torch_source(tool: list[str], torch_index: str) -> tuple[list[str], str]:
    """Options that say where torch comes from, and a line for the person, if there is something to know.

    PyTorch's own index has builds without CUDA. On Linux, those of PyPI come with CUDA.
    """
    if platform.system() != "Linux":
        return [], ""
    reason = index.unreachable(f"{torch_index.rstrip('/')}/torch/")
    if reason is None:
        return ["--default-index" if _is_uv(tool) else "--index-url", torch_index], ""
    shown = index.without_password(torch_index)
    why = f"{shown}, the index of torch's CPU builds, cannot be reached ({reason})."
    coming = what_comes(tool, torch_requirement())
    if coming == "cuda":
        return [], (
            f"{why} torch comes from the ordinary index instead, with CUDA: {CUDA_SIZE}. Ctrl-C stops here; "
            "TORCH_INDEX=URL names a mirror of the CPU builds."
        )
    if coming == "cpu":
        return [], f"{why} The ordinary index has a build without CUDA, which is taken."
    return [], (
        f"{why} The ordinary index is tried. Its torch for Linux usually comes with CUDA: {CUDA_SIZE}. TORCH_INDEX=URL "
        "names a mirror of the CPU builds."
    )


def what_comes(tool: list[str], requirement: str) -> str | None:
    """``cuda`` or ``cpu``: what the ordinary index would bring, by a trial that installs nothing; None: not known."""
    command = [*tool, "--dry-run", requirement]
    if not _is_uv(tool):
        command += ["--report", "-", "--retries", "1", "--timeout", "30"]
    else:
        command.remove("--quiet")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    if _is_uv(tool):
        return "cuda" if re.search(r"\b(nvidia|cuda|triton)\b", done.stderr + done.stdout) else "cpu"
    try:
        names = [each["metadata"]["name"] for each in json.loads(done.stdout)["install"]]
    except (ValueError, KeyError):
        return None
    return "cuda" if any(name.startswith(("nvidia", "cuda")) for name in names) else "cpu"


def _is_uv(tool: list[str]) -> bool:
    return "-m" not in tool


def _has_torch(tool: list[str]) -> bool:
    """Whether a torch is installed that the project takes, asked of the installer without an index."""
    command = [*tool, "--dry-run", "--no-deps", "--no-index", torch_requirement()]
    own = {name: value for name, value in os.environ.items() if not name.endswith("FIND_LINKS")}
    own |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}  # they may name folders of packages
    return subprocess.run(command, capture_output=True, env=own).returncode == 0


def _run(command: list[str], failure: str, venv: Path) -> None:
    """Run the command to its end, with a line every ten seconds."""
    begin = time.monotonic()

    def say() -> None:
        building = f"; llama.cpp beside it: {llama.progress(venv)}" if llama.state_file(venv).exists() else ""
        print(f"  {_named(command)}: {time.monotonic() - begin:.0f} s{building}", flush=True)

    with subprocess.Popen(command, env=os.environ | {"PYTHONWARNINGS": "ignore"}) as process:
        status = llama.end_of(process, say)
    if status:
        raise UserError(f"{failure} (see above); the same command goes on from there")


def _named(command: list[str]) -> str:
    """What a command installs, in a few words."""
    wanted = [word for word in command[command.index("install") + 1 :] if re.match(r"[A-Za-z.]", word)]
    if wanted[-1] == ".":
        return "slm itself"
    return wanted[-1] if len(wanted) <= 2 else f"{len(wanted)} packages and what they need"
