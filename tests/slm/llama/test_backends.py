import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp.llama_cpp as C
import pytest

from slm.llama import log  # noqa: F401 (starts llama.cpp)
from slm.llama.backends import load_backends

STUB = """
#include <stddef.h>
#include <string.h>
static char seen[256];
static size_t backends;
size_t ggml_backend_reg_count(void) { return backends; }
void ggml_backend_load_all_from_path(const char * folder) { strncpy(seen, folder, 255); backends += 1; }
const char * folder_seen(void) { return seen; }
"""


def test_the_installed_build_has_a_backend_and_gets_no_second_one():
    before = load_backends(C._lib, Path("/nowhere"))
    assert before >= 1
    assert load_backends(C._lib, Path(C._base_path)) == before


def test_a_build_without_a_backend_loads_those_of_its_folder_once(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "stub.c").write_text(STUB)
    subprocess.run([compiler, "-shared", "-fPIC", tmp_path / "stub.c", "-o", tmp_path / "stub.so"], check=True)
    ggml = ctypes.CDLL(str(tmp_path / "stub.so"))
    ggml.folder_seen.restype = ctypes.c_char_p
    folder = tmp_path / "variants for all"
    for _ in range(2):
        assert load_backends(ggml, folder) == 1
    assert os.fsdecode(ggml.folder_seen()) == str(folder)


@pytest.mark.skipif("SLM_DYNAMIC_LLAMA" not in os.environ, reason="SLM_DYNAMIC_LLAMA names no folder of such a build")
def test_a_real_build_with_all_variants_works(tmp_path, repository):
    """``SLM_DYNAMIC_LLAMA``: the folder ``llama_cpp/lib`` of a build with ``GGML_CPU_ALL_VARIANTS=ON``."""
    environment = os.environ | {"LLAMA_CPP_LIB_PATH": os.environ["SLM_DYNAMIC_LLAMA"]}
    command = [sys.executable, "-m", "slm.llama.self_check", tmp_path]
    done = subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["features"]
    right = [line["right"] for line in lines if "type" in line]
    assert len(right) == 6
    assert all(right)
