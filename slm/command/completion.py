"""Completion of ``slm`` command lines: commands, options, choices of groups, file names.

The scripts in ``shells/`` ask ``slm --candidates WORD... CURRENT``, which prints one candidate per line.
"""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from slm.command.option_names import options
from slm.command.table import COMMANDS, SEVERAL
from slm.options import CONFIG_DIR, choices

_SCRIPTS = {"bash": "slm.bash", "zsh": "slm.zsh", "fish": "slm.fish"}


def shell_script(shell: str) -> str:
    """The completion script for ``bash``, ``zsh`` or ``fish``."""
    return (Path(__file__).parent / "shells" / _SCRIPTS[shell]).read_text(encoding="utf-8")


def candidates(words: list[str], current: str) -> list[str]:
    """What may stand in place of ``current``, after ``words`` (without ``slm`` itself), each as a whole word."""
    if not words:
        return _beginning(current, [*COMMANDS, "completion", "help", "--help", "--version"])
    name = words[0]
    if name == "help":
        return _beginning(current, COMMANDS)
    if name == "completion":
        return _beginning(current, _SCRIPTS)
    if name not in COMMANDS:
        return []
    known = options(COMMANDS[name].config, [word for word in words[1:] if "=" in word])
    key, sign, value = current.partition("=")
    if not sign:
        extra = {"nproc": 1, "nnodes": 1, "main": ""} if name in SEVERAL else {}
        return _beginning(current, ["--help", *(f"{each}=" for each in [*known, *extra])])
    if isinstance(known.get(key), str) and (CONFIG_DIR / key).is_dir():
        return [f"{key}={each}" for each in _beginning(value, choices(key))]
    if isinstance(known.get(key), bool):
        return [f"{key}={each}" for each in _beginning(value, ("true", "false"))]
    # The last item of a list that has been begun, as in data.files=[a.txt,bo
    last = value[max(value.rfind(","), value.rfind("[")) + 1 :]
    before = current[: len(current) - len(last)]
    return [before + each for each in _files(last)]


def _beginning(text: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(text)]


def _files(text: str) -> list[str]:
    """Files and folders with names that begin with ``text``; folders end with ``/``."""
    shown = os.path.expanduser(text)
    found = sorted(glob.glob(glob.escape(shown) + "*"))
    if not os.path.basename(shown).startswith("."):
        found = [each for each in found if not os.path.basename(each).startswith(".")]
    return [f"{each}/" if os.path.isdir(each) else each for each in found]
