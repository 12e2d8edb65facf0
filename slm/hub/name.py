"""A model of the Hugging Face Hub by name: ``org/name``, ``org/name@revision``, ``org/name:Q4_K_M``."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?(?::(?P<quant>[\w.-]+))?")
_OF_FILES = (".gguf", ".txt", ".json", ".jsonl", ".yaml", ".safetensors")
OUR_FOLDERS = ("runs", "models", "configs", "docs", "tests")
"""What begins with these is a path of this project, even where it does not exist."""


_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")


def cached_name(path: str | Path) -> str | None:
    """The Hub's name of a model in the Hub's cache, from its path there; None for any other path."""
    found = _CACHED.search(f"{path}/")
    return f"{found[1]}/{found[2]}" if found else None


@dataclass(frozen=True, kw_only=True)
class HubName:
    """What a person wrote."""

    repo: str
    """``org/name``."""
    revision: str | None = None
    """A branch, tag or commit; None: ``main``."""
    quant: str | None = None
    """The type of a GGUF file in the repository, as its file name has it."""

    @property
    def short(self) -> str:
        """The name without the organization."""
        return self.repo.partition("/")[2]

    @property
    def words(self) -> str:
        """The name and the revision as a person writes them."""
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def hub_name(word: str | os.PathLike[str]) -> HubName | None:
    """The model of the Hub that ``word`` names; None for a path.

    What is there on this machine wins, and so does a folder that the first part names: ``runs/mine`` stays the run
    that is missing.
    """
    text = os.fspath(word)
    found = _NAME.fullmatch(text)
    if found is None or text.endswith(_OF_FILES) or Path(text).exists():
        return None
    repo = found["repo"]
    folder = repo.partition("/")[0]
    if folder in OUR_FOLDERS or Path(folder).is_dir() or Path("runs", folder).is_dir() or Path(repo).exists():
        return None
    return HubName(repo=repo, revision=found["revision"], quant=found["quant"])


def valid_repo(word: str) -> bool:
    """Whether ``word`` can be a repository's name: ``org/name``."""
    found = _NAME.fullmatch(word)
    return found is not None and found["revision"] is None and found["quant"] is None
