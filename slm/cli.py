"""The edge of every command: a person's mistake becomes one line, everything else stays a defect. And how messages
spell a command that they advise."""

import codecs
import locale
import os
import shlex
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from slm import early_interrupt, late_interrupt
from slm.data.errors import UserError, one_line

EXIT_USER_ERROR = 2
JSON = "SLM_JSON"
"""The environment variable that carries ``json=``: true or false."""

_OF_MAKE = {
    "data": "DATA",
    "preset": "CONFIG",
    "budget": "BUDGET",
    "run": "MODEL",
    "model": "MODEL",
    "base": "MODEL",
    "init_from": "MODEL",
    "quant": "QUANT",
    "port": "PORT",
    "to": "TO",
    "nproc": "NPROC",
    "tasks": "TASKS",
}


_BARE = ("run", "model", "base", "init_from", "data", "quant")
"""Options with values that are understood without a name, in the order in which they are typed."""


def spelled(command: str, **options: object) -> str:
    """A command as this person would type it: ``slm export runs/a q8_0``, and with make's variables
    ``make export MODEL=runs/a QUANT=q8_0``. The Makefile sets ``SLM_MAKE``.

    ``__`` in an option's name stands for a point.
    """
    named = {name.replace("__", "."): str(value) for name, value in options.items()}
    if not os.environ.get("SLM_MAKE"):
        bare = [name for name in _BARE if name in named and "=" not in named[name]]
        words = [*(named[name] for name in bare), *(f"{name}={named[name]}" for name in named if name not in bare)]
        return shlex.join(["slm", command, *words])
    variables = [f"{_OF_MAKE[name]}={shlex.quote(value)}" for name, value in named.items() if name in _OF_MAKE]
    others = [shlex.quote(f"{name}={value}") for name, value in named.items() if name not in _OF_MAKE]
    return " ".join(["make", command, *variables, *([f'ARGS="{" ".join(others)}"'] if others else [])])


def _without_json(words: list[str]) -> list[str]:
    """The words without ``json=``, which every command has: ``slm.report.final_json`` and child processes read it."""
    for word in words:
        key, _, value = word.partition("=")
        if key == "json":
            if value not in ("true", "false"):
                raise UserError(f"json is true or false, not {value!r}: whether the results are printed as JSON, too")
            os.environ[JSON] = value
    return [word for word in words if not word.startswith("json=")]


def _use_utf8() -> None:
    """Start this command again in Python's UTF-8 mode, if the locale says that text files are something else.

    PyTorch and others read their own files in the locale's encoding, so a run would die in the middle.
    """
    if not sys.flags.utf8_mode and codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def run(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> NoReturn:
    """Run ``main(arguments)`` and exit: 0 on success (or what it returned), 2 on a UserError, 130 on Ctrl-C.

    The word ``json=`` is taken away and kept for the end. ``SLM_DEBUG=1`` lets the traceback of a UserError through.
    """
    if argv is None:
        _use_utf8()
    try:
        early_interrupt.give_back()
        if argv is None:
            late_interrupt.watch()
        status = main(_without_json(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except UserError as error:
        if os.environ.get("SLM_DEBUG"):
            raise
        sys.stdout.flush()
        print("error: " + one_line(error), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        # A second Ctrl-C would end Python in the middle of its end, with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("interrupted", file=sys.stderr)
        sys.exit(early_interrupt.EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe is gone (`... | head`): there is nobody to report to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status or 0)
