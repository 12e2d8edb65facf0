"""The f32 kernels by other compilers: by clang, and those for NEON by Debian's cross compiler in an emulator."""

import shutil
import subprocess
from pathlib import Path

import pytest

from slm.kernels import roofline, self_check
from slm.kernels.native import FOLDER, VARIANTS, Kernels
from slm.machine import cpp_build
from slm.machine.cpp_build import compiler
from tests.helpers import REPOSITORY
from tests.helpers.kernels import CALLS

AVX2, NEON = VARIANTS["avx2"], VARIANTS["neon"]
CHECK = REPOSITORY / "tests" / "helpers" / "kernel_check.cpp"
CHECKED = (
    *("2^x, relative", "sigmoid, relative", "tanh, relative", "sum, maximum, limits", "linear", "linear backward"),
    *("gate and up with SiLU", "their gradients with SiLU", "gate and up with GELU", "their gradients with GELU"),
    *("weight gradient", "bias gradient", "norm", "norm backward", "cross-entropy", "cross-entropy without gradients"),
    *("gradient in the logits", "head backward", "attention", "attention backward"),
    *("cross-entropy, soft-capped", "cross-entropy without gradients, soft-capped"),
    *("gradient in the logits, soft-capped", "slopes of logits, soft-capped", "head backward, soft-capped"),
    *("attention, soft-capped", "attention backward, soft-capped", "update", "sum of squares"),
)


def run_check(tmp_path: Path, command: str, *flags: str, runner: tuple[str, ...] = ()) -> list[str]:
    """The check program, built by a compiler, and what it prints."""
    program = tmp_path / "check"
    words = [command, "-O1", "-fopenmp", "-w", f"-I{FOLDER}", *CALLS, *flags]
    sources = [*(FOLDER / name for name in AVX2.sources), CHECK]
    subprocess.run([*words, *map(str, sources), "-o", str(program)], check=True)
    done = subprocess.run([*runner, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def assert_all_right(lines: list[str], tile: str) -> None:
    assert lines[0] == f"4 lanes, tiles of {tile}"
    assert tuple(line.rpartition(" ")[0] for line in lines[1:]) == CHECKED
    assert all(float(line.rpartition(" ")[2]) < 1e-5 for line in lines[1:])


@pytest.mark.skipif(NEON.unavailable() is None, reason="four lanes are NEON here")
def test_the_kernels_for_neon_agree_with_plain_loops_in_an_emulator(tmp_path):
    """Without an emulator for ARM: the same four lanes on this processor."""
    cross, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64"
    if shutil.which(cross) and shutil.which(emulator):
        flags = [each for each in NEON.flags if each != "-mtune=native"]
        assert_all_right(run_check(tmp_path, cross, *flags, "-static", runner=(emulator,)), "12 x 8")
        return
    if (command := compiler(gcc_only=True)) is None:
        pytest.skip(f"needs {cross} and {emulator} (apt install g++-aarch64-linux-gnu qemu-user), or g++")
    flags = ["-std=gnu++17", "-ffp-contract=fast", "-DSLM_LANES=4"]
    assert_all_right(run_check(tmp_path, command, *flags), "6 x 8")


@pytest.mark.skipif(AVX2.unavailable() is not None, reason=f"kernels: {AVX2.unavailable()}")
def test_clang_builds_right_kernels(tmp_path, monkeypatch):
    """Without its OpenMP: PyTorch brings GCC's, and one process should not have both."""
    clang = shutil.which("clang++")
    if clang is None:
        pytest.skip("needs clang++ (apt install clang)")
    library = tmp_path / "kernels.so"
    flags = [each for each in AVX2.flags if not each.startswith("-mtune")]
    sources = [str(FOLDER / name) for name in AVX2.sources]
    subprocess.run([clang, "-O1", "-shared", "-fPIC", "-w", *flags, *sources, "-o", str(library)], check=True)
    assert self_check.distance(Kernels(library, "avx2")) < 1e-4
    # What needs no OpenMP is built by clang where there is no g++.
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in ("clang++", "ld"):
        (tools / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(cpp_build, "cache_dir", lambda: tmp_path / "cache")
    assert roofline.open_library().slm_f32_peak(1, 0.001) > 0
