"""The rows of a sweep that were measured before: a stopped sweep goes on where it was.

Rows are kept for one question only: the same checkpoint, texts, options and build. Another question starts anew.

Tested in tests/export/bench/test_sweep.py.
"""

import hashlib
import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from slm.export.bench.reference import FileResult
from slm.llama.verdict import build_stamp
from slm.report import atomic_write_json

FOLDER = "quantization"
"""In the run's directory: the rows, and the page that shows them."""
_FILE = "rows.json"


class KeptRows:
    """Rows by label, in a file that is written after each new one."""

    def __init__(self, folder: Path, question: dict[str, Any]) -> None:
        """``question``: all that a row depends on."""
        self.path = folder / _FILE
        text = json.dumps([question, build_stamp()], sort_keys=True, default=str)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.rows: dict[str, FileResult] = {}
        self.choices: dict[str, dict[str, Any]] = {}
        self.unmet: dict[str, str] = {}
        """Goals that no file of the model meets: label -> why."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["key"] == self.key:
                self.rows = {label: FileResult(**_numbers(row)) for label, row in kept["rows"].items()}
                self.choices = dict(kept["choices"])
                self.unmet = dict(kept.get("unmet", {}))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # there are none, or of another version

    def add(self, label: str, row: FileResult, choice: dict[str, Any] | None = None) -> None:
        """Keep a row, on the disk at once."""
        self.rows[label] = row
        if choice is not None:
            self.choices[label] = choice
        self._write()

    def leave_out(self, label: str, why: str) -> None:
        """Keep that there will be no such row, on the disk at once."""
        self.unmet[label] = why
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: asdict(each) for name, each in self.rows.items()}
        content = {"key": self.key, "rows": rows, "choices": self.choices, "unmet": self.unmet}
        atomic_write_json(self.path, content)


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it was: JSON has null for a figure that is not a number."""
    optional = {each.name for each in fields(FileResult) if "None" in str(each.type)}
    return {name: math.nan if value is None and name not in optional else value for name, value in row.items()}


def fingerprint(path: Path) -> list[Any]:
    """What changes when a checkpoint's weights do: its manifest's content, else the weights' size and time."""
    manifest = path / "manifest.json"
    if manifest.is_file():
        return [hashlib.sha256(manifest.read_bytes()).hexdigest()]
    return [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in sorted(path.glob("*.safetensors"))]
