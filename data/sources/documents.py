"""A plan's documents as streams: selected by split, filters and duplicates, repeated, shuffled, mixed, sharded."""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from slm.data.chat.formats import plain_text, to_document
from slm.data.chat.story_chat import conversation
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.sources import duplicates
from slm.data.sources.contents import unit_hash
from slm.data.sources.corpus import Corpus, CorpusStream, Select, SelectedCorpus
from slm.data.sources.document_stream import Doc, ResumableStream, State, TextStream
from slm.data.sources.filters import Reason, make_change, make_filter
from slm.data.sources.mixture import Filtered, Item, Mapped, Mixture, Repeated, Shuffled, text_bytes
from slm.data.sources.passages import middle, without
from slm.data.sources.plan import Plan, Split, open_whole_corpus, plan_sources
from slm.data.sources.prepared.manifest import decode
from slm.data.sources.prepared.tokens import PreparedCorpus
from slm.data.tales.story import story
from slm.data.tokenizers.tokenizer import well_formed

VALIDATION_TALES = 20_000  # candidates, of which val_fraction are validation and some calibration text


class TalesStream:
    """Stories of the embedded corpus, every ``num_shards``-th of them; ``count`` in all, None: without end.

    ``make(seed, index)`` gives one.
    """

    def __init__(
        self,
        *,
        seed: int,
        shard_index: int,
        num_shards: int,
        count: int | None,
        make: Callable[[int, int], str] = story,
    ) -> None:
        self._seed = seed
        self._make = make
        self._index, self._step = shard_index, num_shards
        self._count = count

    def __next__(self) -> str:
        if self._count is not None and self._index >= self._count:
            raise StopIteration
        text = self._make(self._seed, self._index)
        self._index += self._step
        return text

    def state_dict(self) -> State:
        return {"index": self._index}

    def load_state_dict(self, state: State) -> None:
        self._index = state["index"]


def make_plans(
    config: DataConfig,
    split: Split,
    held: Sequence[dict[str, Any]] | None = None,
    *,
    calibrates: bool = False,
) -> list[Plan]:
    """A plan for each source, with the list of duplicates that ``data.dedup`` asks for.

    ``held``: what each source holds out (``Plan.held``), where a saved run has decided it. ``calibrates``: whether the
    training text keeps some for a calibration split.
    All text is read the first time, to list the duplicates. Raises UserError for what cannot be read: missing files,
    no network, no text.
    """
    plans = plan_sources(config, split, held, calibrates=calibrates)
    if config.dedup == "none":
        return plans
    other: Split = "train" if split == "validation" else "validation"
    others = plan_sources(config, other, held)
    # Separate validation text comes first: training text that repeats it is then left out.
    ordered = [*plans, *others] if split == "validation" else [*others, *plans]
    listed = duplicates.list_duplicates(config, ordered)
    return listed[: len(plans)] if split == "validation" else listed[len(others) :]


def open_corpus(plan: Plan) -> Corpus[str]:
    """The documents of the plan's split: filtered, and without duplicates. Not of a prepared corpus, which has ids."""
    assert plan.prepared is None
    skipped = duplicates.load(plan)
    change = make_change(plan.source, validation_text=plan.is_validation_text)
    if plan.source.kind == "files":
        return SelectedCorpus(open_whole_corpus(plan, make_select(plan)), skipped=skipped, change=change)
    return SelectedCorpus(open_whole_corpus(plan), accepts=make_accepts(plan), skipped=skipped, change=change)


def make_accepts(plan: Plan) -> Callable[[str], bool]:
    """A function that tells whether a text belongs to the plan's split and passes its filters."""
    select = make_select(plan)
    return lambda text: select(text, False) is not None


def make_select(plan: Plan) -> Select:
    """A function from a document to what the plan's split reads of it; None: nothing, or a filter rejects it."""
    return make_share(plan, make_filter(plan.source, validation_text=plan.is_validation_text))


def make_share(plan: Plan, reason: Reason | None = None) -> Select:
    """``make_select`` with these filters (None: for documents that have passed them)."""
    validation = plan.split == "validation"
    by_hash = bool(plan.held_out or plan.also_held_out or plan.calibration or (validation and plan.passage))

    def is_read(text: str, divided: bool) -> bool:
        """Whether the split has the document, or if it is ``divided`` its own share of it."""
        return not by_hash or not plan.leaves_out(unit_hash(text), len(text), divided=divided)

    def select(text: str, undivided: bool) -> str | None:
        divided = undivided and plan.passage > 0 and len(text) >= plan.divided
        if not is_read(text, divided) or (reason is not None and reason(text) is not None):
            return None
        passage = middle(text, plan.passage) if divided else None
        if validation:
            return text if passage is None else text[passage]
        if not plan.gives_calibration(len(text), divided=divided):
            return text if passage is None else without(text, passage)
        around = middle(text, plan.calibration + (plan.passage if divided else 0.0))
        if plan.split == "train":
            return without(text, around)
        if passage is None:
            return text[around]
        return without(text[around], slice(passage.start - around.start, passage.stop - around.start))

    return select


class Recorder(Protocol):
    """What is told which stream of a source is read."""

    def begin(self, epoch: int, stream: CorpusStream[Any]) -> None:
        """An epoch begins, and with it a stream."""
        ...


def open_stream(
    plan: Plan,
    *,
    seed: int,
    number: int = 0,
    shard_index: int = 0,
    num_shards: int = 1,
    shuffle_buffer: int = 0,
    repeat: bool = False,
    wrap: Callable[[Corpus[str]], Corpus[Doc]],
    recorder: Recorder | None = None,
) -> ResumableStream[Doc | str]:
    """One shard's share of a source's documents: one epoch, or with ``repeat`` as many as the source allows.

    ``number`` is the source's number in a mixture, ``wrap`` may put a cache over the source's corpus. The ``recorder``
    is told of the stream of each epoch.
    """
    epochs = plan.source.max_epochs if repeat else 1
    stream: Repeated[Doc] | Repeated[str]
    if plan.source.kind == "story_chat":
        count = None if plan.split == "train" else VALIDATION_TALES
        make = functools.partial(_story_chat, plan.split == "validation")

        def conversations(epoch: int) -> TextStream:
            return TalesStream(seed=seed, count=count, shard_index=shard_index, num_shards=num_shards, make=make)

        stream = Repeated(conversations, epochs=None if repeat else 1)
    elif plan.source.kind == "tales":
        count = None if plan.split == "train" else VALIDATION_TALES
        accepts = make_accepts(plan)

        def tales(epoch: int) -> TextStream:
            stories = TalesStream(seed=seed, count=count, shard_index=shard_index, num_shards=num_shards)
            return Filtered(stories, accepts)

        # The stories never end, so a pass over them is the only one.
        stream = Repeated(tales, epochs=None if repeat else 1)
    else:
        corpus: Corpus[Any] = (
            PreparedCorpus(plan.prepared, plan.split, calibrates=plan.calibration > 0)
            if plan.prepared
            else wrap(open_corpus(plan))
        )

        def one_pass(epoch: int) -> ResumableStream[Doc]:
            order = functools.partial(file_order, plan, seed, epoch)
            found = CorpusStream(corpus, order=order, shard_index=shard_index, num_shards=num_shards)
            if recorder is not None:
                recorder.begin(epoch, found)
            return found

        stream = Repeated(one_pass, epochs=epochs)
    if not shuffle_buffer:
        return stream
    shuffled: ResumableStream[Doc | str] = Shuffled(
        stream,  # type: ignore[arg-type]  # of either kind
        size=shuffle_buffer,
        seed=f"{seed}/{number}/{shard_index}",
    )
    return shuffled


def _story_chat(held_out: bool, seed: int, index: int) -> str:
    return to_document(conversation(seed, index, held_out=held_out))


def file_order(plan: Plan, seed: int, epoch: int, n_files: int) -> list[int]:
    """The order in which a pass reads the files: a different one each epoch of training."""
    order = list(range(n_files))
    if plan.split == "train":
        random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def open_documents(
    plans: list[Plan],
    *,
    seed: int,
    shard_index: int = 0,
    num_shards: int = 1,
    shuffle_buffer: int = 0,
    endless: bool = False,
) -> TextStream:
    """The documents of all sources as text, mixed by weight (of bytes, because the text is not tokenized).

    Of conversations the messages' contents are taken.
    """
    assert 0 <= shard_index < num_shards
    streams: list[TextStream] = []
    for number, plan in enumerate(plans):
        stream = open_stream(
            plan,
            seed=seed,
            number=number,
            shard_index=shard_index,
            num_shards=num_shards,
            shuffle_buffer=shuffle_buffer,
            repeat=endless,
            wrap=_uncached,
        )
        streams.append(_as_text(stream, plan))
    return mix(streams, plans, measure=text_bytes, seed=f"{seed}/{shard_index}")


def _as_text(stream: ResumableStream[Any], plan: Plan) -> TextStream:
    if plan.prepared is not None:
        folder = plan.prepared.folder
        return Mapped(stream, lambda document: decode(folder, document.ids))
    return Mapped(stream, plain_text) if plan.source.is_chat else stream


def _uncached(corpus: Corpus[str]) -> Corpus[str]:
    return corpus


def mix(
    streams: list[ResumableStream[Item]], plans: list[Plan], *, measure: Callable[[Item], int], seed: str
) -> ResumableStream[Item]:
    """Several streams as one, mixed by their sources' weights."""
    if len(streams) == 1:
        return streams[0]
    return Mixture(streams, [plan.source.weight for plan in plans], measure=measure, seed=seed)


def iter_documents(config: DataConfig, split: Split, seed: int) -> Iterator[str]:
    """One pass over a split's documents, shuffled as the configuration says (endless for ``tales``' training)."""
    stream = open_documents(make_plans(config, split), seed=seed, shuffle_buffer=config.shuffle_buffer)
    while True:
        try:
            text = next(stream)
        except StopIteration:
            return
        yield text


def sample_documents(
    config: DataConfig, split: Split, max_bytes: int, seed: int, longest: int | None = None
) -> Iterator[str]:
    """Documents of a split up to ``max_bytes`` of UTF-8 in total, at least one.

    They come from the beginning of the shuffled stream, not from everywhere in the corpus. A document with
    more than ``longest`` characters gives that number from its middle. All of it is text that UTF-8 can carry.
    """
    total = 0
    for document in iter_documents(config, split, seed):
        text = well_formed(_shortened(document, longest))
        size = len(text.encode("utf-8"))
        if total and total + size > max_bytes:
            return
        total += size
        yield text
    if not total:
        raise UserError(f"the {split} split has no documents: give more text or another data.val_fraction")


def _shortened(document: str, longest: int | None) -> str:
    """The document, or about ``longest`` characters from its middle."""
    if longest is None or len(document) <= longest:
        return document
    return document[middle(document, longest / len(document))]
