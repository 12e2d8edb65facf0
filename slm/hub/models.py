"""Models by their name on the Hub, downloaded into the Hub's own cache: only the files that are needed, and where a
download stopped it goes on.

A downloaded model acts as a run in the folder ``models/org/name``: what is made of it, GGUF files for instance, goes
there and not into the cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slm import runs
from slm.cli import spelled
from slm.data.errors import UserError, nearest
from slm.from_gguf import stores
from slm.hub.errors import host, hub_errors
from slm.hub.name import HubName, hub_name
from slm.report import size

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

FOLDER = Path("models")
"""Where files go that are made of downloaded models."""
TIMEOUT_S = 10.0
"""Until the Hub must have answered the first question."""
_CHECKPOINT = (
    *("config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json", "README.md"),
)
_BIN = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin")
_PREFERRED = ("q4_k_m", "q8_0")
"""Order of preference among several GGUF files, as in ``llama.cpp -hf``; else the first by name."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A repository at one commit."""

    name: HubName
    commit: str
    files: dict[str, int]
    """Sizes in bytes (0 where the Hub does not say) by path."""
    licence: str | None
    """Licence named by the model card."""

    def line(self, wanted: list[str]) -> str:
        """One line for the person: what will be there, and under which licence."""
        count = f"{len(wanted)} file{'' if len(wanted) == 1 else 's'}"
        total = size(sum(self.files[each] for each in wanted))
        licence = f"licence {self.licence}" if self.licence else "no licence stated in its model card"
        return f"{self.name.words} on {host()} (commit {self.commit[:12]}): {licence}; {count}, {total}"


def resolve(word: str | os.PathLike[str]) -> runs.Run:
    """What ``word`` names: a run, a checkpoint, a model directory, a model of the Hub, which is then downloaded, or a
    GGUF file (see ``gguf_file``), which is then read back as a checkpoint.

    ``UserError`` where there is nothing, where the Hub's repository holds no safetensors, and where a file cannot be
    read back.
    """
    if file := gguf_file(word):
        from slm.from_gguf.convert import checkpoint as read_back

        return runs.Run(root=(FOLDER / file.name).absolute(), is_hf=True, pinned=read_back(file.path))
    name = hub_name(word)
    if name is None:
        return runs.resolve(word)
    return runs.Run(root=made_folder(name), is_hf=True, pinned=checkpoint(name))


def gguf_file(word: str | os.PathLike[str]) -> stores.Stored | None:
    """The GGUF file that ``word`` names: a path, ``ollama:NAME``, ``lmstudio:NAME``, or a file of a repository of the
    Hub (``org/name:Q8_0``), which is then downloaded. None for anything else; ``UserError`` where there is none.
    """
    if file := stores.find(os.fspath(word)):
        return file
    name = hub_name(word)
    if name is None or name.quant is None:
        return None
    path = gguf(name)
    if path is None:
        raise UserError(
            f"{name.words} holds no GGUF file; make one with `{spelled('export', run=name.words)}`, then run this again"
        )
    return stores.Stored(path=path, name=f"{made_folder(name).relative_to(FOLDER.absolute())}-{name.quant}")


def directory(word: str) -> str:
    """A model directory that ``word`` names: that of a run's checkpoint, downloaded where it is a name on the Hub, read
    back where it is a GGUF file.

    Anything else is returned as it is, but for a ``~``. ``UserError`` for a run without a checkpoint.
    """
    word = os.path.expanduser(word)
    place = runs.place(word)
    is_run = place.is_dir() and not (place / "config.json").is_file()
    if hub_name(word) is None and not stores.is_named(word) and not is_run:
        return word
    run = resolve(word)
    if line := run.choice_line():
        print(line, flush=True)
    return str(run.checkpoint())


def made_folder(name: HubName) -> Path:
    """The folder of what is made of a downloaded model; each revision that is named has its own."""
    revision = f"@{name.revision.replace('/', '-')}" if name.revision else ""
    return FOLDER.joinpath(*f"{name.repo}{revision}".split("/")).absolute()


def checkpoint(name: HubName) -> Path:
    """The directory with the model's safetensors, configuration and tokenizer."""
    listing = _listing(name)
    if listing is None:
        return _cached(name, ("config.json", "*.safetensors"))
    weights = [each for each in listing.files if each.endswith(".safetensors") and "/" not in each]
    if any(each.startswith("model") for each in weights):
        weights = [each for each in weights if each.startswith("model")]  # without copies in another layout
    if not weights:
        weights = [each for each in listing.files if _BIN.fullmatch(each)]
    if not weights or "config.json" not in listing.files:
        has = "GGUF files only" if ggufs(listing.files) else "no config.json with .safetensors or pytorch_model.bin"
        raise UserError(f"{name.words} holds {has}: a checkpoint in Hugging Face's format is needed here")
    return _download(listing, [*weights, *(each for each in _CHECKPOINT if each in listing.files)])


def gguf(name: HubName, admit: Callable[[int, Path], None] | None = None) -> Path | None:
    """The GGUF file of a repository: the type that was named, else one of the usual ones. None where it holds none.

    ``admit`` is called before a download, with the bytes that are missing and the folder in which they will be; what it
    raises ends it. ``UserError`` for a type that the repository does not have.
    """
    listing = _listing(name)
    if listing is None:
        folder = _cached(name, ("**/*.gguf",))
        here = [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]
        found = choose(here, name, strict=False)
        if not found and name.quant is not None:
            raise UserError(
                f"{host()} could not be asked for {name.words}, and the copy in the cache has no {name.quant}, only "
                f"{', '.join(here)}: run the command again with a network (and without HF_HUB_OFFLINE)"
            )
        return folder / found[0] if found else None
    wanted = choose(list(listing.files), name)
    if not wanted:
        return None
    wanted_files = [*wanted, *(["README.md"] if "README.md" in listing.files else [])]
    if admit is not None:
        from huggingface_hub import constants

        folder = Path(constants.HF_HUB_CACHE) / f"models--{name.repo.replace('/', '--')}"
        snapshot = folder / "snapshots" / listing.commit
        admit(sum(listing.files[each] for each in wanted_files if not (snapshot / each).exists()), folder)
    return _download(listing, wanted_files) / wanted[0]


def ggufs(files: list[str] | dict[str, int]) -> list[str]:
    """The models among a repository's GGUF files, by name; projectors and importance matrices left out."""
    named = [each for each in sorted(files) if each.lower().endswith(".gguf")]
    return [each for each in named if not any(part in each.lower() for part in ("mmproj", "imatrix", "-lora.gguf"))]


def choose(files: list[str], name: HubName, *, strict: bool = True) -> list[str]:
    """The GGUF file of the type that ``name`` asks for, all its parts where it was split; empty where there is no file.

    ``UserError`` where there are files, but none of that type (empty, too, if not ``strict``).
    """
    models = ggufs(files)
    whole = [each for each in models if "-of-0" not in each or "-00001-of-" in each]
    if name.quant is not None:
        fitting = [each for each in whole if _is_type(each, name.quant)]
        if not fitting:
            if not whole or not strict:
                return []
            types = sorted({_type(each) for each in whole})
            hint = nearest(name.quant, types, n=1)
            raise UserError(
                f"{name.words} has no GGUF file {name.quant}; {hint + ' ' if hint else ''}it has: {', '.join(types)}"
            )
    else:
        fitting = [each for quant in _PREFERRED for each in whole if _is_type(each, quant)] or whole
    if not fitting:
        return []
    first = fitting[0]
    stem = first.partition("-00001-of-")[0]
    return [first, *(each for each in models if each != first and each.startswith(f"{stem}-000"))]


def _type(file: str) -> str:
    stem = file.rpartition("/")[2].removesuffix(".gguf").partition("-00001-of-")[0]
    return stem.replace(".", "-").rpartition("-")[2]


def _is_type(file: str, quant: str) -> bool:
    stem = file.rpartition("/")[2].lower().removesuffix(".gguf").partition("-00001-of-")[0]
    return stem == quant.lower() or stem.endswith((f"-{quant.lower()}", f".{quant.lower()}", f"_{quant.lower()}"))


def _listing(name: HubName) -> Listing | None:
    """What the repository holds now; None where the Hub cannot be asked and a copy in the cache has to do."""
    from huggingface_hub import HfApi

    try:
        with hub_errors(name.repo, name.revision):
            info = HfApi().model_info(name.repo, revision=name.revision, timeout=TIMEOUT_S, files_metadata=True)
    except UserError as error:
        if _snapshot(name) is None or not _may_use_cache(error.__cause__):
            raise
        print(f"note: {name.words} is taken from the Hub's cache on this machine; {host()} was not asked", flush=True)
        return None
    files = {each.rfilename: each.size or 0 for each in info.siblings or []}
    return Listing(name=name, commit=info.sha or "main", files=files, licence=_licence(info))


def _licence(info: ModelInfo) -> str | None:
    card = info.card_data
    found = card.get("license") if card is not None else None
    if found in (None, "other"):
        found = (card.get("license_name") if card is not None else None) or found
    return ", ".join(found) if isinstance(found, list) else found


def _may_use_cache(error: BaseException | None) -> bool:
    """Whether the Hub was not there, and not: whether it said no."""
    from huggingface_hub import errors

    return not isinstance(error, errors.HfHubHTTPError)


def _download(listing: Listing, wanted: list[str]) -> Path:
    """The snapshot's directory, with these files."""
    from huggingface_hub import snapshot_download

    print(listing.line(wanted), flush=True)
    with hub_errors(listing.name.repo, listing.name.revision):
        # By the branch's name, where one was given: the cache then knows which commit it was, also without a network.
        return Path(snapshot_download(listing.name.repo, revision=listing.name.revision, allow_patterns=wanted))


def _snapshot(name: HubName) -> Path | None:
    """The copy of a repository in the Hub's cache, whole or not."""
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE) / f"models--{name.repo.replace('/', '--')}"
    revision = name.revision or "main"
    reference = root / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    found = root / "snapshots" / commit
    return found if found.is_dir() else None


def _cached(name: HubName, wanted: tuple[str, ...]) -> Path:
    """The copy of a repository in the Hub's cache; ``UserError`` where files of these patterns are not in it."""
    found = _snapshot(name)
    missing = [each for each in wanted if found is None or not any(found.glob(each))]
    if found is None or missing:
        raise UserError(
            f"{host()} could not be asked for {name.words}, and the copy in the cache has no {missing[0]}: run the "
            "command again with a network (and without HF_HUB_OFFLINE)"
        )
    return found
