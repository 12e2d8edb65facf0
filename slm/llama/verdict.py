"""Whether the installed build of llama.cpp works on this processor, asked before a command depends on it.

A build can be wrong for a processor: then llama.cpp dies in native code (a "Segmentation fault" and nothing else) or
computes garbage. ``slm.llama.self_check`` tries it in its own process. The answer is kept in the cache folder, so
that one build is tried once on one machine. Nothing here loads llama.cpp.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from slm.data.errors import UserError, excerpt
from slm.data.storage import cache_home
from slm.machine.cpp_build import cpu_flags
from slm.machine.crashes import CRASHES, ended_by, run_trial
from slm.machine.record import cpu_name
from slm.report import atomic_write_json
from slm.setup.llama import wait as wait_for_build

PACKAGE = "llama-cpp-python"
REBUILD = f"{shlex.quote(sys.executable)} -m slm.llama.rebuild"
_FORMAT = 1
"""Version of the cached verdicts. A higher number tries again."""
_SUSPECTS = (("AMX_INT8", "amx_tile", "AMX"), ("AVX512", "avx512f", "AVX-512"), ("AVX2", "avx2", "AVX2"))
"""Instruction sets, the likeliest culprit first: llama.cpp's name, the kernel's, the usual one."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the trial found."""

    works: list[str]
    """Types that compute right, such as ``q8_0``."""
    features: list[str] | None
    """What llama.cpp was built with; None where it cannot be loaded."""
    failed: str | None = None
    """The type that was being tried when the process died, or that computes garbage; "loading" where it came to none;
    None where all is well."""
    signal: str | None = None
    """What the process died of, such as ``SIGSEGV``."""
    error: float | None = None
    """For a broken type: its distance from f32's logits relative to their norm. None: not finite."""
    unknown: str | None = None
    """Why there is no answer, where there is none. The build is then taken to work."""

    @property
    def fault(self) -> str | None:
        """What is wrong, in some words; None where nothing is."""
        if self.failed is None:
            return None
        if self.signal:
            when = "it is loaded" if self.failed == "loading" else f"it computes {self.failed}"
            fault = f"dies with {self.signal} when {when}"
        else:
            fault = f"computes garbage in {self.failed}"
        suspect = self.suspect
        return f"{fault} ({suspect} is suspected)" if suspect else fault

    @property
    def suspect(self) -> str | None:
        """The instruction set that is the likeliest culprit."""
        present = cpu_flags()
        for feature, flag, name in _SUSPECTS:
            if feature in self.features if self.features is not None else flag in present:
                return name
        return None


def require_working_build() -> None:
    """``UserError`` where llama.cpp would die or compute garbage here. Takes a file's reading, or a second if this
    build has not been tried on this machine."""
    if fault := examine().fault:
        raise UserError(f"llama.cpp, as it is installed here, {fault}: {REBUILD} builds it again for this processor")


def crash_advice(left: str = "nothing was published") -> str:
    """What to do when llama.cpp has died although the trial went well. ``left``: what that means for files."""
    suspect = examine().suspect
    likely = f"{suspect} is the likeliest cause; " if suspect else ""
    return f"{likely}{left}; {REBUILD} builds llama.cpp again for this processor"


def examine() -> Verdict:
    """The kept verdict about this build and machine, or else a new one. Waits for a build that set-up has begun."""
    wait_for_build()
    kept = _cache_file()
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Verdict(**json.loads(kept.read_text()))
    verdict = _try_it()
    if verdict.unknown is None:
        with contextlib.suppress(OSError):  # it is tried again the next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(kept, asdict(verdict))
    return verdict


def libraries() -> list[Path]:
    """The shared libraries of llama-cpp-python, found without loading them."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")  # llama-cpp-python's own variable
    if folder is None:
        found = importlib.util.find_spec("llama_cpp")
        if found is None or found.origin is None:
            return []
        folder = str(Path(found.origin).parent / "lib")
    return sorted(path for path in Path(folder).glob("lib*") if path.is_file())


def build_stamp() -> list[Any]:
    """What an answer about this build on this machine depends on: version, libraries, processor."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        version = "none"
    stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in libraries()]
    return [version, stamps, cpu_name(), sorted(cpu_flags())]


def _cache_file() -> Path:
    key = [_FORMAT, *build_stamp()]
    return cache_home() / "llama" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"


def _try_it() -> Verdict:
    # When llama.cpp aborts, it starts a debugger where there is one.
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    try:
        with tempfile.TemporaryDirectory(prefix="slm-llama-", ignore_cleanup_errors=True) as folder:
            done = run_trial("slm.llama.self_check", folder, environment=environment)
    except (subprocess.SubprocessError, OSError) as error:
        return Verdict(works=[], features=None, unknown=excerpt(error))
    return read_trial(done.stdout.decode(errors="replace"), done.returncode, done.stderr.decode(errors="replace"))


def read_trial(output: str, status: int, errors: str) -> Verdict:
    """The verdict from what the trial's process printed, its exit status and its messages."""
    works: list[str] = []
    features: list[str] | None = None
    begun = "loading"
    for line in output.splitlines():
        try:
            step: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        features = step.get("features", features)
        begun = step.get("begins", begun)
        if "type" in step and not step["right"]:
            return Verdict(works=works, features=features, failed=step["type"], error=step.get("error"))
        if "type" in step:
            works.append(step["type"])
    if status == 0:
        return Verdict(works=works, features=features)
    if name := ended_by(status):
        if name in CRASHES:
            return Verdict(works=works, features=features, failed=begun, signal=name)
        return Verdict(works=works, features=features, unknown=f"the trial was ended by {name}")
    return Verdict(works=works, features=features, unknown=excerpt((errors.strip().splitlines() or ["?"])[-1]))
