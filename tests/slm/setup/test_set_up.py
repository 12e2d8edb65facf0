"""``make setup`` as a whole in a folder with blanks and an apostrophe in its path, with plain pip.

pip stands in for itself: it writes down what it is asked for and installs nothing, and so does the check of llama.cpp.
All else is real: make, the check of the options, the environment, the build beside it, and how its Python is started.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers import REPOSITORY

NOTES = """import json, os, sys
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps([os.getcwd(), sys.executable, *sys.argv[1:]]) + "\\n")
if "wheel" in sys.argv:
    open(os.path.join(sys.argv[-1], "llama_cpp_python-0-py3-none-any.whl"), "w").close()
sys.exit("--no-index" in sys.argv)  # nothing is installed yet
"""


def checkout(folder: Path) -> Path:
    """What set-up needs of a checkout, with an environment that has a pip."""
    folder.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(REPOSITORY / "slm" / "setup", folder / "slm" / "setup")
    for name in (
        "slm/__init__.py",
        "slm/cli.py",
        "slm/early_interrupt.py",
        "slm/late_interrupt.py",
        "data/__init__.py",
        "data/errors.py",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    (folder / "slm" / "llama").mkdir()
    (folder / "slm" / "llama" / "rebuild.py").write_text(NOTES)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    pip = next((folder / ".venv" / "lib").glob("python3.*")) / "site-packages" / "pip"
    pip.mkdir()
    (pip / "__init__.py").write_text("")
    (pip / "__main__.py").write_text(NOTES)
    return folder


def test_set_up_in_a_path_with_blanks(tmp_path):
    folder = checkout(tmp_path / "a b" / "it's here")
    index = tmp_path / "an index"
    (index / "torch").mkdir(parents=True)
    notes = tmp_path / "notes"
    # No uv, and a separate make rather than a part of `make test`.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "sh", "bash", "awk", "cat", "test", "env", "uname"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    own = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    done = subprocess.run(
        ["make", "setup", "CHECK=no", f"PYTHON={sys.executable}", f"TORCH_INDEX=file://{index}"],
        cwd=folder,
        env={**own, "PATH": str(tools), "NOTES": str(notes), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [json.loads(line) for line in notes.read_text().splitlines()]
    python = str(folder / ".venv" / "bin" / "python")
    assert {(each[0], each[1]) for each in asked} == {(str(folder), python)}
    asked = [each[2:] for each in asked]
    beside = [each for each in asked if not each or "wheel" in each or each[-1].endswith(".whl")]
    upgrade, has_torch, torch, packages, slm = (each for each in asked if each not in beside)
    assert has_torch[-4:-1] == ["--dry-run", "--no-deps", "--no-index"]
    assert upgrade[-2:] == ["--upgrade", "pip"]
    assert torch[-3:-1] == ["--index-url", f"file://{index}"]
    assert torch[-1].startswith("torch")
    assert {"numpy>=2.0,<3", "wandb>=0.22,<0.32"} <= set(packages)
    assert not [each for each in packages if each.startswith(("llama", "pytest"))]
    assert slm[-4:] == ["--no-deps", "--no-build-isolation", "--editable", "."]
    build, install, needs, checked = beside
    assert build[:1] == ["wheel"]
    assert {"--no-binary", "llama-cpp-python", "--no-cache-dir"} <= set(build)
    kept = next((tmp_path / "cache/slm/wheels").glob("*/*.whl"))
    assert (install[-1], needs[-1]) == (str(kept), str(kept))
    assert checked == [], "the build of llama.cpp is tried last"
    assert (folder / ".venv" / ".ready").read_text() == str(folder)
    assert not (folder / ".venv" / "llama-build.json").exists()
