"""What is read of each source, what is taken for training, and what is left out, by reason: counts or estimates.

Small text is counted. Larger text is sampled, and the counts are called estimates ("about").
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from slm.data.account.listing import Listing, list_files
from slm.data.bad_records import TALLY
from slm.data.chat.formats import plain_text
from slm.data.chat.template import REWRITTEN, TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder
from slm.data.quality import language
from slm.data.sources import duplicates
from slm.data.sources.contents import DUPLICATE, EXAMPLES, NO_TEXT, Contents, count
from slm.data.sources.corpus import SMALL_CORPUS
from slm.data.sources.filters import make_change, make_filter, settings
from slm.data.sources.held_out import contents_of, documents_of
from slm.data.sources.plan import Plan, open_whole_corpus, text_bytes, validation_files
from slm.data.sources.prepared.manifest import CALIBRATION, TRAIN, PreparedText
from slm.data.storage import stamps
from slm.data.stream.conversations import in_block
from slm.data.tokenizers.fast_encode import make_encode
from slm.data.tokenizers.tokenizer import Tokenizer

READ, READ_CHATS = 8 << 20, 2 << 20
"""So many bytes of text, or of conversations, are read to count what is not known otherwise: a part of a second."""
ENCODED_CHARS, ENCODED_DOCUMENTS = 1 << 17, 256
"""Most characters of a document, and most documents of the sample, that are tokenized to estimate the tokens."""
MOST_REASONS = 8
"""In one line."""
HELD_OUT = "held out for validation"
TO_CALIBRATE = "kept to calibrate the head"
IN_VALIDATION = "also in data.val_files"
REFUSED = "refused by the chat template"
TOO_LONG = "without an answer in the first train.seq_len tokens"
NO_PAIR = "no preference pairs"
NO_CONVERSATION = "no conversations"
EMPTY = "empty"


@dataclass(kw_only=True)
class Account:
    """The records of one source, and what becomes of them in training."""

    source: str
    listing: Listing | None
    read: int
    """Records of the files."""
    taken: int
    """Documents that are trained on, copies counted."""
    taken_bytes: int
    """UTF-8 bytes of these."""
    left_out: Counter[str]
    """Records that are not trained on, by reason. ``read`` is the sum of these and of ``taken``."""
    passages: int = 0
    """Documents taken with a passage held out."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The beginnings of some documents that a filter rejects, and the first place of what cannot be read, by reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Passages that are masked or cut out, by the mark of their kind: in the sample, extrapolated."""
    changes: list[tuple[str, str]] = field(default_factory=list)
    """Some of them: the mark, and what stood there."""
    exact: bool = True
    """Whether this was counted; otherwise it is an estimate from a sample."""
    tokens: int | None = None
    """Estimated tokens of the documents taken; None: not known."""
    exact_tokens: bool = False
    without_reasoning: int = 0
    """Answers that are learned without the reasoning before them, since the chat template does not write it."""
    unknown: int = 0
    """Tokens of characters that the tokenizer does not have, in the sample, extrapolated."""
    rewritten: int = 0
    """Answers that are not learned, since the chat template writes them otherwise than where it asks for them."""
    sample: list[str] = field(default_factory=list)
    """Some of the documents that are taken, from everywhere in the text."""
    languages: dict[str, int] = field(default_factory=dict)
    """Documents taken by language, the most frequent first; empty until ``find_languages``."""
    _is_chat: bool = False
    _train_on: Literal["all", "last"] = "all"
    """``data.train_on``."""

    @property
    def removed(self) -> int:
        """Records that are left out for another reason than the usual shares of text that is not trained on."""
        return self.left_out.total() - self.left_out[HELD_OUT] - self.left_out[TO_CALIBRATE]

    @property
    def mostly_removed(self) -> bool:
        """Whether more is left out than taken. Separate validation text is not counted."""
        return self.removed > self.taken

    def reasons(self, *, removed: bool = False) -> str:
        """Counts and reasons, the most frequent first; of what is ``removed`` only."""
        about = "" if self.exact else "about "
        found = [each for each in self.left_out.most_common() if not (removed and each[0] in (HELD_OUT, TO_CALIBRATE))]
        parts = [f"{about}{count:,} {why}" for why, count in found[:MOST_REASONS]]
        if others := found[MOST_REASONS:]:
            parts.append(f"{about}{sum(count for _, count in others):,} for {len(others)} other reasons")
        return ", ".join(parts)

    def line(self) -> str:
        """Read, taken, left out: one line."""
        about = "" if self.exact else "about "
        text = f"text of {self.source}: {about}{self.read:,} records, {about}{self.taken:,} taken"
        if self.tokens is not None:
            text += f" ({'' if self.exact_tokens else 'about '}{self.tokens:,} tokens)"
        if self.passages:
            text += f", without the passage that is held out of {about}{self.passages:,}"
        if self.left_out:
            text += f"; left out: {self.reasons()}"
        if self.without_reasoning:
            count = f"{'' if self.exact_tokens else 'about '}{self.without_reasoning:,}"
            text += f"; the chat template does not write the reasoning of {count} answers"
        if self.unknown:
            text += f"; {'' if self.exact_tokens else 'about '}{self.unknown:,} tokens are <unk>: characters that the "
            text += "tokenizer does not have"
        if self.rewritten:
            text += "; " + REWRITTEN.format(f"{'' if self.exact_tokens else 'about '}{self.rewritten:,}")
        if self.changed:
            text += "; masked or cut out: " + ", ".join(f"about {n:,} {kind}" for kind, n in self.changed.most_common())
        return text

    def find_languages(self) -> None:
        """Tell the languages of the sample, a millisecond a document."""
        self.languages = language.count(plain_text(text) if self._is_chat else text for text in self.sample)

    def record(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "source": self.source,
            "read": self.read,
            "taken": self.taken,
            "bytes": self.taken_bytes,
            "tokens": self.tokens,
            "left_out": dict(self.left_out),
            "passages_held_out": self.passages,
            "changed": dict(self.changed),
            "without_reasoning": self.without_reasoning,
            "rewritten": self.rewritten,
            "unknown": self.unknown,
            "exact": self.exact,
            "files": self.listing and self.listing.record(),
        }


def account(plan: Plan, *, limit: int | None = None) -> Account | None:
    """What the training ``plan`` of a source reads and takes; None where nobody knows before it is read (the Hub) or
    where it has no end (the embedded stories).

    Text of more than ``limit`` bytes (None: ``READ``, ``READ_CHATS``) is read in part, unless it was read before.
    """
    assert plan.split == "train"
    if plan.prepared is not None:
        return _of_prepared(plan.prepared, calibrates=plan.calibration > 0)
    if not plan.files:
        return None
    contents = _contents(plan, limit or (READ_CHATS if plan.source.is_chat else READ))
    apart = _validation_documents(plan)
    found = Account(
        source=plan.source.label,
        listing=list_files(plan.source),
        read=contents.records,
        taken=0,
        taken_bytes=0,
        left_out=Counter(contents.left_out),
        examples=dict(contents.examples),
        exact=contents.share == 1.0,
        _is_chat=plan.source.is_chat,
        _train_on=plan.source.train_on,
    )
    _name_those_without_text(found, plan)
    for hashed, document in contents.documents.items():
        divided = plan.passage > 0 and document.is_long(plan.divided)
        if plan.leaves_out(hashed, document.chars, divided=divided):
            why = IN_VALIDATION if hashed in apart else HELD_OUT
            if why == HELD_OUT and plan.calibrates(hashed) and not plan.holds_out(hashed, document.chars):
                why = TO_CALIBRATE
            found.left_out[why] += document.copies
            continue
        found.taken += document.copies
        found.passages += document.copies if divided else 0
        kept = plan.passage if divided else 0.0
        kept += plan.calibration if plan.gives_calibration(document.chars, divided=divided) else 0.0
        found.taken_bytes += round(document.size * (1 - kept))
        text = contents.sample.get(hashed)
        if text is not None and not (plan.source.is_chat and len(text) < document.chars):  # half a conversation is none
            found.sample.append(text)
    _scale(found, contents.share)
    _count_changes(found, plan)
    if plan.duplicates and not found.exact:
        found.left_out[DUPLICATE] = sum(map(len, duplicates.load(plan).values()))
    return found


def _of_prepared(text: PreparedText, *, calibrates: bool) -> Account:
    """What was counted when the corpus was prepared."""
    counts = text.facts["counts"]
    parts = [counts["parts"][str(part)] for part in ((TRAIN,) if calibrates else (TRAIN, CALIBRATION))]
    left_out = Counter[str](counts["left_out"])
    if calibrates:
        left_out[TO_CALIBRATE] += counts["parts"][str(CALIBRATION)]["documents"]
    return Account(
        source=text.label,
        listing=None,
        read=counts["read"],
        taken=sum(part["documents"] for part in parts),
        taken_bytes=sum(part["bytes"] for part in parts),
        left_out=+left_out,
        passages=counts["passages"],
        examples=counts["examples"],
        changed=Counter(counts["changed"]),
        tokens=sum(part["tokens"] for part in parts),
        exact_tokens=True,
    )


def _name_those_without_text(found: Account, plan: Plan) -> None:
    """Tell records that cannot be read, which the tally knows where all of them were looked at, from empty ones."""
    nothing = found.left_out.pop(NO_TEXT, 0)
    unreadable = TALLY.record(plan.files) if found.exact else {}
    for reason, bad in unreadable.items():
        if known := min(nothing, bad.count):
            found.left_out[reason] = known
            found.examples.setdefault(reason, [bad.first])
            nothing -= known
    if nothing:
        found.left_out[NO_CONVERSATION if plan.source.is_chat else EMPTY] = nothing


def _contents(plan: Plan, limit: int) -> Contents:
    known = not plan.source.val_files and sum(map(text_bytes, plan.files)) <= SMALL_CORPUS
    if known and not plan.duplicates:
        return contents_of(stamps(plan.files), plan.reading, settings(plan.source))  # read to hold out some of it
    sizes = [os.path.getsize(path) for path in plan.files]
    return count(
        lambda select: open_whole_corpus(plan, select),
        sizes,
        reason=make_filter(plan.source),
        skipped=duplicates.load(plan),
        limit=None if sum(map(text_bytes, plan.files)) <= limit else limit,
    )


def _validation_documents(plan: Plan) -> frozenset[float]:
    """Unit hashes of the documents in the source's validation files, which are not trained on."""
    if not plan.source.val_files:
        return frozenset()
    apart = validation_files(plan.source)
    if sum(map(text_bytes, apart)) > SMALL_CORPUS:
        return frozenset()
    return frozenset(documents_of(stamps(apart), plan.reading, settings(plan.source)))


def _scale(found: Account, share: float) -> None:
    """Turn the counts of a sample into those of the whole."""
    if 0 < share < 1:
        found.left_out = Counter({why: max(1, round(count / share)) for why, count in found.left_out.items()})
        found.taken = round(found.taken / share)
        found.taken_bytes = round(found.taken_bytes / share)
        found.passages = round(found.passages / share)
        found.read = found.taken + found.left_out.total()


def _count_changes(found: Account, plan: Plan) -> None:
    """What is masked or cut out of the sample, as a count for the whole."""

    def note(kind: str, stood: str) -> None:
        found.changed[kind] += 1
        if sum(kind == each for each, _ in found.changes) < EXAMPLES:
            found.changes.append((kind, stood))

    change = make_change(plan.source, note=note)
    if change is None or not found.sample:
        return
    for text in found.sample:
        change(text)
    ratio = found.taken_bytes / max(1, sum(len(text.encode("utf-8", "replace")) for text in found.sample))
    found.changed = Counter({kind: round(n * max(1.0, ratio)) for kind, n in found.changed.items()})


def count_tokens(found: Account, tokenizer: Tokenizer, *, seq_len: int, pairs: bool = False) -> None:
    """Add the tokens of what is taken, and of conversations those that the chat template or ``seq_len`` leaves out.

    The sample's first ``ENCODED_CHARS`` are tokenized. Where that is all of the text, the numbers are counts.
    """
    if found.exact_tokens:
        return
    chosen, chars = [], 0
    every = max(1, sum(map(len, found.sample)) // ENCODED_CHARS, len(found.sample) // ENCODED_DOCUMENTS)
    for text in found.sample[::every]:
        chosen.append(text)
        chars += len(text)
        if chars > ENCODED_CHARS:
            break
    if not chosen:
        found.tokens = 0
        return
    if found._is_chat:
        _count_conversations(found, chosen, ChatEncoder(tokenizer, train_on=found._train_on), seq_len, pairs)
        return
    encode = make_encode(tokenizer)
    sizes = sum(len(text.encode("utf-8", "replace")) for text in chosen)
    made, ratio = [encode(text) for text in chosen], found.taken_bytes / max(1, sizes)
    found.tokens = round(sum(map(len, made)) * ratio) + found.taken
    if tokenizer.unknown_id is not None:
        found.unknown = round(sum(id == tokenizer.unknown_id for ids in made for id in ids) * ratio)
    found.exact_tokens = found.exact and sizes == found.taken_bytes


def _count_conversations(found: Account, chosen: list[str], encoder: ChatEncoder, seq_len: int, pairs: bool) -> None:
    left_out: Counter[str] = Counter()
    tokens = 0
    for document in chosen:
        try:
            parts = encoder.pair(document) if pairs else (encoder.conversation(document)[:2],)
        except TemplateRefusesError:
            left_out[REFUSED] += 1
            continue
        fitting = in_block(parts, seq_len + 1) if parts else None
        if fitting is None:
            left_out[TOO_LONG if parts else NO_PAIR] += 1
        else:
            tokens += sum(len(ids) for ids, _ in fitting)
    ratio = found.taken / len(chosen)
    found.exact_tokens = found.exact and len(chosen) == found.taken
    found.exact = found.exact and (found.exact_tokens or not left_out)
    found.tokens = round(tokens * ratio)
    found.without_reasoning = round(encoder.without_reasoning * ratio)
    found.rewritten = round(encoder.rewritten * ratio)
    for why, n in left_out.items():
        found.left_out[why] = round(n * ratio)
        found.taken -= round(n * ratio)
