"""What makes a training process fit to be one of several: its exit code for torchrun, its folder, its silence.

Tested in tests/train/test_distributed.py.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

from slm.data.errors import UserError, one_line
from slm.data.stream.loader import EndOfTextError
from slm.train.distributed.launch_files import EXIT_FILE, exit_code, in_use
from slm.train.distributed.ranks import LostPeerError, MainRankError, Ranks
from slm.train.guards import NonFiniteError
from slm.train.interrupt import STOP_SIGNALS

STOPPED = tuple(128 + number for number in STOP_SIGNALS)
"""The exit codes of a run that saved because a signal asked it to end."""


def run_rank(ranks: Ranks, root: Path, train: Callable[[Path], int]) -> int:
    """The exit code of ``train(folder)``, where ``folder`` is the run's directory ``root`` on rank 0 only."""

    def run() -> int:
        with _rank_folder(ranks, root) as folder:
            return train(folder)

    return _exit_code(ranks, run)


def _exit_code(ranks: Ranks, run: Callable[[], int]) -> int:
    """The exit code of ``run()``, made fit for torchrun, which restarts all processes after any code but 0.

    A run that ended as it was asked to, or with a mistake that no restart can mend, leaves its code in a file for the
    launcher and exits with 0; everything else keeps its code.
    """
    path = os.environ.get(EXIT_FILE)
    if ranks.size == 1 and path is None:
        return run()
    try:
        code = run()
        ranks.close()
    except MainRankError:
        code = 2
    except LostPeerError as error:
        if path and exit_code(Path(path)) == 2:
            code = 2  # the peer has reported what no restart can mend
        else:
            print(f"rank {ranks.rank}: {error}", file=sys.stderr, flush=True)
            code = 1
    except UserError as error:
        if ranks.main or not isinstance(error, (NonFiniteError, EndOfTextError)):  # every rank raises these
            print("error: " + one_line(error), file=sys.stderr, flush=True)
        code = 2
    if path and code in (0, 2, *STOPPED):
        Path(path).write_text(str(code))
        status = 0
    else:
        status = 0 if code in STOPPED else code
    if code in (1, 2) and ranks.size > 1:
        # gloo's threads are still at work, and would abort an orderly end of the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


@contextmanager
def _rank_folder(ranks: Ranks, root: Path) -> Iterator[Path]:
    """The run's directory on rank 0. Elsewhere a temporary folder, and standard output goes nowhere."""
    with ExitStack() as stack:
        launch = Path(path).parent if (path := os.environ.get(EXIT_FILE)) else None
        if launch is not None:
            stack.enter_context(in_use(launch))
        if ranks.main:
            yield root
            return
        # In the launcher's folder, which is removed even if this process is killed.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slm-rank-", dir=launch))
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(redirect_stdout(nowhere))
        yield Path(folder)
