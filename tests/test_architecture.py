"""The house's rules about who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("data", "slm", "train", "export", "serve")
MAY_IMPORT = {
    "data": {"data"},
    "slm": {"data", "slm"},
    "train": {"data", "slm", "train"},
    "export": {"data", "slm", "export"},
    "serve": {"data", "slm", "serve"},
}


def imported(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def modules(repository: Path, room: str) -> list[Path]:
    found = sorted((repository / room).rglob("*.py"))
    assert found, f"{room} has no modules"
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_downwards(room, repository):
    for path in modules(repository, room):
        for name in imported(path):
            top = name.split(".")[0]
            assert top not in ROOMS or top in MAY_IMPORT[room], f"{path.relative_to(repository)} imports {name}"


def test_one_door_to_llama_cpp(repository):
    doors = [
        str(path.relative_to(repository))
        for room in ROOMS
        for path in modules(repository, room)
        if any(name.split(".")[0] == "llama_cpp" for name in imported(path))
    ]
    assert doors == ["slm/llama/llamacpp.py"]


@pytest.mark.parametrize("room", ["data", "serve"])
def test_light_rooms_load_neither_torch_nor_transformers(room, repository):
    names = [".".join(path.relative_to(repository).with_suffix("").parts) for path in modules(repository, room)]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "heavy = [name for name in ('torch', 'transformers') if name in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
