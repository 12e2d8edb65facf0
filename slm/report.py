"""What is measured, shown to a person as a table and to a program as one line of JSON, last."""

import json
import math
import os
import platform
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

VERSIONED = ("torch", "llama-cpp-python", "gguf", "tokenizers", "tiktoken", "datasets", "numpy")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str | None = None) -> None:
    """Print ``rows`` under ``columns``: text left, numbers right. Wide enough even where there is no terminal."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in rows) if rows else False
        grid.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*("" if cell is None else str(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(grid)


def _is_number(cell: Any) -> bool:
    text = "" if cell is None else str(cell).replace("±", " ").replace(",", "").replace("%", "")
    try:
        return all(math.isfinite(float(part)) or True for part in text.split())
    except ValueError:
        return False


def plain(text: str) -> str:
    """Text that can do nothing to a terminal: control characters become a visible sign, line ends stay."""
    keep = {"\n": "\n", "\t": "    "}
    return "".join(keep.get(c, "\N{REPLACEMENT CHARACTER}") if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in text)


def final_json(record: Any) -> None:
    """Print ``record`` as one line of strict JSON (NaN and infinities become null): a command's last line."""
    print(json.dumps(finite(record), ensure_ascii=False, allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    """``value`` with every float that JSON cannot hold replaced by None, recursively."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 so that ``path`` holds either the old content or all of the new, never a part."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to a temporary file beside ``path``, flush it to the disk, then rename it into place."""
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
    """``record`` as indented strict JSON, written as :func:``atomic_write_text`` does."""
    text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False, indent=2)
    atomic_write_text(path, text + "\n")


def fsync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cpu_name() -> str:
    """The processor's own name, as the operating system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_record() -> dict[str, Any]:
    """Where a measurement was made: processor, usable cores, memory (GiB), system, and versions that matter."""
    import psutil

    from slm.machine.hardware import n_threads

    versions = {}
    for package in VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_name(),
        "cores": n_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }
