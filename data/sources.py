"""From a source's configuration to its documents: what to read, which documents are held out, who reads which."""

import functools
import hashlib
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from data import files, hub, tales
from data.config import DataConfig, SourceConfig
from data.errors import UserError
from data.mixture import Filtered, Mixture, Repeated, Shuffled
from data.packing import DocumentStream

Split = Literal["train", "validation"]

SMALL_CORPUS = 64 << 20  # bytes; below it the held-out share is checked by reading everything once
LEAST_VALIDATION = 16 << 10  # bytes held out of a small corpus, but never more than a tenth of it
SMALLEST_DOCUMENT = 2048  # bytes; how finely a small corpus of plain text is cut
VALIDATION_TALES = 20_000  # candidates, of which val_fraction are validation


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one source is for one split, settled once so that every worker reads the same."""

    source: SourceConfig
    split: Split
    files: tuple[str, ...] = ()
    document_bytes: int = 65536
    hub_split: str = ""
    held_out: float = 0.0
    """Share of the hash space that is validation; 0 where validation text is separate."""

    @property
    def fingerprint(self) -> str:
        """Changes with the text's identity: the files' names and sizes, or the Hub's names."""
        sizes = [(os.path.basename(path), os.path.getsize(path)) for path in self.files]
        s = self.source
        parts = (s.kind, sizes, s.path, s.subset, self.hub_split, s.revision, s.rows, s.text_field)
        parts += (self.document_bytes, self.held_out, self.split)
        return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def plan(config: DataConfig, split: Split) -> list[Plan]:
    """A plan for each source. Raises UserError for what cannot be read: missing files, no network, no text."""
    return [_plan_source(source, split, config.val_fraction) for source in config.all_sources()]


def _plan_source(source: SourceConfig, split: Split, val_fraction: float) -> Plan:
    if source.kind == "tales":
        return Plan(source=source, split=split, held_out=val_fraction)
    if source.kind == "hub":
        hub.check_reachable(source)
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
    size = sum(_text_bytes(path) for path in paths)
    if size == 0:
        raise UserError(f"the corpus is empty: {_few(paths)} hold no bytes; check data.files")
    document_bytes = min(source.document_chars, max(SMALLEST_DOCUMENT, size // 256))
    if source.val_files:
        chosen = tuple(paths if split == "train" else validation)
        return Plan(source=source, split=split, files=chosen, document_bytes=document_bytes)
    held_out = val_fraction
    if size <= SMALL_CORPUS:
        stamps = tuple((path, os.path.getsize(path), os.stat(path).st_mtime_ns) for path in paths)
        held_out = _held_out(stamps, source.text_field, document_bytes, val_fraction)
    return Plan(source=source, split=split, files=tuple(paths), document_bytes=document_bytes, held_out=held_out)


def _text_bytes(path: str) -> int:
    """About how many bytes of text a file holds."""
    packed = 4 if path.lower().endswith(files.COMPRESSED_SUFFIXES) else 1
    return os.path.getsize(path) * (3 if files.file_format(path) == "parquet" else packed)


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


@functools.lru_cache(maxsize=16)
def _held_out(stamps: tuple[Any, ...], text_field: str, document_bytes: int, val_fraction: float) -> float:
    """The share of the hash space to hold out of a small corpus, so that both splits have text.

    A hash takes ``val_fraction`` of many documents, but of a few it may take none, or all.
    """
    paths = tuple(path for path, _, _ in stamps)
    source = SourceConfig(kind="files", files=list(paths), text_field=text_field)
    whole = Plan(source=source, split="train", files=paths, document_bytes=document_bytes)
    sizes: dict[float, int] = {}
    for text in FileStream(whole):
        place = hash_place(text)
        sizes[place] = sizes.get(place, 0) + len(text.encode("utf-8", "replace"))
    if not sizes:
        raise UserError(f"the corpus is empty: {_few(list(paths))} hold no text; check data.files and data.text_field")
    if len(sizes) == 1:
        raise UserError(
            f"the corpus is one document ({_few(list(paths))}), so none can be held out: give more text, or "
            "data.val_files=[...]"
        )
    places = sorted(sizes)
    wanted = min(LEAST_VALIDATION, sum(sizes.values()) // 10)
    got, threshold = 0, 0.0
    for place, after in itertools.pairwise(places):
        # The last place is never reached: it stays in training.
        got += sizes[place]
        threshold = (place + after) / 2
        if got >= wanted and threshold >= val_fraction:
            break
    natural = sum(size for place, size in sizes.items() if place < val_fraction)
    return val_fraction if natural >= wanted and places[-1] >= val_fraction else threshold


def hash_place(text: str) -> float:
    """Where a document's text falls in [0, 1): the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class FileStream:
    """One pass over a plan's files, or over every ``num_shards``-th document of them."""

    def __init__(self, plan: Plan, *, shard_index: int = 0, num_shards: int = 1, order: list[int] | None = None):
        self._files = [plan.files[i] for i in order] if order else list(plan.files)
        self._reading = files.Reading(text_field=plan.source.text_field, document_bytes=plan.document_bytes)
        self._index, self._count = shard_index, num_shards
        self._file = 0
        self._at = 0
        self._ordinal = 0  # of the next document in the whole pass
        self._reader: Iterator[tuple[files.Raw, int]] | None = None

    def __iter__(self) -> "FileStream":
        return self

    def __next__(self) -> str:
        while self._file < len(self._files):
            path = self._files[self._file]
            if self._reader is None:
                self._reader = files.read(path, self._at, self._reading)
            for raw, end in self._reader:
                mine = self._ordinal % self._count == self._index
                self._ordinal += 1
                self._at = end
                text = files.parse(raw, path, end, self._reading) if mine else ""
                if text and not text.isspace():
                    return text
            self._file, self._at, self._reader = self._file + 1, 0, None
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        return {"file": self._file, "at": self._at, "ordinal": self._ordinal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._file, self._at, self._ordinal = state["file"], state["at"], state["ordinal"]
        self._reader = None


class TalesStream:
    """Stories of the embedded grammar, every ``num_shards``-th of them."""

    def __init__(self, *, seed: int, shard_index: int, num_shards: int, count: int | None) -> None:
        self._seed = seed
        self._index, self._step = shard_index, num_shards
        self._count = count

    def __next__(self) -> str:
        if self._count is not None and self._index >= self._count:
            raise StopIteration
        text = tales.story(self._seed, self._index)
        self._index += self._step
        return text

    def state_dict(self) -> dict[str, Any]:
        return {"index": self._index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._index = state["index"]


def open_documents(
    plans: list[Plan],
    *,
    seed: int,
    shard_index: int = 0,
    num_shards: int = 1,
    shuffle_buffer: int = 0,
    endless: bool = False,
) -> DocumentStream:
    """The documents of all sources, mixed by weight: this shard's part of them."""
    assert 0 <= shard_index < num_shards

    def one(number: int, plan: Plan) -> DocumentStream:
        def pass_over(epoch: int) -> DocumentStream:
            return _open_pass(plan, seed=seed, epoch=epoch, shard_index=shard_index, num_shards=num_shards)

        stream: DocumentStream = Repeated(pass_over, endless=endless)
        if shuffle_buffer:
            stream = Shuffled(stream, size=shuffle_buffer, seed=f"{seed}/{number}/{shard_index}")
        return stream

    streams = [one(number, plan) for number, plan in enumerate(plans)]
    if len(streams) == 1:
        return streams[0]
    return Mixture(streams, [plan.source.weight for plan in plans], seed=f"{seed}/{shard_index}")


def _open_pass(plan: Plan, *, seed: int, epoch: int, shard_index: int, num_shards: int) -> DocumentStream:
    shard = {"shard_index": shard_index, "num_shards": num_shards}
    stream: DocumentStream
    if plan.source.kind == "tales":
        count = VALIDATION_TALES if plan.split == "validation" else None
        stream = TalesStream(seed=seed, count=count, **shard)
    elif plan.source.kind == "hub":
        stream = hub.HubStream(plan.source, plan.hub_split, **shard)
    else:
        order = list(range(len(plan.files)))
        if plan.split == "train":
            random.Random(f"{seed}/{epoch}").shuffle(order)
        stream = FileStream(plan, order=order, **shard)
    if not plan.held_out:
        return stream
    if plan.split == "validation":
        return Filtered(stream, lambda text: hash_place(text) < plan.held_out)
    return Filtered(stream, lambda text: hash_place(text) >= plan.held_out)


def iter_documents(config: DataConfig, split: Split, seed: int) -> Iterator[str]:
    """One pass over a split's documents, shuffled as the configuration says (endless for ``tales``' training)."""
    stream = open_documents(plan(config, split), seed=seed, shuffle_buffer=config.shuffle_buffer)
    while True:
        try:
            text = next(stream)
        except StopIteration:
            return
        yield text


def sample_documents(config: DataConfig, split: Split, max_bytes: int, seed: int) -> list[str]:
    """Documents of a split up to ``max_bytes`` of UTF-8 in all, at least one.

    From the beginning of the shuffled stream, not from all over the corpus.
    """
    sample: list[str] = []
    total = 0
    for text in iter_documents(config, split, seed):
        total += len(text.encode("utf-8", "replace"))
        if sample and total > max_bytes:
            break
        sample.append(text)
    if not sample:
        raise UserError(f"the {split} split has no documents: give more text or another data.val_fraction")
    return sample
