"""Where llama.cpp's command-line tools are.

Tested in tests/serve/bench/test_contenders.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from slm.data.errors import UserError


def find_tool(name: str, given: str | None, next_to: str | None = None) -> str | None:
    """The path of a llama.cpp tool: as given, in the folder of another tool, or in PATH; None where it is not
    installed.

    Raises ``UserError`` for a given path that does not exist.
    """
    if given == "off":
        return None
    if given is not None:
        if not Path(given).is_file():
            raise UserError(f"{given} does not exist; give the path of {name}, or off to leave it out")
        return str(Path(given).resolve())
    if next_to is not None and (there := Path(next_to).parent / name).is_file():
        return str(there)
    return shutil.which(name)
