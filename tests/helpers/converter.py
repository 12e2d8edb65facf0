"""llama.cpp's own converter, to compare with: it lies in llama-cpp-python's source package, of the installed version.

pip fetches that package once (76 MB, half a minute); what the converter needs of it, 2 MB, is kept in slm's cache.
``SLM_LLAMA_CPP`` names another source tree of llama.cpp.

Run as a program, it converts.
"""

import json
import os
import runpy
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from slm.data.storage import cache_home, locked
from slm.setup.llama import requirement
from tests.helpers import programs

_WANTED = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/")
_FETCH_S = 300


def source() -> Path:
    """A folder with ``convert_hf_to_gguf.py``. Skips where there is none and no package index can be reached."""
    if named := os.environ.get("SLM_LLAMA_CPP"):
        return Path(named)
    version = requirement().partition("==")[2]
    kept = cache_home() / "llama.cpp-converter" / version
    kept.parent.mkdir(parents=True, exist_ok=True)
    with locked(kept.with_name(f"{version}.lock")):
        if not kept.is_dir():
            _fetch(kept)
    return kept


def _fetch(kept: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=kept.parent) as new:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", "llama-cpp-python", requirement(), "--dest", new]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"llama.cpp's converter could not be fetched with pip in {_FETCH_S} s")
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"llama.cpp's converter could not be fetched with pip ({said}); SLM_LLAMA_CPP names a tree")
        (package,) = Path(new).glob("*.tar.gz")
        tree = Path(new) / "tree"
        with tarfile.open(package) as packed:
            for member in packed:
                _, _, inner = member.name.partition("/vendor/llama.cpp/")
                if member.isfile() and inner.startswith(_WANTED):
                    member.name = inner
                    packed.extract(member, tree, filter="data")
        assert (tree / "convert_hf_to_gguf.py").is_file(), f"{package.name} has no converter"
        tree.replace(kept)


def convert(folders: dict[Path, Path], folder: Path, *, pre: dict[Path, str]) -> None:
    """Convert each checkpoint (key) to an f32 GGUF file (value), in one process, which writes its log to ``folder``.

    ``pre``: by checkpoint, the pre-tokenizer's name, where the converter does not know it: it knows published
    vocabularies only.
    """
    jobs = [[str(checkpoint), str(file), pre.get(checkpoint)] for checkpoint, file in folders.items()]
    programs.run("tests.helpers.converter", [str(source()), json.dumps(jobs)], folder)


def main(tree: str, jobs: str) -> None:
    """The child's side."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
        del sys.modules[name]  # the converter's own is of its version
    sys.path.insert(0, tree)
    program = str(Path(tree) / "convert_hf_to_gguf.py")
    for checkpoint, file, pre in json.loads(jobs):
        sys.argv = [program, checkpoint, "--outtype", "f32", "--outfile", file]
        if pre is not None:
            from conversion.base import TextModel  # type: ignore[import-not-found]

            TextModel.get_vocab_base_pre = lambda *_, pre=pre: pre
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
