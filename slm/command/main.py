"""``slm COMMAND [key=value ...]``: finds the sub-command and hands over to it.

A sub-command is run as ``python -m MODULE`` would run it, in this process. It is named in a table, and not imported:
``train``, ``export`` and ``serve`` stand above this room, and the help needs none of their libraries.
"""

import os
import runpy
import sys
from typing import NoReturn

from slm import cli
from slm.command import grammar
from slm.command.table import COMMANDS
from slm.data.errors import UserError, nearest
from slm.setup import llama

LAUNCHER = "slm.train.distributed.launch"
WITHOUT_LLAMA = (
    "train",
    "demo",
    "plan",
    "sweep",
    "data-stats",
    "prepare",
    "watch",
    "report",
    "doctor",
    "publish",
    "checkpoint",
    "verify",
    "studio",
)
"""Commands that may run while set-up is still building llama.cpp; a run that needs it asks by itself."""
SHELLS = ("bash", "zsh", "fish")


def script() -> NoReturn:
    """The installed command."""
    # Child processes find our packages even where the current folder has another train.py or data/, as this
    # process does: an installed command does not look for modules there, and `python -m` would.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    cli.run(main)


def main(argv: list[str]) -> int:
    """Run the sub-command that ``argv`` names. Returns the exit status, or exits as the sub-command does.

    ``UserError`` for a sub-command that there is not.
    """
    name, words = (argv[0], argv[1:]) if argv else ("--help", [])
    if name == "--candidates":  # for the completion scripts
        from slm.command.completion import candidates

        print("\n".join(candidates(words[:-1], words[-1] if words else "")))
        return 0
    if name in ("--version", "-V", "version"):
        print(f"slm {version()}")
        return 0
    if name in ("--help", "-h", "help"):
        return _help(words)
    if name == "completion":
        return _completion(words)
    if name not in COMMANDS:
        raise UserError(unknown(name))
    if any(word in ("-h", "--help") or word.startswith("help=") for word in words):
        asked = [word.removeprefix("help=") for word in words if word.startswith("help=")]
        return _help([name, *(asked or [word for word in words if word.isidentifier()][:1])])
    module, words = target(name, words)
    if name not in WITHOUT_LLAMA:
        llama.wait()
    sys.argv = [name, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def target(name: str, words: list[str]) -> tuple[str, list[str]]:
    """The module to run for a sub-command, and its ``key=value`` words.

    ``slm train`` with more than one process or machine goes to the launcher.
    """
    command = COMMANDS[name]
    words = grammar.read(name, words)
    given = {word.partition("=")[0] for word in words}
    words = [*(word for word in command.defaults if word.partition("=")[0] not in given), *words]
    if name == "train":
        alone = [word for word in words if word not in ("nproc=1", "nnodes=1")]
        if any(word.startswith(("nproc=", "nnodes=")) for word in alone):
            return LAUNCHER, words
        return command.module, alone
    return command.module, words


def unknown(name: str) -> str:
    """The message about a sub-command that there is not."""
    if "=" in name:
        return f"{name!r} comes after a command, as in slm train {name}; slm --help lists the commands"
    return f"there is no command {name!r}; {nearest(name, [*COMMANDS, 'completion'], n=1) or 'slm --help lists them'}"


def version() -> str:
    """The installed version."""
    from importlib import metadata

    try:
        return metadata.version("slm")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _help(words: list[str]) -> int:
    from slm.command import help

    if not words:
        print(help.overview(version()))
    elif words[0] in COMMANDS:
        help.print_command(words[0], words[1] if len(words) > 1 else "")
    else:
        raise UserError(unknown(words[0]))
    return 0


def _completion(words: list[str]) -> int:
    from slm.command.completion import shell_script

    if len(words) != 1 or words[0] not in SHELLS:
        if words and words[0] not in ("-h", "--help"):
            hint = nearest(words[0], SHELLS, n=1)
            raise UserError(f"there is no completion for {words[0]!r}; {hint or 'it is one of: ' + ', '.join(SHELLS)}")
        from slm.command.help import COMPLETION

        print(COMPLETION)
        return 0
    print(shell_script(words[0]), end="")
    return 0
