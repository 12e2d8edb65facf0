"""``python -m slm.doctor``: examine this machine, and print what was found, what will be used, and what would help."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

from slm import cli
from slm.configuration import load
from slm.doctor.advice import advice
from slm.doctor.examine import examine
from slm.doctor.tables import choice_rows, machine_rows
from slm.machine import hardware
from slm.machine.busy import Others, mark
from slm.report import final_json, screen_width, table


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """configs/doctor.yaml."""

    runs_dir: Path = Path("runs")
    compile: bool = True
    decode: bool = True


def main(argv: list[str]) -> int:
    """Measure, print the tables and the JSON line. ``runs_dir=DIR``; ``compile=false``, ``decode=false`` leave those
    trials out."""
    options = load(DoctorOptions, "doctor", argv)
    hardware.share_cores()
    others = Others()
    record = examine(options.runs_dir, try_compile=options.compile, time_decoding=options.decode)
    record["others_share"] = others.share()
    table("This machine" + mark(record["others_share"]), ["what", "found"], machine_rows(record))
    table("What will be used", ["stage", "choice"], choice_rows(record))
    hints = advice(record)
    print("For more:" if hints else "Nothing to install or change.")
    for hint in hints:
        lines = textwrap.wrap(hint, screen_width() - 4, break_on_hyphens=False, break_long_words=False)
        print("\n".join(["  - " + lines[0], *(f"    {line}" for line in lines[1:])]))
    final_json(record | {"advice": hints})
    return 0


if __name__ == "__main__":
    cli.run(main)
