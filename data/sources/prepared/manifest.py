"""What lies in the folder of a prepared corpus, and what may be asked of it.

    slm-plan.json        what is to be prepared and how it is cut into shards: written first
    tokenizer/           the tokenizer of the shards
    shards/00000.tokens  ids of the shard's documents, one after another, without ids around them
    shards/00000.index   a row of four numbers for each document: record, part, ids, characters
    shards/00000.json    what was counted
    slm-corpus.json      what the shards hold together: written last, so that a corpus without it is not complete
    report.json, report.md

A source's files and records have the numbers that they have in the text, also those that are left out: so training
reads the same documents in the same order as from the text itself.

Tested in tests/data/prepare/test_prepare.py.
"""

import functools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slm.data.config import CORPUS, DataConfig
from slm.data.errors import UserError
from slm.data.storage import fingerprint
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer

VERSION = 1
SHARDS, TOKENIZER = "shards", "tokenizer"
TRAIN, VALIDATION, CALIBRATION, CALIBRATION_PASSAGE = range(4)
"""The parts of a record. A run that does not calibrate its head trains on ``CALIBRATION``, too, but never on
``CALIBRATION_PASSAGE``, which is cut out of a long document."""
AT_TRAINING = ("kind", "name", "weight", "validated", "max_epochs", "files", "sources", "shuffle_buffer")
"""Options that are given beside a prepared corpus; the others have done their work."""
WITHOUT_EFFECT = ("cache", "cache_dir", "revision")
"""Those that change no text."""


class Stretch(NamedTuple):
    """Consecutive records of a file, in one shard."""

    file: int
    n_records: int
    shard: int
    first: int
    """The stretch's first row of the shard's index."""
    stop: int


@dataclass(frozen=True, kw_only=True)
class PreparedText:
    """One source of a prepared corpus. It travels to worker processes, and they find the shards by it."""

    folder: str
    identity: str
    """Changes with the corpus's content, and not with its place."""
    number: int
    """Number of the source in the corpus."""
    facts: dict[str, Any] = field(hash=False)
    """What ``slm-corpus.json`` says of the source."""

    @property
    def label(self) -> str:
        return str(self.facts["label"])

    @property
    def of_files(self) -> bool:
        """Whether it was made of local files."""
        return bool(self.facts["of_files"])

    @property
    def long_documents(self) -> bool:
        """``Plan.long_documents`` of the text."""
        return bool(self.facts["long_documents"])

    @property
    def least_documents(self) -> int | None:
        """``Plan.least_documents`` of the text."""
        return self.facts["least_documents"]

    def check(self, tokenizer: Tokenizer) -> None:
        """UserError where a run's tokenizer makes other ids of a text than those of the corpus."""
        own = load(self.folder)["tokenizer"]
        if own["ids"] != ids_of_text(tokenizer):
            raise UserError(
                f"{self.folder} holds the ids of {own['name']}, and the tokenizer of this run, {tokenizer.name}, makes "
                "others: train from the text, or prepare it with that tokenizer (tokenizer=file tokenizer.path=DIR)"
            )


def ids_of_text(tokenizer: Tokenizer) -> str:
    """Identifies which ids a tokenizer makes of a text. Special tokens and a chat template have no part in that."""
    spec = tokenizer.spec
    ordinary = [token for token in spec.get("added_tokens") or [] if not token.get("special")]
    return fingerprint((spec["model"], spec.get("normalizer"), spec.get("pre_tokenizer"), ordinary))


def load(folder: str) -> dict[str, Any]:
    """What ``slm-corpus.json`` says; UserError where the corpus is not complete or not one of this version."""
    path = Path(folder) / CORPUS
    try:
        found = path.stat()
    except OSError:
        done = sum(1 for _ in (Path(folder) / SHARDS).glob("*.json"))
        raise UserError(
            f"{folder} is not a complete corpus ({done:,} shards are made): type the slm prepare with which it was "
            "begun again, it goes on"
        ) from None
    return _load(str(path), found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _load(path: str, size: int, changed: int) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        version = manifest["version"]
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"{path} cannot be read: prepare the corpus again, or copy it again") from error
    if version != VERSION:
        raise UserError(
            f"{path} is of version {version}, and this slm reads version {VERSION}: prepare the corpus again"
        )
    folder = Path(path).parent / SHARDS
    width = np.dtype(manifest["dtype"]).itemsize
    for number, shard in enumerate(manifest["shards"]):
        for ending, expected in ((".tokens", shard["tokens"] * width), (".index", shard["rows"] * ROW_BYTES)):
            its = folder / f"{number:05d}{ending}"
            here = its.stat().st_size if its.exists() else 0
            if here != expected:
                raise UserError(
                    f"{its} has {here:,} bytes, and should have {expected:,}: copy the corpus again, or prepare "
                    "it again in another folder"
                )
    return manifest


ROW = np.dtype("<u4")
ROW_BYTES = 4 * ROW.itemsize
"""A row of an index: the record's number in its stretch, the part, how many ids, how many characters."""


def check_alone(config: DataConfig) -> None:
    """UserError where an option that changes the text is given beside a prepared corpus."""
    for source in config.all_sources():
        if source.prepared:
            owner = source if config.kind == "mixture" else config
            usual = DataConfig(kind="files")
            for name in vars(owner):
                if name not in (*AT_TRAINING, *WITHOUT_EFFECT) and getattr(owner, name) != getattr(usual, name):
                    raise refusal(f"data.{name}", source.prepared)


def refusal(option: str, folder: str) -> UserError:
    """What to say of an option that changes a text that is prepared already."""
    options = load(folder)["options"]
    was = f"was prepared with {option}={options[option]}" if option in options else "is prepared"
    return UserError(
        f"{option} changes the text, and {folder} {was}: leave it out, or prepare the text with it (slm prepare)"
    )


def sources_of(folder: str) -> list[PreparedText]:
    """The corpus's sources, in order."""
    manifest = load(folder)
    return [
        PreparedText(folder=folder, identity=manifest["identity"], number=number, facts=facts)
        for number, facts in enumerate(manifest["sources"])
    ]


@functools.lru_cache(maxsize=2)
def _tokenizer(folder: str) -> Tokenizer:
    return load_tokenizer(os.path.join(folder, TOKENIZER))


def decode(folder: str, ids: Any) -> str:
    """A document's text again, exactly so of a byte-level tokenizer."""
    return _tokenizer(folder).decode(ids)
