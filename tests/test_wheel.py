"""The wheel: it holds what the commands need, and they work from it outside the source tree."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slm.kernels.choice import choose
from slm.machine.cpp_build import compiler
from tests.helpers import REPOSITORY

ROOMS = ("data", "slm", "train", "export", "serve", "studio")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of the sources, without network."""
    source = tmp_path_factory.mktemp("source")
    for name in (*ROOMS, "configs"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(source / "dist"), "."],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (source / "dist").glob("slm-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel as it lies in site-packages, and nobody may write there."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)


def slm(installed: Path, folder: Path, *words: str) -> str:
    """The command as the wheel's script starts it, in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from slm.command.main import script; sys.exit(script())", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "SLM_MAKE"}
        | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needed() -> set[str]:
    """Every file of the rooms and of ``configs/``, by its name in the wheel."""
    files = {path for room in (*ROOMS, "configs") for path in (REPOSITORY / room).rglob("*") if path.is_file()}
    names = {str(path.relative_to(REPOSITORY)) for path in files if "__pycache__" not in path.parts}
    return {name if name.startswith("slm/") else f"slm/{name}" for name in names}


def test_the_wheel_holds_every_file_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
        entry_points = next(name for name in file.namelist() if name.endswith("entry_points.txt"))
        assert "slm = slm.command.main:script" in file.read(entry_points).decode()
    assert needed() - inside == set()
    assert inside - needed() == set()
    assert {name.split("/")[0] for name in inside} == {"slm"}
    assert {"slm/configs/train.yaml", "slm/kernels/bf16/tile_amx.h", "slm/serve/api/web/app.js"} <= inside


def test_help_and_plan_work_in_an_empty_folder(installed, tmp_path):
    assert "usage: slm COMMAND" in slm(installed, tmp_path, "--help")
    assert "10m, 125m, 350m" in slm(installed, tmp_path, "train", "--help")
    plan = slm(installed, tmp_path, "plan", "preset=10m", "tokens_per_s=1000")  # nothing is measured
    assert json.loads(plan.splitlines()[-1])["n_params"] == 13636608
    assert not list(tmp_path.iterdir())


def test_a_persons_own_modules_of_our_folders_names_stand_beside_ours(installed, tmp_path):
    """A notebook's or a script's ``train.py`` and ``data/`` next to an installed slm: both are found."""
    (tmp_path / "train.py").write_text("mine = True")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("mine = True")
    code = "import train, data, slm.train.config, slm.data.config; print(train.mine, data.mine, slm.train.__file__)"
    path = f"{tmp_path}{os.pathsep}{installed}"
    assert python(installed, tmp_path, code, PYTHONPATH=path) == f"True True {installed / 'slm/train/__init__.py'}"
    done = subprocess.run(
        [sys.executable, "-m", "slm", "train", "--help"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "10m, 125m, 350m" in done.stdout, done.stderr


@pytest.mark.slow
def test_doctor_works_and_kernels_are_built_in_the_cache(installed, tmp_path):
    out = slm(installed, tmp_path, "doctor", "compile=false", "decode=false")
    assert json.loads(out.splitlines()[-1])["llama_cpp_check"]["fault"] is None
    if compiler(gcc_only=True) is None:
        return
    # A small library into an empty cache, from where nobody may write.
    code = "from slm.kernels.roofline import open_library; print(open_library()._name)"
    built = Path(python(installed, tmp_path, code, XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert built.is_relative_to(tmp_path / "cache")
    assert built.is_file()
    # The kernels' own take half a minute: the wheel's sources make the library that this checkout has built.
    code = "from slm.kernels.choice import choose; v, why = choose('f32'); print(v.build() if v else why)"
    variant, why = choose("f32")
    assert python(installed, tmp_path, code) == str(variant.build() if variant else why)


def python(installed: Path, folder: Path, code: str, **environment: str) -> str:
    """What a line of Python prints that imports the installed packages."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
