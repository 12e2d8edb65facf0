"""What is in the conversations of a tuned run: how many different ones, how long, and what cannot be learned.

Tested in tests/train/tune/test_look.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slm.data.chat.template import REWRITTEN, TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder
from slm.data.config import DataConfig
from slm.data.errors import UserError, one_line
from slm.data.sources import files
from slm.data.sources.contents import unit_hash
from slm.data.sources.conversations import chat_files
from slm.data.sources.documents import make_plans, open_stream
from slm.data.sources.plan import Plan
from slm.data.stream.chat_setup import chat_setup
from slm.data.stream.conversations import in_block
from slm.data.tokenizers.make import load_tokenizer

MEASURED = 1000
"""Conversations that are tokenized; the others are counted."""
MOST_COPIED = 2
"""Records for each different conversation, from which on copies are read once. Fewer may be meant to weigh more."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was found in files of conversations."""

    line: str
    """One line for a person."""
    records: int
    """Conversations that can be read, and if they stand there several times, each time."""
    distinct: int
    """Different ones."""
    lengths: tuple[int, ...]
    """Tokens of those that were looked at, copies left out."""
    scored: float
    """Tokens that are scored, as a share of all."""
    shared: int = 0
    """Tokens at their beginning that most of them share with others: a step computes these once."""
    held_out: int | None = None
    """Different conversations in separate files; None: there are no such files."""

    @property
    def copied(self) -> bool:
        """Whether most records are copies of others. Reading all would teach few conversations only."""
        return self.records > MOST_COPIED * self.distinct

    @property
    def mean_length(self) -> float:
        """Tokens of a conversation."""
        return sum(self.lengths) / len(self.lengths)


def look(data: DataConfig, directory: Path, *, longest: int, seed: int, pairs: bool = False) -> Look | str | None:
    """What training would read; only a line where there is more than is looked at, and None for conversations that do
    not stand in files.

    ``longest``: tokens of the longest sequence. ``pairs``: both answers of preference pairs are
    read, and nothing else. UserError where the chat template refuses all conversations, where none has an answer in
    its first ``longest`` tokens, and where all are held out.
    """
    sources = data.all_sources()
    if not (len(sources) == 1 and sources[0].kind == "chat" and not sources[0].path):
        return None
    paths = tuple(files.expand(sources[0].files, plain_text=False))
    findings = chat_files.inspect(paths, stop=not sources[0].skips_bad, columns=sources[0].column_pairs)
    if not findings.complete:
        return findings.line(pairs=pairs)
    encoder = ChatEncoder(chat_setup(load_tokenizer(directory), data)[0], train_on=sources[0].train_on)
    (plan,) = make_plans(data if data.val_files else replace(data, val_fraction=0.0), "train")
    apart = _hashes(data, seed) if data.val_files else None
    lengths: list[int] = []
    cut: list[int] = []
    alike: list[int] = []
    before: np.ndarray | None = None
    seen: set[float] = set()
    tokens = scored = records = looked_at = refused = too_long = in_both = 0
    why = ""
    for document in _records(replace(plan, also_held_out=frozenset()), seed):
        hashed = unit_hash(document)
        if hashed in plan.also_held_out:
            in_both += 1
            continue
        records += 1
        only_counted = hashed in seen or len(seen) >= MEASURED
        seen.add(hashed)
        if only_counted:
            continue
        looked_at += 1
        try:
            parts = encoder.pair(document) if pairs else (encoder.conversation(document)[:2],)
        except TemplateRefusesError as error:
            refused, why = refused + 1, why or one_line(error)
            continue
        if parts is None:
            continue
        lengths.append(sum(len(ids) for ids, _ in parts))
        if fitting := in_block(parts, longest + 1):
            cut.append(sum(len(ids) for ids, _ in fitting))
            if not pairs:  # both answers of a pair are computed whole
                ids, unscored = fitting[0][0], int(np.argmax(fitting[0][1]))
                if before is not None:
                    alike.append(min(unscored, same_beginning(before, ids)))
                before = ids
            tokens += cut[-1]
            scored += sum(int(each.sum()) for _, each in fitting)
            too_long += lengths[-1] > cut[-1]
    if in_both and not records:
        raise UserError(
            f"all {in_both:,} conversations of data.files are in data.val_files, too, so none is left to learn: leave "
            "data.val_files out (validations then score what is learned), or name other files there"
        )
    if refused and not lengths:
        raise UserError(
            f"the chat template of {directory} refuses all conversations, the first so: {why}; give them in the form "
            "that it takes, or tune a base model, which gets ChatML"
        )
    first = f"first {'half of ' if pairs else ''}train.seq_len={longest} tokens"
    if lengths and not cut:
        raise UserError(
            f"no conversation has an answer in its {first} (they have "
            f"{min(lengths):,} to {max(lengths):,}): raise train.seq_len, or shorten what comes before the answers"
        )
    line = findings.line(pairs=pairs)
    if len(seen) < records:
        line += f"; {len(seen):,} different ones of {records:,}"
    if in_both:
        line += f"; {in_both:,} more are in the held-out files, too, and are not learned"
    if encoder.without_reasoning:
        line += f"; the chat template does not write the reasoning of {encoder.without_reasoning:,} answers"
    if encoder.rewritten:
        line += "; " + REWRITTEN.format(f"{encoder.rewritten:,}")
    if refused:
        line += f"; the chat template refuses {refused:,} of {looked_at:,}, which are left out, the first so: {why}"
    if len(cut) < len(lengths):
        late = f"{len(lengths) - len(cut):,} of {len(lengths):,} looked at"
        line += f"; {late} have no answer in their {first}: left out"
    if too_long:
        line += f"; {too_long:,} of {len(lengths):,} looked at lose their ends after train.seq_len={longest} tokens"
    usable = len(cut) / max(1, looked_at)
    return Look(
        line=line,
        records=round(records * usable),
        distinct=max(1, round(len(seen) * usable)),
        lengths=tuple(cut),
        scored=scored / max(1, tokens),
        shared=sorted(alike)[len(alike) // 4] if alike else 0,
        held_out=None if apart is None else len(apart),
    )


def _hashes(data: DataConfig, seed: int) -> set[float]:
    """The unit hashes of the conversations in the files that are held out."""
    plans = make_plans(data, "validation")
    return {unit_hash(document) for plan in plans for document in _records(plan, seed)}


def _records(plan: Plan, seed: int) -> Iterator[str]:
    """All of a source's records, once."""
    stream = open_stream(plan, seed=seed, wrap=lambda corpus: corpus)
    while True:
        try:
            document = next(stream)
        except StopIteration:
            return
        yield document


def same_beginning(one: np.ndarray, other: np.ndarray) -> int:
    """How many ids both begin with."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
