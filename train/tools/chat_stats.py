"""Counts over conversations, and three of them as training sees them: what is scored in colour, or between marks.

Tested in tests/train/tools/test_data_stats.py.
"""

import itertools
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slm.data.chat.formats import from_document
from slm.data.chat.template import REWRITTEN, Rendered, TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder
from slm.data.config import DataConfig
from slm.data.errors import one_line
from slm.data.sources.documents import open_stream
from slm.data.sources.plan import Plan, plan_sources
from slm.data.stream.chat_setup import findings_of
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.report import plain, table

EXAMPLES = 3
SHOWN_CHARS = 1500
COLOR, OFF = "\x1b[32m", "\x1b[0m"
OPENING, CLOSING = "[[", "]]"
"""Around what is scored, where there is no terminal to colour it."""


@dataclass
class ChatStatistics:
    """Counts over the conversations of one source."""

    found: str = ""
    """What its files hold, in one line; empty for the Hub and the embedded conversations."""
    refused: int = 0
    """Conversations that the chat template does not render."""
    why: str = ""
    """Why it does not render the first of them."""
    without_reasoning: int = 0
    """Answers with reasoning that it does not write."""
    rewritten: int = 0
    """Answers that are not learned, since it writes them otherwise than where it asks for them."""
    turns: Counter[int] = field(default_factory=Counter)
    """Number of messages to number of conversations."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of each conversation."""
    scored: int = 0
    """Tokens that the loss counts: the assistant's, with the token that ends each turn."""
    too_long: int = 0
    """Conversations longer than a training sequence: they lose their end."""
    examples: list[Rendered] = field(default_factory=list)
    bytes: int = 0
    """UTF-8 bytes of the conversations as they are kept."""
    complete: bool = False
    """Whether all of the source was read."""

    def record(self) -> dict[str, Any]:
        """The counts as plain values."""
        lengths = np.array(self.lengths or [0])
        quantiles = zip(
            ("min", "p10", "median", "p90", "max"), np.percentile(lengths, (0, 10, 50, 90, 100)), strict=True
        )
        return {
            "conversations": len(self.lengths),
            "refused": self.refused,
            "without_reasoning": self.without_reasoning,
            "rewritten": self.rewritten,
            "messages": sum(count * n for count, n in self.turns.items()),
            "tokens": int(lengths.sum()),
            "scored_tokens": self.scored,
            "scored_share": round(self.scored / max(1, int(lengths.sum())), 4),
            "longer_than_seq_len": self.too_long,
            "conversation_tokens": {name: int(value) for name, value in quantiles},
            "found": self.found,
            "why_refused": self.why,
            "examples": [_pieces(each) for each in self.examples],
            "bytes": self.bytes,
            "complete": self.complete,
        }


def count(
    config: DataConfig, tokenizer: Tokenizer, *, seq_len: int, max_docs: int, max_mb: float = math.inf, seed: int
) -> dict[str, ChatStatistics]:
    """The statistics of each source of conversations, by name: those of the training split, of its first ``max_docs``
    conversations or ``max_mb`` megabytes."""
    counted: dict[str, ChatStatistics] = {}
    for plan in plan_sources(config, "train"):
        if not plan.source.is_chat:
            print(f"{plan.source.label}: plain text, not counted next to conversations (make data-stats with it alone)")
            continue
        name = plan.source.label
        while name in counted:
            name += "'"
        encoder = ChatEncoder(tokenizer, train_on=plan.source.train_on)
        counted[name] = _count(plan, encoder, seq_len, max_docs, max_mb, seed)
    return counted


def _count(plan: Plan, encoder: ChatEncoder, seq_len: int, max_docs: int, max_mb: float, seed: int) -> ChatStatistics:
    stats = ChatStatistics()
    if plan.files:  # slm.data.stream.chat_setup has said it of the Hub's
        found = findings_of(plan.source)
        stats.found = found.line() if found else ""
    stream = open_stream(plan, seed=seed, wrap=lambda corpus: corpus)
    while True:
        try:
            document = next(stream)
        except StopIteration:
            stats.complete = True
            break
        if len(stats.lengths) + stats.refused >= max_docs or stats.bytes >= 1e6 * max_mb:
            break
        assert isinstance(document, str)
        stats.bytes += len(document.encode("utf-8", "replace"))
        try:
            ids, scored, rendered = encoder.conversation(document)
        except TemplateRefusesError as error:
            stats.refused += 1
            stats.why = stats.why or one_line(error)
            continue
        stats.without_reasoning += rendered.without_reasoning
        stats.rewritten += rendered.rewritten
        stats.turns[len(from_document(document)["messages"])] += 1
        stats.lengths.append(len(ids))
        stats.scored += int(scored.sum())
        stats.too_long += len(ids) > seq_len + 1
        if len(stats.examples) < EXAMPLES:
            stats.examples.append(rendered)
    return stats


def show(counted: dict[str, ChatStatistics], tokenizer: str) -> None:
    """What was found, the table, and the examples."""
    rows = []
    for name, each in counted.items():
        if each.found:
            print(each.found)
        if each.refused:
            print(f"{name}: the chat template refuses {each.refused:,}, which are left out, the first so: {each.why}")
        if each.without_reasoning:
            print(f"{name}: the chat template does not write the reasoning of {each.without_reasoning:,} answers")
        if each.rewritten:
            print(f"{name}: " + REWRITTEN.format(f"{each.rewritten:,}"))
        r = each.record()
        length = r["conversation_tokens"]
        rows.append(
            [
                name,
                f"{r['conversations']:,}",
                f"{r['messages'] / max(1, r['conversations']):.1f}",
                f"{r['tokens']:,}",
                f"{length['median']:,} ({length['min']:,} to {length['max']:,})",
                f"{r['scored_share']:.1%}",
                f"{1 - r['scored_share']:.1%}",
                f"{r['longer_than_seq_len']:,}",
                f"{r['refused']:,}",
            ]
        )
    columns = ["source", "conversations", "messages each", "tokens", "median length", "scored", "masked"]
    columns += ["longer than seq_len", "refused"]
    caption = (
        f"Tokens of {tokenizer}. Scored: the assistant's tokens, with the one that ends its turn; masked: all others.\n"
        "Longer than seq_len: they lose their end in training. Refused: the chat template does not render them."
    )
    table("The conversations", columns, rows, caption=caption)
    for each in counted.values():
        for number, rendered in enumerate(each.examples, 1):
            print(f"\nexample {number} (what is scored is {'green' if sys.stdout.isatty() else 'between [[ and ]]'}):")
            print(colored(rendered, terminal=sys.stdout.isatty()))


def colored(rendered: Rendered, *, terminal: bool) -> str:
    """The conversation's text, with what is scored in colour or between marks; long texts are cut in the middle."""
    opening, closing = (COLOR, OFF) if terminal else (OPENING, CLOSING)
    parts, at = [], 0
    for begin, end in rendered.scored:
        parts += [_short(rendered.text[at:begin]), opening + _short(rendered.text[begin:end]) + closing]
        at = end
    return "".join([*parts, _short(rendered.text[at:])])


def _pieces(rendered: Rendered) -> list[dict[str, Any]]:
    """The conversation's text in pieces, each with whether it is scored; long ones are cut in the middle."""
    cuts = [0, *(at for span in rendered.scored for at in span), len(rendered.text)]
    pieces = itertools.pairwise(cuts)
    found = [(rendered.text[begin:end], number % 2 == 1) for number, (begin, end) in enumerate(pieces)]
    return [{"text": _short(text), "scored": scored} for text, scored in found if text]


def _short(text: str) -> str:
    text = plain(text)
    half, left_out = SHOWN_CHARS // 2, len(text) - SHOWN_CHARS
    return text if left_out <= 0 else f"{text[:half]} [... {left_out:,} characters ...] {text[-half:]}"
