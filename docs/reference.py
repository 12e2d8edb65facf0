"""Pages of the site that are generated: the home page from README.md, every option of every command, the Python API.

MkDocs calls ``on_files`` (mkdocs.yml names this file as a hook). Nothing here is written to docs/.
"""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def home() -> str:
    """README.md, with its links as docs/ has them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)


def options() -> str:
    """A table of options for each command, from configs/ and the comments there."""
    from slm.command.table import COMMANDS
    from slm.options import listed

    parts = ["# Options\n\n    slm train help=optim      # the same in the terminal, for one word\n"]
    for name, command in COMMANDS.items():
        parts.append(f"\n## slm {name}\n\n{command.summary.capitalize()}.\n")
        parts.append("\n| option | default | what it does |\n|---|---|---|\n")
        for option in listed(command.config):
            about = option.about.replace("|", "\\|")
            if option.choices:
                about = f"one of: {', '.join(option.choices)}" + (f"; {about}" if about else "")
            parts.append(f"| `{option.key}` | `{option.default or ' '}` | {about} |\n".replace("`|`", "`\\|`"))
    return "".join(parts)


def python() -> str:
    """The names of the Python API, by mkdocstrings."""
    import slm

    places = {
        **dict.fromkeys(("load", "Model", "Sampling", "Perplexity"), "slm.api.models"),
        **dict.fromkeys(("Run", "runs"), "slm.api.runs"),
    }
    found = [f"::: {places.get(name, 'slm.api.jobs')}.{name}\n\n" for name in slm.__all__ if name != "Error"]
    error = "### `slm.Error`\n\nWhat a person can mend: its text is the line that the command would print.\n"
    return "# The Python API\n\n`import slm`; [how it is used](../python.md).\n\n" + "".join(found) + error


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, text in (("index.md", home()), ("reference/options.md", options()), ("reference/python.md", python())):
        files.append(File.generated(config, name, content=text))
    return files
