"""Pages of the site that are generated: the home page from README.md, every option of every command, the Python API.

Files outside docs/ that a page links to (CHANGELOG.md, the examples, YAML files) are on the site, too, and the links
lead there. MkDocs calls ``on_files`` and ``on_page_markdown`` (mkdocs.yml names this file as a hook). Nothing here is
written to docs/.
"""

import re
import sys
from pathlib import Path
from posixpath import relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()(?!https?://|#)([^)#\s]+)((?:#[^)\s]*)?\))")
sys.path.insert(0, str(ROOT))


def place(path: Path) -> str:
    """Where a file of the repository is on the site, as MkDocs names its sources (``index.md``)."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return name.removesuffix("README.md") + "index.md" if path.name == "README.md" else name


def linked(source: Path) -> list[Path]:
    """The files of the repository that a page links to."""
    found = [(source.parent / target).resolve() for _, target, _ in LINK.findall(source.read_text(encoding="utf-8"))]
    return [path for path in found if path.is_file() and path.is_relative_to(ROOT)]


def outside() -> list[Path]:
    """The files outside docs/ that the site's pages link to, and those that these link to; README.md is the first."""
    found = [ROOT / "README.md"]
    pages = [*sorted(DOCS.rglob("*.md")), *found]
    while pages:
        for path in linked(pages.pop()):
            if not path.is_relative_to(DOCS) and path not in found:
                found.append(path)
                pages += [path] if path.suffix == ".md" else []
    return found


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
    """Add the generated pages, and the linked files outside docs/."""
    from mkdocs.structure.files import File

    for path in outside():
        # As bytes where it is no page: MkDocs copies it as it is.
        content = path.read_text(encoding="utf-8") if path.suffix == ".md" else path.read_bytes()
        files.append(File.generated(config, place(path), content=content))
    for name, text in (("reference/options.md", options()), ("reference/python.md", python())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to the site's places of the files, from wherever the page's source lies."""
    here = page.file.src_uri
    sources = {place(path): path for path in outside()}
    source = sources.get(here, DOCS / here)

    def lead(found: re.Match[str]) -> str:
        target = (source.parent / found[2]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return found[0]
        return found[1] + relpath(place(target), Path(here).parent.as_posix()) + found[3]

    return LINK.sub(lead, markdown)
