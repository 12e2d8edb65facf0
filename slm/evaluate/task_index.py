"""Which of lm-evaluation-harness's folders hold a task, so that the harness need not read them all.

It lists its tasks by parsing all of its 14,000 YAML files, which takes half a minute and more. A plain task is found by
the line ``task: NAME`` of its file instead, and a name that stands nowhere in them is none. What groups, tags and
patterns stand for only the whole list says: it is read once per version of the harness and kept in the cache folder.

Tested in tests/slm/evaluate/test_tasks.py.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slm.data.storage import cache_home
from slm.report import atomic_write_json

_TASK = re.compile(rb"^task:[ \t]*[\"']?([\w.+/-]+)[\"']?[ \t]*\r?$", re.MULTILINE)
_NAMED = re.compile(rb"^[ \t]*(?:-[ \t]+)?[\"']?(?:task|group|tag)[\"']?:[ \t]*([^\s#\[{|>&*!][^#\n]*)", re.MULTILINE)
_TAG_ROW = re.compile(rb"^[\"']?tag[\"']?:[ \t]*\[([^\]]*)\]", re.MULTILINE)
_TAG_LINES = re.compile(rb"^[\"']?tag[\"']?:[ \t]*(?:#.*)?\r?\n((?:[ \t]*-[ \t].*(?:\n|\Z))+)", re.MULTILINE)
_WORD = re.compile(rb"[\w.+/-]*\w[\w.+/-]*")
_FORMAT = 1


def harness_folder() -> Path:
    """The folder of the harness's tasks. It has to be installed; nothing of it is imported."""
    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "tasks"


def written_names(root: Path) -> dict[str, list[str]]:
    """Names of tasks -> the folders of ``root`` with a file that names them so; kept in the cache folder.

    Names of groups and tags are there, too, without a folder.
    """
    return _kept("written", root, lambda: scan(root))


def folders_of_all(root: Path, index: Callable[[], Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of tasks, groups and tags -> the folders of ``root`` that hold all they stand for; kept in the cache.

    ``index``: the harness's own index (``TaskManager().task_index``), asked for where nothing is kept.
    """
    return _kept("index", root, lambda: _folders(root, index()))


def scan(root: Path) -> dict[str, list[str]]:
    """The same, read from the files now."""
    found: dict[str, set[str]] = {}
    for folder, _, files in os.walk(root):
        top = Path(folder).relative_to(root).parts[:1]
        for name in files:
            if Path(name).suffix in ("", ".yaml"):  # a template that others include is often called "_template"
                text = Path(folder, name).read_bytes()
                for each in _names_in(text):
                    found.setdefault(each.decode(errors="replace"), set())
                for task in _TASK.findall(text) if top and name.endswith(".yaml") else ():
                    found[task.decode()].add(top[0])
    return {name: sorted(folders) for name, folders in found.items()}


def _names_in(text: bytes) -> Iterable[bytes]:
    """Names of tasks, groups and tags in a file, and perhaps other words."""
    for rest in _NAMED.findall(text):
        yield rest.strip().strip(b"\"'")
    for pattern in (_TAG_ROW, _TAG_LINES):
        for part in pattern.findall(text):
            yield from _WORD.findall(part)


def _folders(root: Path, index: Mapping[str, Any]) -> dict[str, list[str]]:
    def of(name: str, seen: set[str]) -> set[str]:
        if name in seen or name not in index:
            return set()  # a task that is written down inside its group has no file
        seen.add(name)
        entry = index[name]
        tops: set[str] = set()
        if entry.yaml_path is not None:
            tops.add(Path(entry.yaml_path).relative_to(root).parts[0])
        members = set(entry.tags) if entry.yaml_path is None else set(_members((entry.cfg or {}).get("task")))
        return tops.union(*(of(each, seen) for each in members))

    return {name: sorted(of(name, set())) for name in index}


def _members(task: Any) -> Iterable[str]:
    """Names in a group's list of tasks, those of groups inside it among them."""
    for each in task if isinstance(task, list) else ():
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from (each[key] for key in ("task", "group") if isinstance(each.get(key), str))
            yield from _members(each.get("task"))


def _kept(what: str, root: Path, find: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    key = hashlib.sha256(json.dumps([_FORMAT, version("lm_eval"), str(root)]).encode()).hexdigest()[:16]
    path = cache_home() / "lm_eval" / f"{what}-{key}.json"
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            return kept
    found = find()
    with contextlib.suppress(OSError):  # it is found again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(path, found)
    return found
