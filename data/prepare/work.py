"""What is to be prepared and how it is cut into shards: decided once, kept in the folder, and the same at every start.

Tested in tests/data/prepare/test_prepare.py.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from slm.data.config import CORPUS, CORPUS_PLAN, DataConfig
from slm.data.errors import UserError
from slm.data.progress import Progress
from slm.data.sources import duplicates, files
from slm.data.sources.corpus import records
from slm.data.sources.kinds import PLAIN, file_format
from slm.data.sources.plan import Plan, open_whole_corpus, plan_sources, text_bytes
from slm.data.sources.prepared.manifest import CALIBRATION, SHARDS, TOKENIZER, TRAIN, VALIDATION, VERSION
from slm.data.storage import atomic_write_text, fingerprint, fsync, stamps
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer

SHARD_BYTES = 16 << 20
"""Text of a shard, about: ten seconds of one core, and 8 MB of ids."""


SIGNATURES, DUPLICATES = "signatures", "duplicates.npz"
Step = Literal["signatures", "shards"]
MADE: dict[Step, str] = {"signatures": "npz", "shards": "json"}
"""The ending of the file that a step writes last for a shard."""


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """``data.dedup``, ``data.dedup_threshold`` and ``data.dedup_max_docs``."""

    mode: Literal["exact", "near"]
    threshold: float
    max_docs: int | None


@dataclass(frozen=True, kw_only=True)
class Text:
    """What one pass over the files of a source reads: text for training, of which validation text may be held out, or
    separate validation text."""

    source: int
    """Its number."""
    own_validation: bool
    plan: Plan
    """Whose files are read, with its filters and duplicates."""
    shares: tuple[tuple[int, Plan], ...]
    """The parts that a record may have, and the plan of each."""


class Cut(NamedTuple):
    """Consecutive records of a file."""

    file: int
    record: int
    """The first."""
    position: Any
    """The reader's position there."""
    n_records: int | None
    """None: all to the end of the file."""


class Shard(NamedTuple):
    """A piece of work."""

    text: int
    bytes: int
    """Estimated bytes of text."""
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """All that a process needs to make any of the shards."""

    folder: Path
    texts: tuple[Text, ...]
    n_files: tuple[int, ...]
    """Number of files of each text."""
    shards: tuple[Shard, ...]
    tokenizer: Tokenizer
    options: dict[str, Any]
    dedup: Dedup | None

    def path(self, shard: int, ending: str) -> Path:
        """A file of a shard."""
        return self.folder / (SIGNATURES if ending == MADE["signatures"] else SHARDS) / f"{shard:05d}.{ending}"

    def missing(self, step: Step) -> list[int]:
        """The shards for which a step is not done yet."""
        return [number for number in range(len(self.shards)) if not self.path(number, MADE[step]).exists()]

    @property
    def list(self) -> Path:
        """The list of duplicates."""
        return self.folder / DUPLICATES

    @property
    def needs_list(self) -> bool:
        """Whether the duplicates must be found before shards can be made."""
        return self.dedup is not None and not self.list.exists()

    def with_list(self) -> "Work":
        """The work after the duplicates are found: its plans know their list."""
        if self.dedup is None:
            return self
        assert self.list.exists()
        names = duplicates.names_of([self.texts[number].plan for number in range(len(self.texts))])
        texts = [
            replace(text, plan=replace(text.plan, duplicates=str(self.list), listed_as=name))
            for text, name in zip(self.texts, names, strict=True)
        ]
        return replace(self, texts=tuple(texts))


def begin(
    data: DataConfig,
    folder: Path,
    make_tokenizer: Callable[[], Tokenizer],
    options: dict[str, Any],
) -> Work:
    """The work of preparing ``data`` in ``folder``, begun or gone on with.

    ``options``: all that decides on the result, by the names of a command line. UserError where the folder holds
    something else, or a corpus of other options or another text.
    """
    _check(data, folder)
    begun = _read_plan(folder, options)
    for name in (SHARDS, *([SIGNATURES] if data.dedup != "none" and not (folder / DUPLICATES).exists() else [])):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if begun is None:  # what is there was left by a start that did not get far, perhaps with other options
        _save(make_tokenizer(), folder / TOKENIZER)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    texts = _texts(_at_commits(data, begun["commits"]) if begun else data)
    text = fingerprint([(stamps(each.plan.files), [plan.selection for _, plan in each.shares]) for each in texts])
    if begun is None:
        n_files, cut = _cut(texts)
        begun = {"version": VERSION, "options": options, "text": text, "files": n_files, "shards": cut}
        begun["commits"] = [text.plan.source.revision for text in texts if not text.own_validation]
        atomic_write_text(folder / CORPUS_PLAN, json.dumps(begun, ensure_ascii=False) + "\n")
    if begun["text"] != text:
        raise UserError(
            f"the text has changed since {folder} was begun (files, your filter or evaluation texts): give "
            "out= another folder, or remove this one"
        )
    shards = tuple(Shard(number, size, tuple(Cut(*cut) for cut in cuts)) for number, size, cuts in begun["shards"])
    return Work(
        folder=folder,
        texts=tuple(texts),
        n_files=tuple(begun["files"]),
        shards=shards,
        tokenizer=tokenizer,
        options=options,
        dedup=None
        if data.dedup == "none"
        else Dedup(mode=data.dedup, threshold=data.dedup_threshold, max_docs=data.dedup_max_docs),
    )


@contextlib.contextmanager
def alone(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder's lock. UserError where another process prepares there, unless it shall ``wait``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"out={folder} cannot be made ({error.strerror}): name another folder") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"another process prepares {folder}: wait for it, or give out= another folder") from None
    try:
        yield
    finally:
        os.close(handle)


def remove_remains(folder: Path) -> None:
    """Remove what a process that was killed had not finished writing. Nobody else may work in the folder."""
    for path in (*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _check(data: DataConfig, folder: Path) -> None:
    for source in data.all_sources():
        if source.kind in ("tales", "story_chat"):
            raise UserError(f"data={source.kind} is made as it is read and never ends: there is nothing to prepare")
        if source.is_chat:
            raise UserError("slm prepare is for text: slm tune reads conversations as they are")
        if source.prepared:
            raise UserError(f"{source.prepared} is prepared already: name the text that it was made of")
    if folder.exists() and not (folder / CORPUS_PLAN).exists():
        known = (CORPUS_PLAN, TOKENIZER, SHARDS, SIGNATURES)
        if others := [each.name for each in folder.iterdir() if each.name not in known and each.name[0] != "."]:
            raise UserError(f"out={folder} holds other things ({files.few_names(others)}): name a new folder")


def _read_plan(folder: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    """What was decided at an earlier start; None at the first. UserError where that had other options."""
    try:
        begun: dict[str, Any] = json.loads((folder / CORPUS_PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if begun["version"] != VERSION:
        raise UserError(f"{folder} was begun by another version of slm: give out= another folder, or remove this one")
    wanted = json.loads(json.dumps(options))
    changed = [
        f"{name} was {begun['options'].get(name)!r}, now {wanted.get(name)!r}"
        for name in sorted(wanted.keys() | begun["options"].keys())
        if wanted.get(name) != begun["options"].get(name)
    ]
    if changed:
        state = "prepared" if (folder / CORPUS).exists() else "begun"
        raise UserError(
            f"{folder} was {state} with other options: {'; '.join(changed)}. Give the same ones, or out= another folder"
        )
    return begun


def _at_commits(data: DataConfig, commits: list[str]) -> DataConfig:
    """``data`` with the commits of the Hub that it was begun with."""
    if data.kind != "mixture":
        return replace(data, revision=commits[0]) if data.from_hub else data
    pinned = [
        replace(each, revision=its) if each.from_hub else each for each, its in zip(data.sources, commits, strict=True)
    ]
    return replace(data, sources=pinned)


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.save(temporary)
    for path in (*temporary.iterdir(), temporary):
        fsync(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


def _texts(data: DataConfig) -> list[Text]:
    """What is read, in order."""
    train = plan_sources(data, "train", calibrates=True)
    calibration = plan_sources(data, "calibration")
    held_out = iter(plan_sources(data, "validation"))
    texts = []
    for number, (plan, kept, source) in enumerate(zip(train, calibration, data.all_sources(), strict=True)):
        shares = [(TRAIN, plan), (CALIBRATION, kept)]
        validation = next(held_out) if source.validated else None
        own = validation is not None and validation.is_own_text
        if validation is not None and not own:
            shares.append((VALIDATION, validation))
        texts.append(Text(source=number, own_validation=False, plan=plan, shares=tuple(shares)))
        if own and validation is not None:
            shares = [(VALIDATION, validation)]
            texts.append(Text(source=number, own_validation=True, plan=validation, shares=tuple(shares)))
    return texts


def _cut(texts: list[Text]) -> tuple[list[int], list[Shard]]:
    """The number of files of each text, and the shards: small files together, large ones in pieces."""
    n_files: list[int] = []
    shards: list[Shard] = []
    for number, text in enumerate(texts):
        corpus = open_whole_corpus(text.plan)
        n_files.append(corpus.n_files())
        cuts: list[Cut] = []
        size = 0
        for file in range(n_files[-1]):
            path = text.plan.files[file] if text.plan.files else None
            its_size = text_bytes(path) if path else SHARD_BYTES  # that of a file of the Hub is not known
            if cuts and size + its_size > SHARD_BYTES:
                shards.append(Shard(number, size, tuple(cuts)))
                cuts, size = [], 0
            if path and its_size > SHARD_BYTES and len(pieces := _pieces(text.plan, file, its_size)) > 1:
                shards += [Shard(number, its_size // len(pieces), (piece,)) for piece in pieces]
                continue
            cuts.append(Cut(file, 0, None, None))
            size += its_size
        if cuts:
            shards.append(Shard(number, size, tuple(cuts)))
    return n_files, shards


def _pieces(plan: Plan, file: int, size: int) -> list[Cut]:
    """A large file cut between records, if reading can begin anywhere in it, as it cannot in compressed files."""
    path = plan.files[file]
    kind = file_format(path) or "text"
    end = files.extent(path)
    if end is None or path.lower().endswith(files.COMPRESSED_SUFFIXES) or kind not in (*PLAIN, "jsonl", "parquet"):
        return [Cut(file, 0, None, None)]
    n_pieces = -(-size // SHARD_BYTES)
    places = [end * each // n_pieces for each in range(1, n_pieces)]
    starts = [(0, 0)]
    if kind == "parquet":  # its positions are numbers of rows
        starts += [(place, place) for place in places]
    else:
        progress = Progress(f"{path}: looking where it can be cut")
        reader = open_whole_corpus(plan).open(file, 0, None)
        for number, _ in enumerate(records(reader), 1):  # which parses nothing
            position = reader.position()
            if places and position >= places[0]:
                starts.append((number, position))
                places = [place for place in places if place > position]
            progress.update(position, end, f"{position / 1e9:.1f} GB")
        progress.done()
    stops = [record for record, _ in starts[1:]]
    return [
        Cut(file, record, position, stop if stop is None else stop - record)
        for (record, position), stop in zip(starts, [*stops, None], strict=True)
    ]
