"""The rules about who may import whom, which tests which, and how large a folder may grow."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

ROOMS = ("data", "slm", "train", "export", "serve", "studio")
"""Folders at the top. All but ``slm`` are sub-packages of ``slm`` by name: ``data/`` is ``slm.data``. These tests name
every module by its place: ``data.stream.packing`` is ``slm.data.stream.packing`` in ``data/stream/packing.py``."""
STAGES = tuple(room for room in ROOMS if room != "slm")
MAY_IMPORT = {
    "data": {"data"},
    "slm": {"data", "slm"},
    "train": {"data", "slm", "train"},
    "export": {"data", "slm", "export"},
    "serve": {"data", "slm", "serve"},
    "studio": {"data", "slm", "studio"},
}
ORDER = {
    "data": (
        *("errors", "bad_records", "unicode_scripts", "config", "readers", "tales", "tokenizers", "chat", "quality"),
        *("sources", "stream", "account", "prepare", "statistics"),
    ),
    "slm": (
        "setup",
        "report",
        "machine",
        "model",
        "kernels",
        "llama",
        "vocabulary",
        "from_gguf",
        "hub",
        "evaluate",
        "doctor",
        "api",
        "command",
        "__main__",
    ),
    "slm.kernels": (
        *("checked", "native", "gradients", "low_rank", "packed", "workspace", "operations", "forward", "head"),
        *("backward", "fused", "self_check", "choice"),
    ),
    "train": (
        *("phases", "config", "resolve", "run_lock", "guards", "interrupt", "predict", "optim"),
        *("qat", "memory", "environment", "report", "run", "backend", "distributed", "lora", "objective", "step"),
        *(
            "validation",
            "parts",
            "components",
            "loop",
            "trainer",
            "beginning",
            "start",
            "autobatch",
            "budget",
            "tune",
            "sweep",
            "bench_recipe",
            "tools",
            "__main__",
        ),
    ),
    "export": ("target", "config", "gguf", "auto", "rounding", "pipeline", "interchange", "bench"),
    "serve": ("grammar", "tools", "engine", "chat_template", "config", "pool", "api", "__main__"),
    "serve.api": ("errors", "core", "openai", "anthropic", "native", "ollama", "routes", "app", "server"),
}
"""Folders and modules from the bottom to the top: each may import only what stands before it. Those that are not named
may stand anywhere, as long as there is no circle."""
MOST_MODULES = 16
"""In one folder, ``__init__`` and ``__main__`` not counted."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the rooms by its place; a package stands for its ``__init__``."""
    found = {}
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    assert len(found) > 100
    return found


@cache
def imported(path: Path) -> frozenset[str]:
    """Every name a file imports, anywhere in it: ``a.b`` for ``import a.b``, ``a.b.c`` for ``from a.b import c``.

    Those of our stages are places.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(map(place, names))


def place(name: str) -> str:
    """Where the module of that name stands: ``data.config`` for ``slm.data.config``.

    ``slm.model`` is itself, and a stage named without ``slm.`` is nobody's module.
    """
    first, _, rest = name.partition(".")
    if first in STAGES:
        return f"not slm: {name}"
    return rest if first == "slm" and rest.split(".")[0] in STAGES else name


def module_name(name: str) -> str:
    """The name by which the module at a place is imported."""
    return f"slm.{name}" if name.split(".")[0] in STAGES else name


@cache
def graph() -> dict[str, frozenset[str]]:
    """Which modules each module imports. A name inside a module counts as that module."""
    edges = {}
    for name, path in modules().items():
        targets = set()
        for target in imported(path):
            while target and target not in modules():
                target = target.rpartition(".")[0]
            if target and target != name and target not in ROOMS:
                targets.add(target)
        edges[name] = frozenset(targets)
    return edges


def circles(edges: dict[str, frozenset[str]] | dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components of two nodes or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in edges:
        if node not in index:
            visit(node)
    return found


def folder_graph(folder: str) -> dict[str, set[str]]:
    """What stands directly in ``folder`` (a dotted name) as nodes: a subfolder is one node with all that it holds."""
    edges: dict[str, set[str]] = defaultdict(set)
    prefix = f"{folder}."

    def node(name: str) -> str:
        return name.removeprefix(prefix).split(".")[0]

    for name, targets in graph().items():
        if name.startswith(prefix):
            edges[node(name)] |= {node(t) for t in targets if t.startswith(prefix)} - {node(name)}
    return edges


def folders() -> list[str]:
    return sorted({name.rpartition(".")[0] for name in modules() if "." in name})


def test_the_circle_finder_finds_circles():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_downwards(room):
    for name, path in modules().items():
        if name.split(".")[0] == room:
            for target in imported(path):
                top = target.split(".")[0]
                assert top not in ROOMS or top in MAY_IMPORT[room], f"{name} imports {target}"


def test_every_module_of_ours_is_imported_by_its_name_in_slm():
    """A person's own ``train.py`` or ``data/`` would be imported in place of a stage named without ``slm.``."""
    files = [*modules().values(), *(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "examples").rglob("*.py")]
    wrong = {str(path.relative_to(REPOSITORY)): n for path in files for n in imported(path) if n.startswith("not slm")}
    assert not wrong


def test_no_module_is_in_an_import_circle():
    assert circles(graph()) == []


@pytest.mark.parametrize("folder", folders())
def test_no_folder_is_in_an_import_circle(folder):
    """Folders as wholes, too: what a folder holds is on one side of every neighbour."""
    assert circles(folder_graph(folder)) == []


@pytest.mark.parametrize("folder", ORDER)
def test_folders_import_only_what_stands_before_them(folder):
    order = ORDER[folder]
    edges = folder_graph(folder)
    assert set(order) <= set(edges), f"not in {folder}: {set(order) - set(edges)}"
    for upper in order:
        later = set(order[order.index(upper) + 1 :])
        assert not edges[upper] & later, f"{folder}.{upper} imports {edges[upper] & later}, which stand above it"


@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama", "native"])
def test_apis_translate_to_the_core_and_know_nothing_of_each_other(name):
    others = {"openai", "anthropic", "ollama", "native"} - {name}
    edges = folder_graph("serve.api")
    assert "core" in edges[name]
    assert not edges[name] & others
    assert not edges["core"] & (others | {name, "routes"})


@pytest.mark.parametrize("folder", folders())
def test_no_folder_is_a_heap(folder):
    inside = [name for name in modules() if name.rpartition(".")[0] == folder]
    plain = [name for name in inside if modules()[name].name not in ("__init__.py", "__main__.py")]
    assert len(plain) <= MOST_MODULES, f"{folder} holds {len(plain)} modules"


def test_one_door_to_llama_cpp():
    doors = {name for name, path in modules().items() if any(t.split(".")[0] == "llama_cpp" for t in imported(path))}
    assert doors
    assert all(name.startswith("slm.llama.") for name in doors), doors


@pytest.mark.parametrize("room", ["data", "serve", "studio"])
def test_light_rooms_load_neither_torch_nor_transformers(room):
    inside = [name for name in modules() if name.split(".")[0] == room and not name.endswith("__main__")]
    names = [module_name(name) for name in inside]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "heavy = [name for name in ('torch', 'transformers') if name in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def mirrored(name: str) -> Path:
    """Where a module's test is expected: ``data.stream.packing`` has ``tests/data/stream/test_packing.py``."""
    *folders_of, leaf = name.split(".")
    return Path("tests", *folders_of, f"test_{leaf}.py")


def test_every_module_has_a_test_of_its_name_or_says_where_it_is_tested():
    missing = []
    for name, path in modules().items():
        if path.name in ("__init__.py", "__main__.py") or (REPOSITORY / mirrored(name)).is_file():
            continue
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        said = re.search(r"^Tested in (tests/\S+\.py(?:, tests/\S+\.py)*)\.$", doc, re.MULTILINE)
        if not said:
            missing.append(f"{name}: no {mirrored(name)}, and no line 'Tested in tests/....py.' in its docstring")
            continue
        gone = [each for each in said.group(1).split(", ") if not (REPOSITORY / each).is_file()]
        missing += [f"{name}: tested in {each}, which does not exist" for each in gone]
    assert not missing, "\n".join(missing)
