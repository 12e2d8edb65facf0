"""llama.cpp, compiled for this processor: built beside the rest of the installation, kept for the next checkout.

Only export, evaluation and the server need it, so ``make demo`` begins to train while it is still being built. A
command that needs it calls ``wait``. Standard library alone: this runs before anything is installed.

``python -m slm.setup.llama build|wait|variants`` in the environment's Python.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from slm import cli
from slm.data.errors import UserError, excerpt

PACKAGE = "llama-cpp-python"
NATIVE = "-DGGML_NATIVE=ON"
_INCLUDED = Path(__file__).resolve().with_name("llamacpp.cmake")
TRIM = f"-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama.cpp_INCLUDE={shlex.quote(str(_INCLUDED))}"
"""Leaves out what is never loaded: the multimodal library and llama.cpp's "common" one."""
VARIANTS = (
    "-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DCMAKE_INSTALL_BINDIR=llama_cpp/lib "
    '-DCMAKE_CXX_FLAGS="-fno-tree-dse -fno-dse"'
)
"""One CPU library for each kind of processor; the best one is chosen when it is loaded."""
EVERY_S = 10.0
"""Seconds between two lines about a build that somebody waits for."""
GRACE_S = 5.0
"""Seconds that a build has to take its lock."""
NICENESS = 5
"""What a build in the background yields: beside as many processes of usual priority it has a quarter of the time."""
_BUILDER = "SLM_BUILDS_LLAMA"
_ROOT = Path(__file__).resolve().parents[2]
_STEP = re.compile(rb"^\s*\[(\d+)/(\d+)\] ", re.MULTILINE)  # as ninja counts


def requirement() -> str:
    """As pyproject.toml has it: ``llama-cpp-python==VERSION``."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(each for each in project["dependencies"] if each.startswith(PACKAGE)).replace(" ", "")


def installed(venv: Path) -> bool:
    """Whether the environment has the version that pyproject.toml names."""
    version = requirement().partition("==")[2]
    return any(venv.glob(f"lib/python3.*/site-packages/llama_cpp_python-{version}.dist-info"))


def kept_wheels() -> Path:
    """The folder of the builds that are kept, each in a folder named by its ``key``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cache / "slm" / "wheels"


def key(wanted: str, cmake_args: str) -> str:
    """What a build depends on, as a folder's name: version, options, compiler, C library and processor."""
    compilers = []
    for variable, usual in (("CC", "cc"), ("CXX", "c++")):
        command = shlex.split(os.environ.get(variable, "")) or [usual]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30)
            compilers.append(done.stdout.partition("\n")[0])
    facts = [wanted, cmake_args, compilers, platform.machine(), platform.libc_ver(), _processor()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Name and instruction sets: a native build runs on a processor that has both."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        lines = [line for line in text.splitlines() if re.match(r"(model name|flags|Features|CPU part)\s*:", line)]
        return "\n".join(lines)
    return platform.processor()


def wheel(
    python: Path,
    cmake_args: str,
    *,
    log: IO[bytes],
    fresh: bool = False,
    keep: Path | None = None,
) -> Path:
    """The wheel of this version, options and processor: the kept one, or one that is built now.

    ``python``: with pip. ``log``: gets what pip and the compiler print. ``fresh``: build it even if one is kept.
    ``keep``: the folder that the wheel goes to, in place of the cache's.
    UserError where it cannot be built.
    """
    wanted = requirement()
    folder = keep or kept_wheels() / key(wanted, cmake_args)
    if not fresh and (found := sorted(folder.glob("llama_cpp_python-*.whl"))):
        return found[0]
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # used once, then
        folder = Path(tempfile.mkdtemp(prefix="slm-wheel-"))
    # pip's own cache of wheels does not know CMAKE_ARGS, nor which processor a wheel was built for.
    command = [str(python), "-m", "pip", "wheel", "--verbose", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--no-binary", PACKAGE, wanted, "--wheel-dir"]
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder, ignore_cleanup_errors=True) as new:
        begin = log.tell()
        done = subprocess.run(
            [*command, new],
            env=os.environ | {"CMAKE_ARGS": f"{TRIM} {cmake_args}", "PYTHONWARNINGS": "ignore"},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        made = sorted(Path(new).glob("*.whl"))
        if done.returncode or not made:
            reason = _reason(Path(log.name), begin)
            raise UserError(f"{wanted} could not be built with CMAKE_ARGS={shlex.quote(cmake_args)}: {reason}")
        return made[0].replace(folder / made[0].name)


def _reason(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        said = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if re.search(r"\berror\b", line, re.I) and "subprocess-exited" not in line]
    return f"{excerpt((errors or said[-1:] or ['no reason given'])[0])} ({log})"


# A build in the background: .venv/llama-build.json is there until llama.cpp is installed, and whoever builds holds
# llama-build.lock. A process that finds the file and no lock builds itself, so nobody waits for one that has died.


def state_file(venv: Path) -> Path:
    """When the build began, and its error if it failed, as JSON."""
    return venv / "llama-build.json"


def log_file(venv: Path) -> Path:
    """What pip and the compiler print."""
    return venv / "llama-build.log"


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the file's lock; False where another process holds it and ``wait`` is not wanted."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def start(venv: Path) -> None:
    """Begin to build in a process that goes on when this one ends, unless llama.cpp is installed."""
    if installed(venv) and not state_file(venv).exists():
        return
    state_file(venv).write_text(json.dumps({"begun": time.time()}))
    # In another process group: Ctrl-C ends a training and not the build. Behind the installation and the training,
    # which somebody waits for: nobody waits for the build before they have ended.
    process = _build_process(
        venv, process_group=0, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


def _build_process(venv: Path, **options: Any) -> "subprocess.Popen[bytes]":
    own = os.environ | {"PYTHONSAFEPATH": "", "PYTHONPATH": str(_ROOT)}
    return subprocess.Popen([str(venv / "bin/python"), "-m", "slm.setup.llama", "build"], env=own, **options)


def build(venv: Path) -> None:
    """Build, install and try llama.cpp; nothing where somebody else has done so meanwhile. UserError where it fails."""
    with locked(venv / "llama-build.lock"):
        if not state_file(venv).exists():
            return
        state_file(venv).write_text(json.dumps({"begun": time.time()}))
        try:
            _build(venv)
        except UserError as error:
            state_file(venv).write_text(json.dumps({"begun": time.time(), "error": str(error)}))
            raise
        state_file(venv).unlink()


def _build(venv: Path) -> None:
    python = venv / "bin/python"
    with log_file(venv).open("wb") as log:
        made = wheel(python, os.environ.get("CMAKE_ARGS") or NATIVE, log=log)
        with locked(venv / "packages.lock"):  # pip is still installing the rest
            install(python, made, log)
        own = os.environ | {_BUILDER: "1"}  # what it starts is not to wait for this build
        done = subprocess.run([str(python), "-m", "slm.llama.rebuild"], stdout=log, stderr=log, env=own)
    if done.returncode:
        raise UserError(f"llama.cpp does not work here: {_last_line(venv, 'error: ') or log_file(venv)}")


def install(python: Path, made: Path, log: IO[bytes]) -> None:
    """Put a wheel into the environment of ``python``, over another of the same version, with what it needs."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    for options in (["--force-reinstall", "--no-deps"], []):
        own = os.environ | {"PYTHONWARNINGS": "ignore"}
        done = subprocess.run([*pip, *options, str(made)], stdout=log, stderr=subprocess.STDOUT, env=own)
        if done.returncode:
            raise UserError(f"{made.name} could not be installed ({log.name})")


def wait(venv: Path | None = None, *, say: Callable[[str], None] = lambda line: print(line, flush=True)) -> None:
    """Return when llama.cpp is installed: at once, or when its build has ended, with a line every ten seconds.

    UserError where it cannot be built.
    """
    venv = venv or Path(sys.prefix)
    if os.environ.get(_BUILDER):
        return
    begun = time.monotonic()
    said = begun - EVERY_S
    while (state := _state(venv)) is not None:
        if "error" in state:
            raise UserError(f"{state['error']}; {cli.spelled('setup')} tries again")
        if time.time() - state["begun"] > GRACE_S and _nobody_builds(venv):
            _build_here(venv, say)
            break
        if time.monotonic() - said >= EVERY_S:
            said = time.monotonic()
            say(f"llama.cpp is being built: {progress(venv)}")
        time.sleep(0.2)
    if time.monotonic() - begun > 1:
        say(_last_line(venv, "llama.cpp works here") or "llama.cpp is built.")


def _state(venv: Path) -> dict[str, Any] | None:
    """None where nothing is being built, nor has failed."""
    try:
        state: dict[str, Any] = json.loads(state_file(venv).read_text())
    except FileNotFoundError:
        return None
    except ValueError:  # it is being written
        return {"begun": time.time()}
    return state


def _nobody_builds(venv: Path) -> bool:
    with locked(venv / "llama-build.lock", wait=False) as free:
        return free


def _build_here(venv: Path, say: Callable[[str], None]) -> None:
    """The build in the background has died: once more, as a child of this process, so that its error is seen."""
    say("llama.cpp is built now: 3 to 5 minutes on two cores.")
    with _build_process(venv) as process:
        if end_of(process, lambda: say(f"llama.cpp is being built: {progress(venv)}")):
            raise UserError("llama.cpp could not be built (see above)")


def end_of(process: "subprocess.Popen[bytes]", every: Callable[[], None]) -> int:
    """The status of a process that is waited for; ``every`` is called each ten seconds until then."""
    while True:
        try:
            return process.wait(EVERY_S)
        except subprocess.TimeoutExpired:
            every()


def progress(venv: Path) -> str:
    """What the build has done, in a few words, with the time left."""
    try:
        content = log_file(venv).read_bytes()
        begun = json.loads(state_file(venv).read_text())["begun"]
    except (OSError, ValueError, KeyError):
        return "beginning"
    steps = _STEP.findall(content)
    seconds = time.time() - begun
    if not steps:
        return f"fetching its source ({seconds:.0f} s)"
    done, total = map(int, steps[-1])
    if done == total:
        return f"all {total} steps are done, it is installed ({seconds:.0f} s)"
    left = f", about {seconds * (total - done) / done:.0f} s left" if done > 3 else ""
    return f"{done} of {total} steps{left}"


def _last_line(venv: Path, beginning: str) -> str:
    with contextlib.suppress(OSError):
        said = log_file(venv).read_text(errors="replace").splitlines()
        return next((line for line in reversed(said) if line.startswith(beginning)), "")
    return ""


def variants(folder: Path) -> Path:
    """A wheel for a team or a container: one library for every kind of processor of this architecture."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.log").open("wb") as log:
        made = wheel(Path(sys.executable), VARIANTS, log=log, fresh=True, keep=folder)
    (folder / "build.log").unlink()
    return made


def main(argv: list[str]) -> None:
    """``build``, ``wait``, or ``variants [FOLDER]``."""
    name = argv[0] if argv else ""
    if name == "build":
        build(Path(sys.prefix))
    elif name == "wait":
        wait()
    elif name == "variants":
        print("llama.cpp is built for every kind of processor: 10 to 20 minutes on two cores.", flush=True)
        made = variants(Path(argv[1] if len(argv) > 1 else "wheels"))
        print(f"{made} ({made.stat().st_size / 1e6:.0f} MB); next: pip install {made}")
    else:
        raise UserError(f"there is no {name!r}: build, wait or variants")


if __name__ == "__main__":
    cli.run(main)
