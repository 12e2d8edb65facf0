"""The edge of every command: a person's mistake becomes one line, everything else stays a defect."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from data.errors import UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def run(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> NoReturn:
    """Run ``main(arguments)`` and exit: 0 on success (or what it returned), 2 on a UserError, 130 on Ctrl-C.

    ``SLM_DEBUG=1`` lets the traceback of a UserError through.
    """
    try:
        status = main(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        if os.environ.get("SLM_DEBUG"):
            raise
        sys.stdout.flush()
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe is gone (`... | head`): there is nobody to report to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status or 0)
