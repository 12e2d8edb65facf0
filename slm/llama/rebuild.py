"""``python -m slm.llama.rebuild``: checks the installed build of llama.cpp, and builds it again where it is wrong.

``make setup`` runs it after the installation. A build that works is left alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Set
from importlib import metadata

from slm import cli
from slm.data.errors import UserError, excerpt
from slm.llama.verdict import PACKAGE, Verdict, examine
from slm.machine.cpp_build import cpu_flags
from slm.setup.llama import NATIVE, TRIM

KEEP_STORES = '-DCMAKE_CXX_FLAGS="-fno-tree-dse -fno-dse"'
"""GCC's header declares that ``_tile_loadconfig`` reads 8 bytes of AMX's tile configuration, which has 64. So GCC drops
the stores to the rest, and loading it is a fault (https://github.com/ggml-org/llama.cpp/issues/20824)."""


def _without(*flags: str) -> str:
    # GCC and clang let such a flag win over -march=native, wherever it stands.
    joined = " ".join(flags)
    return f'-DCMAKE_C_FLAGS="{joined}" -DCMAKE_CXX_FLAGS="{joined}"'


def installed_version() -> str | None:
    """The version of llama-cpp-python; None if it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def remedies(verdict: Verdict, flags: Set[str], cmake_args: str, *, asked: bool = False) -> Iterator[tuple[str, str]]:
    """Ways to build llama.cpp that may mend the fault, the best one first: what it does, in words, and CMAKE_ARGS.

    ``flags``: the processor's. ``cmake_args``: what the present build was made with, as far as the environment says.
    ``asked``: whether a person has set them, or a compiler, which the present build may not know of yet.
    """
    # CMake takes the last of two options with one name.
    if verdict.signal == "SIGILL":
        yield "for this processor", NATIVE
    if asked and not (verdict.signal == "SIGILL" and cmake_args == NATIVE):
        yield "as the environment asks", cmake_args
    if "amx_tile" in flags:
        if "-fno-tree-dse" not in cmake_args:
            yield "with all stores of AMX's tile configuration kept", f"{cmake_args} {KEEP_STORES}"
        yield "without AMX", f"{cmake_args} {_without('-mno-amx-tile', '-mno-amx-int8', '-mno-amx-bf16')}"
    if "avx512f" in flags:
        yield "without AVX-512", f"{cmake_args} {_without('-mno-avx512f')}"


def build(cmake_args: str) -> None:
    """Builds the installed version of llama-cpp-python again from its source. ``UserError`` where that fails."""
    version = installed_version()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--force-reinstall", "--no-binary", PACKAGE, "--no-cache-dir", "--no-deps"]
    done = subprocess.run(
        [*pip, *options, f"{PACKAGE}=={version}"],
        env=os.environ | {"CMAKE_ARGS": f"{TRIM} {cmake_args}"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower() and "subprocess-exited-with-error" not in line]
        reason = (errors or said[-1:] or ["no reason given"])[0]
        raise UserError(f"{PACKAGE} {version} could not be built with CMAKE_ARGS='{cmake_args}': {excerpt(reason)}")


def mend(
    flags: Set[str],
    cmake_args: str,
    *,
    asked: bool = False,
    try_build: Callable[[], Verdict] = examine,
    build: Callable[[str], None] = build,
) -> Verdict:
    """Checks the build, and builds it again until one works. ``UserError`` where none does."""
    verdict = try_build()
    if verdict.fault is None:
        return verdict
    fault = verdict.fault
    for words, arguments in remedies(verdict, flags, cmake_args, asked=asked):
        print(f"llama.cpp {verdict.fault}. Building it again {words}: 3 to 4 minutes on two cores.", flush=True)
        build(arguments)
        verdict = try_build()
        if verdict.fault is None:
            return verdict
    raise UserError(
        f"llama.cpp {fault}, and no other way to build it for this processor helped: try another compiler (CXX=clang++ "
        "CC=clang) or CMAKE_ARGS=-DGGML_NATIVE=OFF, and run make setup again"
    )


def main(argv: list[str]) -> None:
    """Checks, mends where that is needed, and prints one line about the result."""
    given = os.environ.get("CMAKE_ARGS") or NATIVE
    # The Makefile sets NATIVE, and KEEP_STORES for AMX: what is neither is a person's.
    asked = bool(given.replace(KEEP_STORES, "").strip() not in ("", NATIVE) or {"CC", "CXX"} & os.environ.keys())
    verdict = mend(cpu_flags(), given, asked=asked)
    if verdict.unknown:
        print(f"llama.cpp could not be checked: {verdict.unknown}")
    else:
        print(f"llama.cpp works here: {', '.join(verdict.works)}")


if __name__ == "__main__":
    cli.run(main)
