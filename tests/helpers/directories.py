"""What other processes do with a run's directory in tests. For ``Program(prepare=...)``: each ends the process."""

import os
import sys
from pathlib import Path

from slm.data.errors import UserError
from slm.train.run.run_directory import RunDirectory


def start_anew(root: Path, times: int) -> None:
    """So often, wait for the directory, find it empty, and leave a run of this process there."""
    me, done = str(os.getpid()), 0
    while done < times:
        try:
            with RunDirectory(root, keep_after=LookupError) as directory:
                directory.open(anew=True)
                assert not (root / "config.yaml").exists()
                directory.accept()
                (root / "owner").write_text(me)
                (root / "config.yaml").write_text(me)
                assert (root / "owner").read_text() == (root / "config.yaml").read_text() == me
                done += 1
        except UserError as error:
            if "another process" not in str(error):
                raise
    sys.exit()


def open_as_nobody(roots: tuple[Path, ...]) -> None:
    """Print why a user without rights cannot use each directory."""
    if os.geteuid() == 0:  # root may write everywhere
        os.setgid(65534)
        os.setuid(65534)
    for root in roots:
        try:
            with RunDirectory(root, keep_after=LookupError) as directory:
                directory.open(anew=False)
        except UserError as error:
            print(error)
    sys.exit()
