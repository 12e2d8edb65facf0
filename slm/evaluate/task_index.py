"""Which of lm-evaluation-harness's folders hold a task, so that the harness need not read them all.

It lists its tasks by parsing all of its 14,000 YAML files, which takes half a minute and more. A plain task is found by
the line ``task: NAME`` of its file instead. What groups, tags and patterns stand for only the whole list says: it is
read once per version of the harness and kept in the cache folder.

Tested in tests/slm/evaluate/test_tasks.py.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data.storage import cache_home
from slm.report import atomic_write_json

_TASK = re.compile(rb"^task:[ \t]*[\"']?([\w.+/-]+)[\"']?[ \t]*\r?$", re.MULTILINE)
_FORMAT = 1


def plain_tasks(root: Path) -> dict[str, list[str]]:
    """Names of tasks -> the folders of ``root`` with a file that names them so; kept in the cache folder."""
    return _kept("names", root, lambda: _scan(root))


def folders_of_all(root: Path, index: Callable[[], Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of tasks, groups and tags -> the folders of ``root`` that hold all they stand for; kept in the cache.

    ``index``: the harness's own index (``TaskManager().task_index``), asked for where nothing is kept.
    """
    return _kept("index", root, lambda: _folders(root, index()))


def _scan(root: Path) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for top in sorted(each for each in root.iterdir() if each.is_dir()):
        for folder, _, files in os.walk(top):
            for name in files:
                if name.endswith(".yaml"):
                    for task in _TASK.findall(Path(folder, name).read_bytes()):
                        found.setdefault(task.decode(), set()).add(top.name)
    return {task: sorted(folders) for task, folders in found.items()}


def _folders(root: Path, index: Mapping[str, Any]) -> dict[str, list[str]]:
    def of(name: str, seen: set[str]) -> set[str]:
        if name in seen or name not in index:
            return set()  # a task that is written down inside its group has no file of its own
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
