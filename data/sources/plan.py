"""From a source's configuration to a plan: what is read, and which documents are held out for validation."""

import functools
import hashlib
import itertools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data.config import DataConfig, SourceConfig
from data.errors import UserError
from data.sources import chat_files, files, hub
from data.sources.corpus import Corpus, CorpusStream, FileCorpus
from data.sources.filters import make_filter, options
from data.storage import digest_of, fingerprint, stamps

Split = Literal["train", "validation"]

CONVERSATIONS = "\0conversations"  # in place of a field of text
SMALL_CORPUS = 64 << 20  # bytes; a smaller corpus is read once to check how much of it is held out
LEAST_VALIDATION = 16 << 10  # bytes held out of a small corpus, but never more than a tenth of it
SMALLEST_DOCUMENT = 2048  # bytes; the least size of the documents that a small plain text is cut into


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is read of one source for one split. It is decided once, so that every worker reads the same."""

    source: SourceConfig
    split: Split
    files: tuple[str, ...] = ()
    document_bytes: int = 65536
    hub_split: str = ""
    held_out: float = 0.0
    """A document whose ``unit_hash`` is below this is validation text; 0 where validation text is separate."""
    also_held_out: frozenset[float] = frozenset()
    """Unit hashes of more documents that are not trained on: another source holds them out, or they are in validation
    files."""
    duplicates: str = ""
    """The file that lists the records left out as duplicates."""

    @property
    def from_hub(self) -> bool:
        """Whether it is read from the Hub, or from a folder that ``datasets`` loads."""
        return self.source.kind == "hub" or (self.source.kind == "chat" and bool(self.source.path))

    @property
    def corpus(self) -> str:
        """Identifies what is read: the files' names and sizes, or the Hub's names and commit."""
        sizes = [(os.path.basename(path), os.path.getsize(path)) for path in self.files]
        s = self.source
        if self.from_hub and os.path.isdir(s.path):
            sizes = [(str(path), path.stat().st_size) for path in sorted(Path(s.path).rglob("*")) if path.is_file()]
        return fingerprint(
            (s.kind, sizes, s.path, s.subset, self.hub_split, s.revision, s.rows, s.text_field, self.document_bytes)
        )

    @property
    def selection(self) -> str:
        """Identifies the documents: the text, the split, the filters and the list of duplicates."""
        s = self.source
        listed = digest_of(self.duplicates) if self.duplicates else None
        return fingerprint((self.corpus, self.held_out, self.split, sorted(self.also_held_out), options(s), listed))

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the stream of documents."""
        return fingerprint((self.selection, self.source.weight, self.source.max_epochs))


def plan_sources(config: DataConfig, split: Split) -> list[Plan]:
    """A plan for each source, without a list of duplicates (``data.sources.documents.make_plans`` has it).

    Raises UserError for what cannot be read: missing files, no network, no text.
    """
    plans = [_plan_source(source, split, config.val_fraction) for source in config.all_sources()]
    return _without_held_out(plans) if split == "train" else plans


def open_whole_corpus(plan: Plan) -> Corpus[str]:
    """All documents of the plan's files or Hub split: of both splits, unfiltered, duplicates included."""
    if plan.from_hub:
        return hub.HubCorpus(plan.source, plan.hub_split)
    if plan.source.kind == "chat":
        return chat_files.ChatFileCorpus(plan.files, stop=plan.source.on_bad == "stop")
    return FileCorpus(plan.files, files.Reading(text_field=plan.source.text_field, document_bytes=plan.document_bytes))


def _plan_source(source: SourceConfig, split: Split, val_fraction: float) -> Plan:
    if source.kind in ("tales", "story_chat"):
        return Plan(source=source, split=split, held_out=val_fraction)
    if source.kind == "hub" or (source.kind == "chat" and source.path):
        hub.check_reachable(source)
        source = replace(source, revision=hub.resolve(source))
        chosen = source.val_split if split == "validation" and source.val_split else source.split
        return Plan(source=source, split=split, hub_split=chosen, held_out=0 if source.val_split else val_fraction)
    return _plan_files(source, split, val_fraction)


def _plan_files(source: SourceConfig, split: Split, val_fraction: float) -> Plan:
    if not source.files:
        raise UserError("no text is named: add data.files=[...] (paths, globs or folders of txt, md, jsonl, parquet)")
    paths = files.expand(source.files)
    if source.val_files:
        validation = files.expand(source.val_files, "data.val_files")
        apart = {os.path.realpath(path) for path in validation}
        paths = [path for path in paths if os.path.realpath(path) not in apart]
        if not paths:
            raise UserError("every file of data.files is also in data.val_files: name training text of its own")
    if source.kind == "chat":
        chat_files.inspect(tuple(paths), stop=source.on_bad == "stop")
    size = sum(_text_bytes(path) for path in paths)
    if size == 0:
        raise UserError(f"the corpus is empty: {_few(paths)} hold no bytes; check data.files")
    document_bytes = min(source.document_chars, max(SMALLEST_DOCUMENT, size // 256))
    if source.val_files:
        chosen = tuple(paths if split == "train" else validation)
        return Plan(source=source, split=split, files=chosen, document_bytes=document_bytes)
    held_out = val_fraction
    if size <= SMALL_CORPUS:
        held_out = _held_out(stamps(paths), _field(source), document_bytes, options(source), val_fraction)
    return Plan(source=source, split=split, files=tuple(paths), document_bytes=document_bytes, held_out=held_out)


def _without_held_out(plans: list[Plan]) -> list[Plan]:
    """Training plans without the documents that any of the sources holds out for validation.

    Large sources hold out the same range of hashes, so a document is in the same split in all of them. A small corpus
    may hold out a wider range, and validation files contain any documents: their hashes are listed. The documents of
    a Hub's validation split are not listed (``data.dedup`` finds copies of them).
    """
    hashes: set[float] = set()
    widest = max((plan.held_out for plan in plans if not _is_small(plan)), default=0.0)
    least = min((plan.held_out for plan in plans), default=0.0)
    for plan in plans:
        if plan.source.val_files:
            apart = files.expand(plan.source.val_files, "data.val_files")
            if sum(map(_text_bytes, apart)) <= SMALL_CORPUS:
                hashes |= _bytes_by_hash(
                    stamps(apart), _field(plan.source), plan.document_bytes, options(plan.source)
                ).keys()
        elif plan.held_out > least and _is_small(plan):
            sizes = _bytes_by_hash(stamps(plan.files), _field(plan.source), plan.document_bytes, options(plan.source))
            hashes |= {each for each in sizes if least <= each < plan.held_out}
    also_held_out = frozenset(hashes)
    return [replace(plan, also_held_out=also_held_out, held_out=max(plan.held_out, widest)) for plan in plans]


def _field(source: SourceConfig) -> str:
    """The field that holds the text, or ``CONVERSATIONS``."""
    return CONVERSATIONS if source.kind == "chat" else source.text_field


def _is_small(plan: Plan) -> bool:
    """Whether it is a small corpus of files of which a part is held out."""
    if not plan.files or plan.source.val_files:
        return False
    return sum(map(_text_bytes, plan.files)) <= SMALL_CORPUS


@functools.lru_cache(maxsize=16)
def _bytes_by_hash(
    stamped: tuple[Any, ...], text_field: str, document_bytes: int, filters: tuple[Any, ...]
) -> dict[float, int]:
    """The documents of a small corpus that pass the filters: their bytes by their unit hash."""
    reason = make_filter(SourceConfig(kind="files", **dict(filters)))
    paths = tuple(path for path, _, _ in stamped)
    sizes: dict[float, int] = {}
    corpus: Corpus[str]
    if text_field == CONVERSATIONS:
        corpus = chat_files.ChatFileCorpus(paths, stop=False)
    else:
        corpus = FileCorpus(paths, files.Reading(text_field=text_field, document_bytes=document_bytes))
    for text in CorpusStream(corpus, order=lambda n_files: list(range(n_files))):
        if reason is not None and reason(text) is not None:
            continue
        hashed = unit_hash(text)
        sizes[hashed] = sizes.get(hashed, 0) + len(text.encode("utf-8", "replace"))
    return sizes


def _text_bytes(path: str) -> int:
    """Roughly how many bytes of text a file holds."""
    packed = 4 if path.lower().endswith(files.COMPRESSED_SUFFIXES) else 1
    return os.path.getsize(path) * (3 if files.file_format(path) == "parquet" else packed)


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


@functools.lru_cache(maxsize=16)
def _held_out(
    stamped: tuple[Any, ...], text_field: str, document_bytes: int, filters: tuple[Any, ...], val_fraction: float
) -> float:
    """The range of hashes, from 0, to hold out of a small corpus, so that both splits have text.

    Of many documents about ``val_fraction`` have a hash below it, but of a few perhaps none, or all.
    """
    paths = [path for path, _, _ in stamped]
    sizes = _bytes_by_hash(stamped, text_field, document_bytes, filters)
    if not sizes:
        raise UserError(f"the corpus is empty: {_few(paths)} hold no text; check data.files and data.text_field")
    if len(sizes) == 1:
        raise UserError(
            f"the corpus is one document ({_few(paths)}), so none can be held out: give more text, or "
            "data.val_files=[...]"
        )
    hashes = sorted(sizes)
    wanted = min(LEAST_VALIDATION, sum(sizes.values()) // 10)
    got, threshold = 0, 0.0
    for hashed, following in itertools.pairwise(hashes):
        # The last document is never reached: it stays in training.
        got += sizes[hashed]
        threshold = (hashed + following) / 2
        if got >= wanted and threshold >= val_fraction:
            break
    natural = sum(size for hashed, size in sizes.items() if hashed < val_fraction)
    return val_fraction if natural >= wanted and hashes[-1] >= val_fraction else threshold


def unit_hash(text: str) -> float:
    """A document's hash as a number in [0, 1): the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
