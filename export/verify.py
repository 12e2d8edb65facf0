"""``python -m slm.export.verify run=RUN``: whether exported files still hold the bytes that the export wrote.

Exit status 1 with a line for each file that does not.
"""

import sys
from pathlib import Path

from slm import cli, runs
from slm.configuration import load
from slm.data.errors import UserError
from slm.export.config import VerifyConfig
from slm.exported import RECORD_FILE, damage, recorded_sums, renewal, shown
from slm.hub import models
from slm.hub.name import hub_name
from slm.report import final_json

EXIT_DAMAGED = 1


def main(argv: list[str]) -> int:
    """Check, report. Returns the exit status."""
    return verify(export_folder(load(VerifyConfig, "verify", argv, literal=("run",)).run))


def export_folder(path: Path) -> Path:
    """The folder of an export: the one named, or that of the run named. UserError where there is no such thing."""
    path = runs.place(path)
    if (path / RECORD_FILE).is_file():
        return path
    name = None if path.exists() else hub_name(path)
    return models.made_folder(name) / "gguf" if name else runs.resolve(path).gguf_dir


def verify(folder: Path) -> int:
    """Print a line for every file of the folder; returns the exit status."""
    sums = recorded_sums(folder)
    if not sums:
        renew = renewal(folder, folder.glob("*.gguf"))
        raise UserError(f"{folder / RECORD_FILE} is missing or holds no SHA-256 to check files against; {renew}")
    damaged = []
    for name, expected in sorted(sums.items()):
        line = damage(folder / name, expected)
        if line is None:
            print(f"{name}: as exported", flush=True)
        else:
            damaged.append(name)
            sys.stdout.flush()
            print(line, file=sys.stderr, flush=True)
    for path in sorted(folder.glob("*.gguf")):
        if path.name not in sums:
            print(f"{path.name}: not checked, {RECORD_FILE} holds no SHA-256 of it")
    if damaged:
        print(f"{len(damaged)} of {len(sums)} files in {shown(folder)} are damaged or missing")
    else:
        print(f"{len(sums)} {'file' if len(sums) == 1 else 'files'} in {shown(folder)} checked")
    final_json({"folder": str(folder), "checked": sorted(sums), "damaged": damaged})
    return EXIT_DAMAGED if damaged else 0


if __name__ == "__main__":
    cli.run(main)
