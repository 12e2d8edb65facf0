"""What only Linux has is missing: every module is still imported, and the stages work.

This machine cannot be another one. But each process of these tests, and each that it starts, begins without the calls,
constants and files that macOS does not have. Without /proc/cpuinfo no instruction set is known either, as on ARM: the
hand-written kernels are then not chosen.
"""

import json
import os
import subprocess
import sys

import httpx
import pytest

from tests.helpers import REPOSITORY
from tests.helpers.servers import running_server
from tests.helpers.small_run import OPTIONS, write_corpus

WITHOUT = """
import errno, fcntl, os, pathlib, time

for module, names in (
    (os, ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "memfd_create", "pidfd_open")),
    (os, ("pipe2", "eventfd", "splice", "copy_file_range")),
    (fcntl, ("F_SETPIPE_SZ", "F_GETPIPE_SZ")),
    (time, ("CLOCK_BOOTTIME",)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

# psutil and Python itself read these files in other ways: they have macOS's calls there.
there, listed = pathlib.Path.read_text, pathlib.Path.glob

def read_text(path, *words, **options):
    if path.parts[:2] in (("/", "proc"), ("/", "sys")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return there(path, *words, **options)

def glob(path, *words, **options):
    return iter(()) if path.parts[:2] in (("/", "proc"), ("/", "sys")) else listed(path, *words, **options)

pathlib.Path.read_text, pathlib.Path.glob = read_text, glob
"""

IMPORT_ALL = """
import importlib, os, pkgutil, sys
assert not hasattr(os, "sched_getaffinity")
count = 0
for folder, name in (("data", "slm.data"), ("slm", "slm"), *((f, f"slm.{f}") for f in ("train", "export", "serve"))):
    for found in pkgutil.walk_packages([folder], name + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
            count += 1
from slm.kernels.choice import choose
from slm.machine import hardware, memory, topology
assert choose("bf16")[0] is None and choose("f32")[0] is None
assert hardware.compute_threads() == len(topology.read().cores) == os.cpu_count()
assert memory.total_bytes() >= memory.available_bytes() > 0
print(count)
"""


STAGES = """
import json
from slm.export.__main__ import main as export
from slm.doctor.__main__ import main as doctor
from slm.train.__main__ import main as train
for main, words in zip((train, export, doctor), json.loads(sys.argv[1]), strict=True):
    assert not main(words), words
"""
"""Behind IMPORT_ALL: the commands that load torch, each with its words."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The environment of a process that finds nothing of Linux's own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "sitecustomize.py").write_text(WITHOUT)  # Python imports it at the start of every process
    return os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_every_module_is_imported_and_a_model_trained_exported_and_served(elsewhere, tmp_path):
    # IMPORT_ALL has asked which kernels are chosen: none. PyTorch's compiler takes two minutes and is tested elsewhere.
    train = [*OPTIONS, "train.max_steps=6", "train.workers=1", "name=small"]
    train += [f"data.files=[{write_corpus(tmp_path / 'text.jsonl')}]", f"runs_dir={tmp_path}"]
    export = [f"run={tmp_path / 'small'}", "quant=q8_0", "calibration.chunks=2", "proof.chunks=2"]
    doctor = ["compile=false", "decode=false", f"runs_dir={tmp_path}"]
    command = [sys.executable, "-c", IMPORT_ALL + STAGES, json.dumps([train, export, doctor])]
    done = subprocess.run(command, cwd=REPOSITORY, env=elsewhere, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert int(lines[0]) > 150
    trained, exported, examined = (json.loads(line) for line in lines if line.startswith("{"))
    assert trained["status"] == "finished"
    assert exported["published"]
    assert examined["cpus"] == os.cpu_count()
    with running_server(tmp_path / "server.log", tmp_path / "small", env=elsewhere) as server:
        answer = httpx.post(server.url + "/v1/completions", json={"prompt": "the cat", "max_tokens": 4}, timeout=60)
        assert answer.status_code == 200, answer.text
