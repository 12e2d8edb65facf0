"""The files of a source by type, those that are taken and those that are left out, with the reason."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slm.data.config import DataConfig, SourceConfig
from slm.data.sources import files, kinds
from slm.data.sources.compressed import COMPRESSED_SUFFIXES
from slm.data.sources.plan import source_files, validation_files

HIDDEN = "hidden"
VALIDATION = "named by data.val_files"
NO_FILE = "no files (pipes, links to nothing)"
UNREADABLE = "of types that are not read"
NO_RECORDS = "without records of text"
"""Reason for a file left out although its type is read, such as a ``.json`` file of something else."""
NAMED = 3
"""Names of files that a record gives for each reason."""


@dataclass(frozen=True)
class Listing:
    """The files of one source."""

    source: str
    taken: dict[str, list[str]] = field(default_factory=dict)
    """Paths by type, the end of a file's name."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Paths by reason."""

    def bytes(self, kind: str) -> int:
        """Bytes on disk of the files of a type."""
        return sum(os.path.getsize(path) for path in self.taken[kind])

    def line(self) -> str:
        """What is taken and what is left out, in one line. (Those that have no reader are named where folders are
        looked into, ``slm.data.sources.files.expand``.)"""
        taken = ", ".join(f"{len(paths):,} {kind} ({_size(self.bytes(kind))})" for kind, paths in self.taken.items())
        text = f"files of {self.source}: {taken or 'none'}"
        others = {why: paths for why, paths in self.left_out.items() if why in (HIDDEN, VALIDATION)}
        if others:
            text += "; left out: " + "; ".join(f"{_what(why, paths)}" for why, paths in others.items())
        return text

    def record(self) -> dict[str, Any]:
        """Counts as plain values, and by reason the first names of what is left out."""
        return {
            "taken": {kind: {"files": len(paths), "bytes": self.bytes(kind)} for kind, paths in self.taken.items()},
            "left_out": {why: len(paths) for why, paths in self.left_out.items()},
            "left_out_names": {
                why: sorted(map(os.path.basename, paths))[:NAMED] for why, paths in self.left_out.items()
            },
        }


def list_files(source: SourceConfig) -> Listing | None:
    """The files of a source; None for one that has none, or was prepared from them. UserError for what cannot be found.

    In folders, every file that is not taken is left out with a reason. What a glob does not match is not listed.
    """
    if source.kind not in ("files", "chat") or not source.files or source.prepared:
        return None
    apart = {os.path.realpath(path) for path in (validation_files(source) if source.val_files else ())}
    listing = Listing(source.label)
    taken = set()
    for path in source_files(source):
        if os.path.realpath(path) in apart:
            listing.left_out.setdefault(VALIDATION, []).append(path)
        else:
            listing.taken.setdefault(kind_of(path), []).append(path)
            taken.add(os.path.realpath(path))
    for pattern in source.files:
        folder = os.path.expanduser(pattern)
        for path in _inside(folder) if os.path.isdir(folder) else ():
            real = os.path.realpath(path)
            if real not in taken and real not in apart:
                taken.add(real)
                listing.left_out.setdefault(_reason(path, source), []).append(path)
    return listing


def show_files(config: DataConfig, log: Callable[[str], None]) -> None:
    """Print the files of all sources, a line each; once in a process for the same files."""
    for source in config.all_sources():
        if (listing := list_files(source)) is not None:
            _show_once(listing.line(), log)


def check_files(config: DataConfig) -> None:
    """UserError where a source's files are not there, or none of them is of a kind that is read; in a part of a second.
    For what takes long before it comes to the text."""
    for source in config.all_sources():
        list_files(source)


@functools.lru_cache(maxsize=64)
def _show_once(line: str, log: Callable[[str], None]) -> None:
    log(line)


def kind_of(path: str) -> str:
    """The type of a file by the end of its name: ``.md``, ``.jsonl.gz``; ``without an ending``."""
    name = os.path.basename(path).lower()
    packed = next((suffix for suffix in COMPRESSED_SUFFIXES if name.endswith(suffix)), "")
    kind = os.path.splitext(name.removesuffix(packed))[1] + packed
    return kind or "without an ending"


def _inside(folder: str) -> list[str]:
    """The files below a folder; of hidden folders only their own names."""
    found = []
    for root, folders, names in os.walk(folder):
        found += [os.path.join(root, name) for name in folders if name.startswith(".")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(root, name) for name in sorted(names)]
    return found


def _reason(path: str, source: SourceConfig) -> str:
    if os.path.basename(path).startswith("."):
        return HIDDEN
    if not os.path.isfile(path):  # opening a pipe would wait for somebody to write into it
        return NO_FILE
    readable = (*kinds.RECORDS, *kinds.TABLES) if source.is_chat else kinds.READERS
    return NO_RECORDS if kinds.file_format(path) in readable else UNREADABLE


def _what(why: str, paths: list[str]) -> str:
    """How many files are left out for one reason, and the first names."""
    return f"{len(paths):,} {why} ({files.few_names([os.path.basename(path) for path in paths])})"


def _size(n_bytes: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} bytes"
