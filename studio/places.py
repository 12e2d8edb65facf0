"""The folders of studio: its workspace is the current folder, and it reads nothing outside the folders it was given."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.from_gguf.stores import lm_studio_folders, ollama_folders

STATE = ".studio"
"""In ``runs/``: jobs, uploads, the trash. On the disk of the runs, so that what is deleted is only renamed."""


@dataclass
class Places:
    """What may be read, and where studio keeps its own files."""

    root: Path
    """The workspace: commands are started here, and ``runs/`` and ``models/`` are in it."""
    given: list[Path] = field(default_factory=list)
    """Folders of the command line."""
    may_add: bool = True
    """Whether the page may add folders: not where other machines can open it."""

    def __post_init__(self) -> None:
        self.root = self.root.resolve()
        self.given = [_folder(each) for each in self.given]

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def state(self) -> Path:
        return self.runs / STATE

    @property
    def jobs(self) -> Path:
        return self.state / "jobs"

    @property
    def uploads(self) -> Path:
        return self.state / "uploads"

    @property
    def trash(self) -> Path:
        return self.state / "trash"

    @property
    def added(self) -> list[Path]:
        """Folders that were added on the page."""
        try:
            found = json.loads((self.state / "folders.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return [Path(each) for each in found if isinstance(each, str) and os.path.isdir(each)]

    @property
    def folders(self) -> list[Path]:
        """Every folder besides the workspace."""
        return list(dict.fromkeys([*self.given, *self.added]))

    def known(self) -> list[dict[str, str]]:
        """The folders of other programs that this machine has, and studio was not given yet."""
        cache = os.environ.get("LLAMA_CACHE") or os.path.expanduser("~/.cache/llama.cpp")
        programs = {
            "Ollama's models": ollama_folders(),
            "LM Studio's models": lm_studio_folders(),
            "llama.cpp's downloads": [Path(cache)],
        }
        found: dict[Path, dict[str, str]] = {}
        for of, folders in programs.items():
            for path in folders:
                given = any(path.resolve().is_relative_to(each) for each in self.folders)
                if not given and path.is_dir() and os.access(path, os.R_OK | os.X_OK):
                    found.setdefault(path.resolve(), {"of": of, "path": str(path)})
        return list(found.values())

    def add(self, text: str) -> None:
        """Give studio another folder. UserError where the page may not."""
        if not self.may_add:
            raise UserError(
                "other machines can open this page, so folders are given at the start: slm studio folders=[DIR]"
            )
        self._keep([*self.added, _folder(Path(text))])

    def remove(self, text: str) -> None:
        """Take a folder back that was added on the page."""
        self._keep([each for each in self.added if str(each) != text])

    def _keep(self, folders: list[Path]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        atomic_write_text(self.state / "folders.json", json.dumps([str(each) for each in dict.fromkeys(folders)]))

    def path(self, text: str) -> Path:
        """The file or folder that ``text`` names, absolute or below the workspace.

        UserError where it does not exist, is hidden, or lies outside every folder that studio was given.
        """
        if "\0" in text or not text.strip():
            raise UserError("give the path of a file or a folder")
        found = (self.root / os.path.expanduser(text.strip())).resolve()
        # A symbolic link in the workspace may lead to runs and models on another disk.
        roots = [self.root, self.runs.resolve(), self.models.resolve(), *self.folders]
        inside = [found.relative_to(each) for each in roots if found.is_relative_to(each)]
        if not inside:
            raise UserError(
                f"{text} is in no folder that studio was given: add its folder under Folders, or start "
                "slm studio folders=[DIR]"
            )
        own = found.is_relative_to(self.uploads.resolve())
        if not own and all(any(part.startswith(".") for part in each.parts) for each in inside):
            raise UserError(f"{text} is hidden (a name with a dot first): studio reads no hidden files")
        if not found.exists():
            raise UserError(f"{text} does not exist: check the path")
        return found

    def shown(self, path: Path) -> str:
        """A path as a person types it: relative where it is in the workspace."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def _folder(path: Path) -> Path:
    found = path.expanduser().resolve()
    if not found.is_dir():
        raise UserError(f"{path} is no folder: give one that exists")
    if found == Path(found.anchor):
        raise UserError(f"{path} would give the page the whole disk: name the folder that it is to read")
    return found
