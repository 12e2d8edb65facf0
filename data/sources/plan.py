"""From a source's configuration to its documents: what to read, which documents are held out, who reads which."""

import functools
import hashlib
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data.config import DataConfig, SourceConfig
from data.errors import UserError
from data.sources import duplicates, files, hub
from data.sources.corpus import Corpus, FileCorpus, PartStream, Selected
from data.sources.filters import make_filter, options
from data.sources.mixture import Filtered, Mixture, Repeated, Shuffled, text_bytes
from data.storage import digest_of, fingerprint, stamps
from data.stream.packing import DocumentStream
from data.tales.story import story

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
    elsewhere: frozenset[float] = frozenset()
    """Places in the hash space of documents that another source holds out, or that validation files hold."""
    duplicates: str = ""
    """The file that lists the records left out as duplicates."""

    @property
    def corpus(self) -> str:
        """The identity of what is read: the files' names and sizes, or the Hub's names and commit."""
        sizes = [(os.path.basename(path), os.path.getsize(path)) for path in self.files]
        s = self.source
        if s.kind == "hub" and os.path.isdir(s.path):
            sizes = [(str(path), path.stat().st_size) for path in sorted(Path(s.path).rglob("*")) if path.is_file()]
        parts = (s.kind, sizes, s.path, s.subset, self.hub_split, s.revision, s.rows, s.text_field, self.document_bytes)
        return fingerprint(parts)

    @property
    def selection(self) -> str:
        """The identity of the documents: of the text, the split and the filters."""
        s = self.source
        listed = digest_of(self.duplicates) if self.duplicates else None
        return fingerprint((self.corpus, self.held_out, self.split, sorted(self.elsewhere), options(s), listed))

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the stream of documents."""
        return fingerprint((self.selection, self.source.weight, self.source.max_epochs))


def plan(config: DataConfig, split: Split, *, listed: bool = True) -> list[Plan]:
    """A plan for each source. Raises UserError for what cannot be read: missing files, no network, no text.

    With ``data.dedup`` all text is read the first time, to list the duplicates (not with ``listed=False``).
    """
    sources = config.all_sources()
    plans = [_plan_source(source, split, config.val_fraction) for source in sources]
    if config.dedup != "none" and listed:
        other = "train" if split == "validation" else "validation"
        others = [_plan_source(source, other, config.val_fraction) for source in sources]
        # Validation text of its own comes first: training text that repeats it is then left out.
        ordered = [*plans, *others] if split == "validation" else [*others, *plans]
        path = duplicates.find(config, ordered, whole=functools.partial(open_corpus, whole=True))
        plans = [replace(each, duplicates=path) for each in plans]
    return _without_held_out(plans) if split == "train" else plans


def _plan_source(source: SourceConfig, split: Split, val_fraction: float) -> Plan:
    if source.kind == "tales":
        return Plan(source=source, split=split, held_out=val_fraction)
    if source.kind == "hub":
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
    size = sum(_text_bytes(path) for path in paths)
    if size == 0:
        raise UserError(f"the corpus is empty: {_few(paths)} hold no bytes; check data.files")
    document_bytes = min(source.document_chars, max(SMALLEST_DOCUMENT, size // 256))
    if source.val_files:
        chosen = tuple(paths if split == "train" else validation)
        return Plan(source=source, split=split, files=chosen, document_bytes=document_bytes)
    held_out = val_fraction
    if size <= SMALL_CORPUS:
        held_out = _held_out(stamps(paths), source.text_field, document_bytes, options(source), val_fraction)
    return Plan(source=source, split=split, files=tuple(paths), document_bytes=document_bytes, held_out=held_out)


def _without_held_out(plans: list[Plan]) -> list[Plan]:
    """Training plans that leave out what any of the sources holds out for validation.

    Sources with much text hold out the same share of the hash space, so one document is on the same side in all of
    them. A small corpus may hold out more, and validation files hold anything: their documents are listed. Not
    listed are those of a Hub's validation split (``data.dedup`` finds copies of them).
    """
    listed: set[float] = set()
    widest = max((plan.held_out for plan in plans if not _is_small(plan)), default=0.0)
    least = min((plan.held_out for plan in plans), default=0.0)
    for plan in plans:
        if plan.source.val_files:
            apart = files.expand(plan.source.val_files, "data.val_files")
            if sum(map(_text_bytes, apart)) <= SMALL_CORPUS:
                listed |= _places(
                    stamps(apart), plan.source.text_field, plan.document_bytes, options(plan.source)
                ).keys()
        elif plan.held_out > least and _is_small(plan):
            places = _places(stamps(plan.files), plan.source.text_field, plan.document_bytes, options(plan.source))
            listed |= {place for place in places if least <= place < plan.held_out}
    together = frozenset(listed)
    return [replace(plan, elsewhere=together, held_out=max(plan.held_out, widest)) for plan in plans]


def _is_small(plan: Plan) -> bool:
    return (
        plan.source.kind == "files" and not plan.source.val_files and sum(map(_text_bytes, plan.files)) <= SMALL_CORPUS
    )


@functools.lru_cache(maxsize=16)
def _places(
    stamped: tuple[Any, ...], text_field: str, document_bytes: int, filters: tuple[Any, ...]
) -> dict[float, int]:
    """The documents of a small corpus that pass the filters: their places in the hash space, and their bytes."""
    reason = make_filter(SourceConfig(kind="files", **dict(filters)))
    reading = files.Reading(text_field=text_field, document_bytes=document_bytes)
    sizes: dict[float, int] = {}
    for text in PartStream(FileCorpus(tuple(path for path, _, _ in stamped), reading), order=lambda n: list(range(n))):
        if reason is not None and reason(text) is not None:
            continue
        place = hash_place(text)
        sizes[place] = sizes.get(place, 0) + len(text.encode("utf-8", "replace"))
    return sizes


def _text_bytes(path: str) -> int:
    """About how many bytes of text a file holds."""
    packed = 4 if path.lower().endswith(files.COMPRESSED_SUFFIXES) else 1
    return os.path.getsize(path) * (3 if files.file_format(path) == "parquet" else packed)


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


@functools.lru_cache(maxsize=16)
def _held_out(
    stamped: tuple[Any, ...], text_field: str, document_bytes: int, filters: tuple[Any, ...], val_fraction: float
) -> float:
    """The share of the hash space to hold out of a small corpus, so that both splits have text.

    A hash takes ``val_fraction`` of many documents, but of a few it may take none, or all.
    """
    paths = [path for path, _, _ in stamped]
    sizes = _places(stamped, text_field, document_bytes, filters)
    if not sizes:
        raise UserError(f"the corpus is empty: {_few(paths)} hold no text; check data.files and data.text_field")
    if len(sizes) == 1:
        raise UserError(
            f"the corpus is one document ({_few(paths)}), so none can be held out: give more text, or "
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


class TalesStream:
    """Stories of the embedded grammar, every ``num_shards``-th of them."""

    def __init__(self, *, seed: int, shard_index: int, num_shards: int, count: int | None) -> None:
        self._seed = seed
        self._index, self._step = shard_index, num_shards
        self._count = count

    def __next__(self) -> str:
        if self._count is not None and self._index >= self._count:
            raise StopIteration
        text = story(self._seed, self._index)
        self._index += self._step
        return text

    def state_dict(self) -> dict[str, Any]:
        return {"index": self._index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._index = state["index"]


def open_stream(
    plan: Plan,
    *,
    seed: int,
    number: int = 0,
    shard_index: int = 0,
    num_shards: int = 1,
    shuffle_buffer: int = 0,
    repeat: bool = False,
    wrap: Callable[[Corpus], Corpus] = lambda corpus: corpus,
) -> DocumentStream:
    """One source's documents, this shard's part of them: with ``repeat`` as often as the source allows.

    ``number`` tells the sources of a mixture apart; ``wrap`` may put a cache over the source.
    """
    shard = {"shard_index": shard_index, "num_shards": num_shards}
    epochs = plan.source.max_epochs if repeat else 1
    stream: DocumentStream
    if plan.source.kind == "tales":
        count = VALIDATION_TALES if plan.split == "validation" else None
        accepts = make_accepts(plan)
        # They have no end: a pass over them is the only one.
        stream = Repeated(
            lambda _: Filtered(TalesStream(seed=seed, count=count, **shard), accepts), epochs=None if repeat else 1
        )
    else:
        corpus = wrap(open_corpus(plan))

        def one_pass(epoch: int) -> DocumentStream:
            return PartStream(corpus, order=functools.partial(_part_order, plan, seed, epoch), **shard)

        stream = Repeated(one_pass, epochs=epochs)
    if shuffle_buffer:
        stream = Shuffled(stream, size=shuffle_buffer, seed=f"{seed}/{number}/{shard_index}")
    return stream


def _part_order(plan: Plan, seed: int, epoch: int, count: int) -> list[int]:
    """The order in which a pass reads the parts: another one each epoch of training."""
    order = list(range(count))
    if plan.split == "train":
        random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def open_corpus(plan: Plan, *, whole: bool = False) -> Corpus:
    """The plan's documents as parts; ``whole``: what is held out and what repeats other documents, too."""
    if plan.source.kind == "hub":
        corpus: Corpus = hub.HubCorpus(plan.source, plan.hub_split)
    else:
        corpus = FileCorpus(
            plan.files, files.Reading(text_field=plan.source.text_field, document_bytes=plan.document_bytes)
        )
    if whole:
        return corpus
    skipped = duplicates.load(plan.duplicates, plan.corpus) if plan.duplicates else None
    return Selected(corpus, accepts=make_accepts(plan), skipped=skipped)


def make_accepts(plan: Plan) -> Callable[[str], bool]:
    """Whether a text belongs to the plan's split and passes its filters."""
    reason = make_filter(plan.source)
    validation = plan.split == "validation"

    def accepts(text: str) -> bool:
        if plan.held_out or plan.elsewhere:
            place = hash_place(text)
            held_out = place < plan.held_out
            if held_out != (validation and plan.held_out > 0) or (not validation and place in plan.elsewhere):
                return False
        return reason is None or reason(text) is None

    return accepts


def open_documents(
    plans: list[Plan],
    *,
    seed: int,
    shard_index: int = 0,
    num_shards: int = 1,
    shuffle_buffer: int = 0,
    endless: bool = False,
) -> DocumentStream:
    """The documents of all sources as text, mixed by weight (of bytes: tokens there are none yet)."""
    assert 0 <= shard_index < num_shards
    streams = [
        open_stream(
            plan,
            seed=seed,
            number=number,
            shard_index=shard_index,
            num_shards=num_shards,
            shuffle_buffer=shuffle_buffer,
            repeat=endless,
        )
        for number, plan in enumerate(plans)
    ]
    return mix(streams, plans, measure=text_bytes, seed=f"{seed}/{shard_index}")


def mix(streams: list[Any], plans: list[Plan], *, measure: Callable[[Any], int], seed: str) -> Any:
    """One stream of several by their sources' weights."""
    if len(streams) == 1:
        return streams[0]
    return Mixture(streams, [plan.source.weight for plan in plans], measure=measure, seed=seed)


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
