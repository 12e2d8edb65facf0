"""Files that appear whole or not at all: written under another name, flushed to the disk, renamed into place."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from slm.report import finite


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 so that ``path`` holds either the old content or all of the new, never a part."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to a temporary file next to ``path``, flush it to the disk, then rename it into place."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide results from a group
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def atomic_write_json(path: str | Path, record: Any) -> None:
    """``record`` as indented strict JSON, written as ``atomic_write_text`` does."""
    text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False, indent=2)
    atomic_write_text(path, text + "\n")


def fsync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
