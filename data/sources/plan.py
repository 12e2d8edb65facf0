"""From a source's configuration to a plan: what is read, and what of it belongs to which split."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from slm.data.bad_records import TALLY
from slm.data.chat import formats
from slm.data.config import WHOLE_FILE, DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources import files, hub, kinds
from slm.data.sources.conversations import chat_files
from slm.data.sources.corpus import SMALL_CORPUS, Corpus, FileCorpus, Select
from slm.data.sources.files import Reading
from slm.data.sources.filters import options, settings
from slm.data.sources.held_out import CONVERSATIONS, DIVIDED, documents_of, hold_out
from slm.data.sources.prepared import manifest
from slm.data.sources.prepared.manifest import PreparedText
from slm.data.storage import digest_of, fingerprint, stamps

Split = Literal["train", "validation", "calibration"]
"""``calibration``: the part of the training text that a run which calibrates its head does not train on."""

LONG_DOCUMENT = 65536  # bytes; where documents of plain text may be longer, they are held out in part
CALIBRATION = 0.02  # the share of the training text that is kept for calibrating a head, where a run does that
FEW_PER_SHARD = 16  # with fewer documents per shard, all shards read all of them, and share out their blocks


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is read of one source for one split. It is decided once, so that every worker reads the same."""

    source: SourceConfig
    split: Split
    files: tuple[str, ...] = ()
    document_bytes: int = WHOLE_FILE
    hub_split: str = ""
    held_out: float = 0.0
    """Documents with a ``unit_hash`` below this are validation text; 0 where validation text is separate."""
    longest_held_out: int = 0
    """Validation: a document with more characters is not held out by its hash; 0: none is too long. A training plan
    lists the documents that such a plan holds out in ``also_held_out``."""
    passage: float = 0.0
    """The share of a divided document that is validation text, from its middle; 0: no document is divided."""
    divided: int = DIVIDED
    """The fewest characters of a document that is divided. It must be all of a file's plain text, too."""
    calibration: float = 0.0
    """The share of the training text that its calibration split has: the documents with the last unit hashes, and of a
    long document a part of its middle, around the passage of the validation split if there is one. 0: it has none."""
    also_held_out: frozenset[float] = frozenset()
    """Unit hashes of more documents that are not trained on: another source holds them out, or they are in validation
    files."""
    apart: str = ""
    """Identifies the documents of validation files among them."""
    held: tuple[tuple[str, float], ...] = ()
    """What the source alone holds out, as pairs of fields and values: a saved run keeps it, so that text which is added
    to a small corpus does not change which of the other documents are held out."""
    duplicates: str = ""
    """The file that lists the records left out as duplicates."""
    listed_as: str = ""
    """What the list calls the plan's corpus."""
    prepared: PreparedText | None = None
    """The text where it is one of a prepared corpus, which has been filtered and divided. ``files`` is empty then."""

    @property
    def has_files(self) -> bool:
        """Whether it reads local files, or what was prepared from such."""
        return bool(self.files) or (self.prepared is not None and self.prepared.of_files)

    @property
    def is_own_text(self) -> bool:
        """Whether the split is its own text, and not documents or passages held out of a larger one."""
        return self.source.kind not in ("tales", "story_chat") and not self.held_out and not self.passage

    @property
    def is_validation_text(self) -> bool:
        """Whether it is separate validation text."""
        return self.split == "validation" and self.is_own_text

    @property
    def corpus(self) -> str:
        """Identifies what is read: the files' names and sizes, or the Hub's names and commit."""
        sizes = [(os.path.basename(path), os.path.getsize(path)) for path in self.files]
        s = self.source
        if s.from_hub and os.path.isdir(s.path):
            sizes = [(str(path), path.stat().st_size) for path in sorted(Path(s.path).rglob("*")) if path.is_file()]
        what: tuple[Any, ...] = (s.kind, sizes, s.path, s.subset, self.hub_split, s.revision, s.rows, s.text_field)
        what = (*what, self.document_bytes)
        # Only what is not as usual is added: caches and positions from before there was a choice stay valid.
        if self._made_by:
            what = (*what, self._made_by)
        return fingerprint(what if self.reading.separator == Reading().separator else (*what, s.separator))

    @property
    def _made_by(self) -> tuple[Any, ...]:
        """What documents depend on next to the bytes of their files: the versions of what makes text of them."""
        if self.source.kind == "chat":
            return formats.VERSION, self.source.column_pairs
        return kinds.conversions(self.files)

    @property
    def selection(self) -> str:
        """Identifies the documents: the text, the split, the filters and the list of duplicates."""
        s = self.source
        listed = digest_of(self.duplicates) if self.duplicates else None
        what: tuple[Any, ...] = (self.corpus, self.held_out, self.split, sorted(self.also_held_out), options(s), listed)
        if self.longest_held_out:
            what = (*what, self.longest_held_out)
        if self.calibration:
            what = (*what, "calibration", self.calibration)
        return fingerprint((*what, self.passage, self.divided) if self.passage else what)

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the stream of documents, except what is in local files:
        ``slm.data.stream.read_so_far`` compares that."""
        s = self.source
        if self.prepared is not None:
            how_read = (self.prepared.number, self.split, self.calibration, s.weight, s.max_epochs)
            return fingerprint((self.prepared.identity, *how_read))
        where = () if self.files else (s.path, self.corpus if s.from_hub and os.path.isdir(s.path) else "")
        how: tuple[Any, ...] = (s.kind, where, s.subset, self.hub_split, s.revision, s.rows, s.text_field)
        how = (*how, self.document_bytes)
        if self._made_by:
            how = (*how, self._made_by)
        divided: tuple[Any, ...] = (self.held_out, self.longest_held_out, self.passage, self.divided, self.apart)
        if self.calibration:
            divided = (*divided, self.calibration)
        if s.train_on != "all":
            divided = (*divided, s.train_on)
        return fingerprint(
            (how, s.separator, divided, self.split, options(s), s.weight, s.max_epochs, bool(self.duplicates))
        )

    @property
    def reading(self) -> Reading:
        """How the source's files are read."""
        s = self.source
        return Reading(
            text_field=_field(s),
            url_field=s.url_field if s.blocked_urls else "",
            columns=s.column_pairs,
            document_bytes=self.document_bytes,
            separator=s.separator,
            on_bad="skip" if s.skips_bad else "auto" if s.on_bad == "auto" else "stop",
        )

    @property
    def long_documents(self) -> bool:
        """Whether a document may be far longer than a batch, so that blocks of several have to be shuffled."""
        if self.prepared is not None:
            return self.prepared.long_documents
        if self.source.kind != "files" or self.document_bytes <= LONG_DOCUMENT:
            return False
        return any(map(files.may_be_long, self.files))

    def leaves_out(self, hashed: float, chars: int, *, divided: bool) -> bool:
        """Whether the split does not read a document with this ``unit_hash`` and this many characters; if it is
        ``divided``, whether not even its share of it."""
        if self.split == "validation":
            if divided or not (self.held_out or self.passage):  # its own split or files
                return False
            return hashed >= self.held_out or 0 < self.longest_held_out < chars
        if self.holds_out(hashed, chars, divided=divided):
            return True
        if not self.calibration or self.gives_calibration(chars, divided=divided):
            return False
        return self.calibrates(hashed) is not (self.split == "calibration")

    def holds_out(self, hashed: float, chars: int, *, divided: bool = False) -> bool:
        """Whether training text lacks such a document since a validation split has it."""
        # Another source may hold out as a whole what this one divides, if it is short.
        whole = not divided or chars < DIVIDED
        return hashed in self.also_held_out or (whole and hashed < self.held_out)

    def calibrates(self, hashed: float) -> bool:
        """Whether a document of which all belongs to one split is calibration text, unless it is held out."""
        return self.calibration > 0 and hashed >= 1 - self.calibration

    def gives_calibration(self, chars: int, *, divided: bool) -> bool:
        """Whether a document that is trained on gives some of its text for calibration, as long ones do."""
        return self.calibration > 0 and (divided or chars >= DIVIDED)

    @property
    def least_documents(self) -> int | None:
        """About the fewest documents there may be, where all may be long; None where there are many."""
        if self.prepared is not None:
            return self.prepared.least_documents
        if not self.long_documents or not all(map(files.may_be_long, self.files)):
            return None
        return sum(1 + text_bytes(path) // self.document_bytes for path in self.files)

    def few_documents(self, num_shards: int) -> bool:
        """Whether there are too few documents for each shard to read its own."""
        least = self.least_documents if num_shards > 1 else None
        return least is not None and least < FEW_PER_SHARD * num_shards


def plan_sources(
    config: DataConfig,
    split: Split,
    held: Sequence[dict[str, Any]] | None = None,
    *,
    calibrates: bool = False,
) -> list[Plan]:
    """A plan for each source, without a list of duplicates (``slm.data.sources.documents.make_plans`` has it).

    ``held``: what each source holds out, where that is decided already. ``calibrates``: whether the training text
    keeps some for a calibration split.
    Raises UserError for what cannot be read: missing files, no network, no text.
    """
    manifest.check_alone(config)
    sources = config.all_sources()
    plans: list[Plan] = []
    for number, source in enumerate(sources):
        if split == "validation" and not source.validated:
            continue
        if source.prepared:
            plans += _plan_prepared(source, split, alone=len(sources) == 1)
        else:
            plans.append(_plan_source(source, split, config.val_fraction, held[number] if held else None))
    found = plans if split == "validation" else _without_held_out(plans)
    if split == "calibration" or (calibrates and split == "train"):
        found = [replace(plan, calibration=CALIBRATION) for plan in found]
    TALLY.report()  # of what was read to plan
    return found


def open_whole_corpus(plan: Plan, select: Select | None = None) -> Corpus[str]:
    """All documents of the plan's files or Hub split: of both splits, unfiltered, duplicates included.

    ``select`` may take its share of each document of files of text.
    """
    if plan.source.from_hub:
        return hub.HubCorpus(plan.source, plan.hub_split)
    if plan.source.kind == "chat":
        source = plan.source
        return chat_files.ChatFileCorpus(plan.files, stop=not source.skips_bad, columns=source.column_pairs)
    return FileCorpus(plan.files, plan.reading, select)


def _plan_source(source: SourceConfig, split: Split, val_fraction: float, held: dict[str, Any] | None) -> Plan:
    if source.kind in ("tales", "story_chat"):
        return Plan(source=source, split=split, held_out=val_fraction)
    if source.from_hub:
        source = replace(source, revision=hub.resolve(source))
        chosen = source.val_split if split == "validation" and source.val_split else source.split
        return Plan(source=source, split=split, hub_split=chosen, held_out=0 if source.val_split else val_fraction)
    return _plan_files(source, split, val_fraction, held)


def _plan_prepared(source: SourceConfig, split: Split, *, alone: bool) -> list[Plan]:
    """A plan for each source of a prepared corpus, by the weights that they were prepared with."""
    texts = manifest.sources_of(source.prepared)
    whole = 1.0 if alone else sum(text.facts["weight"] for text in texts) / source.weight
    return [
        Plan(
            source=replace(
                source,
                name=text.label,
                weight=text.facts["weight"] / whole,
                max_epochs=source.max_epochs or text.facts["max_epochs"],
            ),
            split=split,
            held_out=text.facts["held_out"],
            passage=text.facts["passage"],
            prepared=text,
        )
        for text in texts
        if split != "validation" or text.facts["validated"]
    ]


def _plan_files(source: SourceConfig, split: Split, val_fraction: float, held: dict[str, Any] | None) -> Plan:
    if not source.files:
        raise UserError("no text is named: add data.files=[...] (paths, globs or folders of text and documents)")
    paths = source_files(source)
    if source.val_files:
        validation = validation_files(source)
        apart = {os.path.realpath(path) for path in validation}
        paths = [path for path in paths if os.path.realpath(path) not in apart]
        if not paths:
            raise UserError("every file of data.files is also in data.val_files: name separate training text")
    if source.kind == "chat":
        chat_files.inspect(tuple(paths), stop=not source.skips_bad, columns=source.column_pairs)
    size = sum(text_bytes(path) for path in paths)
    if size == 0:
        raise UserError(f"the corpus is empty: {files.few_names(paths)} hold no bytes; check data.files")
    plan = Plan(source=source, split=split, files=tuple(paths), document_bytes=source.document_chars)
    if source.val_files:
        return replace(plan, files=tuple(validation)) if split == "validation" else plan
    if source.kind == "chat" and not val_fraction:
        return plan  # they are few: all are trained on, and scored
    if not held and size <= SMALL_CORPUS:
        held = hold_out(stamps(paths), plan.reading, settings(source), val_fraction, plan.long_documents)
    elif not held:
        held = {"held_out": val_fraction, "passage": val_fraction if plan.long_documents else 0.0}
    return replace(plan, **held, held=tuple(sorted(held.items())))


def source_files(source: SourceConfig) -> list[str]:
    """The files that ``data.files`` names, those of ``data.val_files`` among them."""
    return _expand(source.files, source, text_field=source.text_field if source.kind == "files" else None)


def validation_files(source: SourceConfig) -> list[str]:
    """The files that ``data.val_files`` names."""
    return _expand(source.val_files, source, "data.val_files")


def _expand(
    patterns: list[str], source: SourceConfig, option: str = "data.files", text_field: str | None = None
) -> list[str]:
    return files.expand(patterns, option, text_field, plain_text=not source.is_chat)


def _without_held_out(plans: list[Plan]) -> list[Plan]:
    """Training plans without the documents and passages that any of the sources holds out for validation.

    Large sources hold out the same range of hashes, so a document is in the same split in all of them. A small corpus
    may hold out a wider range, and validation files contain any documents: their hashes are listed. The documents of
    a Hub's validation split are not listed (``data.dedup`` finds copies of them). All sources
    leave out a divided document's longest held-out passage. A prepared corpus has been divided, and stays as it is.
    """
    if any(plan.prepared for plan in plans):
        others = iter(_without_held_out([plan for plan in plans if not plan.prepared]))
        return [plan if plan.prepared else next(others) for plan in plans]
    if not plans:
        return []
    hashes: set[float] = set()
    apart: list[float] = []
    widest = max((plan.held_out for plan in plans if not _is_small(plan)), default=0.0)
    least = min((_full_range(plan) for plan in plans), default=0.0)
    passage = max(plan.passage for plan in plans)
    for plan in plans:
        if plan.source.val_files:
            paths = validation_files(plan.source)
            if sum(map(text_bytes, paths)) <= SMALL_CORPUS:
                apart += documents_of(stamps(paths), plan.reading, settings(plan.source)).keys()
        elif plan.held_out > least and _is_small(plan):
            documents = documents_of(stamps(plan.files), plan.reading, settings(plan.source))
            whole = (each for each, found in documents.items() if not plan.passage or not found.is_long(plan.divided))
            hashes |= {
                each
                for each in whole
                if least <= each < plan.held_out and documents[each].chars <= (plan.longest_held_out or math.inf)
            }
    also_held_out = frozenset((*hashes, *apart))
    return [
        replace(
            plan,
            also_held_out=also_held_out,
            apart=fingerprint(sorted(apart)) if apart else "",
            held_out=max(_full_range(plan), widest),
            longest_held_out=0,
            passage=passage if plan.long_documents else 0.0,
        )
        for plan in plans
    ]


def _full_range(plan: Plan) -> float:
    """The range of hashes in which every document is held out, whatever its length."""
    return 0.0 if plan.longest_held_out else plan.held_out


def _field(source: SourceConfig) -> str:
    """The field that holds the text, or ``CONVERSATIONS``."""
    return CONVERSATIONS if source.kind == "chat" else source.text_field


def _is_small(plan: Plan) -> bool:
    """Whether it is a small corpus of files of which a part is held out."""
    if not plan.files or plan.source.val_files:
        return False
    return sum(map(text_bytes, plan.files)) <= SMALL_CORPUS


def text_bytes(path: str) -> int:
    """Roughly how many bytes of text a file holds."""
    packed = 4 if path.lower().endswith(files.COMPRESSED_SUFFIXES) else 1
    return os.path.getsize(path) * (3 if files.file_format(path) == "parquet" else packed)
