"""``python3 -m slm.setup [venv=.venv] [torch_index=URL] [check=only|no] [purpose=tests] [wait=yes]``, from a checkout.

``check=only`` reports what is missing and installs nothing; ``check=no`` installs without looking. ``purpose=tests``
installs what tests need besides. ``wait=yes``: until llama.cpp is built, too.
"""

import shutil
import sys
from pathlib import Path

from slm import cli
from slm.data.errors import UserError, nearest
from slm.setup import environment, install, llama, requirements

OPTIONS = {
    "venv": ".venv",
    "torch_index": "https://download.pytorch.org/whl/cpu",
    "check": "yes",
    "purpose": "run",
    "wait": "no",
}

CHOICES = {"check": ("yes", "no", "only"), "purpose": ("run", "tests"), "wait": ("yes", "no")}


def main(argv: list[str]) -> int:
    """Check, repair, install. Returns 1 where something is missing, with a line for each thing."""
    options = parse(argv)
    venv = Path(options["venv"])
    uv = shutil.which("uv")
    if options["purpose"] == "tests":
        install.install(venv, options["torch_index"], uv=uv, purpose="tests")
        return 0
    if options["wait"] == "yes":
        if options["check"] != "only":
            llama.wait(venv)
        return 0
    state = environment.inspect(venv)
    if options["check"] != "no":
        # An installation that was interrupted has yet to build llama.cpp, too.
        new = not environment.holds(venv, "llama_cpp")
        problems = requirements.find_problems(venv, new=new, uv=uv)
        if problems:
            print("\n".join(["Before slm can be installed:", *(f"  - {line}" for line in problems)]), file=sys.stderr)
            return 1
        if options["check"] == "only":
            print("Nothing is missing.")
            return 0
    environment.make_ready(venv, state, uv=uv)
    install.install(venv, options["torch_index"], uv=uv)
    (venv / ".ready").write_text(str(Path.cwd().resolve()))
    return 0


def parse(argv: list[str]) -> dict[str, str]:
    """The options; UserError for one that there is not."""
    options = dict(OPTIONS)
    for word in argv:
        name, sign, value = word.partition("=")
        if not sign or name not in options:
            raise UserError(
                f"there is no option {name!r}; {nearest(name, options) or 'there are: ' + ', '.join(options)}"
            )
        options[name] = value or options[name]
    for name, values in CHOICES.items():
        if options[name] not in values:
            raise UserError(f"{name} must be {', '.join(values[:-1])} or {values[-1]}, not {options[name]!r}")
    return options


if __name__ == "__main__":
    cli.run(main)
