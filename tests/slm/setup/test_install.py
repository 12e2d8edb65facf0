"""What is installed from where. Nothing is downloaded here: what cannot be reached is a port where nobody listens."""

import os
import platform
import sys
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.setup import __main__ as setup
from slm.setup import install
from tests.helpers import REPOSITORY

PIP = [sys.executable, "-m", "pip", "install"]
UV = ["/usr/bin/uv", "pip", "install"]
NOWHERE = "http://127.0.0.1:9/whl/cpu"


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(install.index.time, "sleep", lambda _: None)


def test_the_cpu_build_is_asked_for_where_its_index_answers(tmp_path):
    (tmp_path / "torch").mkdir()
    url = f"file://{tmp_path}"
    assert install.torch_source(PIP, url) == (["--index-url", url], "")
    assert install.torch_source(UV, url) == (["--default-index", url], "")


@pytest.mark.parametrize(
    ("coming", "said"),
    [
        ("cuda", "with CUDA: 2.7 GB to download and 4.8 GB on disk. Ctrl-C stops here; TORCH_INDEX=URL names a mirror"),
        ("cpu", "has a build without CUDA, which is taken"),
        (None, "usually comes with CUDA: 2.7 GB"),
    ],
)
def test_a_line_says_what_comes_where_it_does_not(monkeypatch, coming, said):
    monkeypatch.setattr(install, "what_comes", lambda *_: coming)
    options, line = install.torch_source(PIP, NOWHERE)
    assert options == []
    assert line.startswith(f"{NOWHERE}, the index of torch's CPU builds, cannot be reached (Connection refused).")
    assert said in line
    assert "\n" not in line


def test_elsewhere_the_ordinary_index_has_no_cuda(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert install.torch_source(PIP, NOWHERE) == ([], "")


def wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    import zipfile

    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(("requires", "coming"), [("Requires-Dist: nvidia_cublas\n", "cuda"), ("", "cpu")])
def test_pip_itself_says_what_comes(tmp_path, monkeypatch, requires, coming):
    wheel(tmp_path, "toy_torch", "2.13.0", requires)
    wheel(tmp_path, "nvidia_cublas", "13.0")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    tool = [*PIP, "--quiet", "--no-index", "--find-links", str(tmp_path), "--ignore-installed"]
    assert install.what_comes(tool, "toy_torch") == coming
    assert install.what_comes(tool, "no_such_package") is None


def test_only_a_torch_that_the_project_takes_counts(monkeypatch):
    """Another one would be replaced by that of the ordinary index, which has CUDA."""
    assert install._has_torch(PIP)
    monkeypatch.setattr(install, "torch_requirement", lambda: "torch==1.0.0")
    assert not install._has_torch(PIP)


def test_torch_is_the_one_of_pyproject():
    assert install.torch_requirement().startswith("torch>=2.")


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    python = Path(".venv/bin/python")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "--no-cache-dir" not in install.installer(python, None)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert "--no-cache-dir" in install.installer(python, None)
    assert install.installer(python, "uv")[-1] == "--no-cache"


def test_the_options_of_set_up():
    assert setup.parse(["venv=x", "torch_index="])["torch_index"] == setup.OPTIONS["torch_index"]
    with pytest.raises(UserError, match="did you mean 'torch_index'"):
        setup.parse(["torchindex=x"])
    with pytest.raises(UserError, match="check must be yes, no or only"):
        setup.parse(["check=maybe"])
