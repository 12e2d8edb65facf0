"""A reply as a list of blocks (reasoning, text, tool calls), for the APIs whose responses are made of them.

Tested in tests/serve/api/openai/test_responses.py, tests/serve/api/anthropic/test_messages.py.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from slm.serve.api.openai.chat import ReplyForm
from slm.serve.api.openai.response_builder import ResponseBuilder
from slm.serve.engine.messages import Delta, PrefillDone
from slm.serve.tools.reply_reader import ReplyReader

BlockKind = Literal["reasoning", "content", "call"]


@dataclass(kw_only=True)
class Block:
    """A part of a reply."""

    kind: BlockKind
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    name: str = ""
    """Of the function, for a call."""
    text: str = ""
    """For a call, its arguments."""
    done: bool = False


class BlockBuilder(ResponseBuilder):
    """One reply. A stream reports each block when it begins, grows and ends, one block after the other."""

    named_events = True
    ends_in_done = False

    def __init__(self, *, model: str, form: ReplyForm) -> None:
        super().__init__(model=model, n_choices=1, n=1, with_logprobs=False)
        self._reader = ReplyReader(form.calls, form.reasoning)
        self._blocks: list[Block] = []
        self._events: list[dict[str, Any]] = []
        """Of the event that was added last."""

    def add(self, index: int, event: PrefillDone | Delta) -> None:
        """Takes an event of the only choice."""
        super().add(index, event)
        if isinstance(event, PrefillDone):
            self._events = self._begun()
            if self._reader.plain:
                self._events += self._open("content")
        else:
            self._events = self._take(event)

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The events of a stream that an event of the engine makes."""
        return self._events

    def _take(self, event: Delta) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for piece in self._reader.push(event.text, last=event.finish is not None):
            if piece.kind == "call":
                events += self._open("call", piece.text)
                continue
            if piece.kind != "arguments" and (not self._blocks or self._blocks[-1].kind != piece.kind):
                events += self._open(piece.kind)
            if piece.kind == "reasoning":
                self._choices[0].n_reasoning = event.completion_tokens
            block = self._blocks[-1]
            block.text += piece.text
            events += self._grown(len(self._blocks) - 1, block, piece.text)
        if event.finish is not None:
            if not self._blocks:
                events += self._open("content")
            events += self._close(len(self._blocks) - 1) + self._ended()
        return events

    def _open(self, kind: BlockKind, name: str = "") -> list[dict[str, Any]]:
        self._blocks.append(Block(kind=kind, name=name))
        closing = self._close(len(self._blocks) - 2)  # now that it is no longer the last one
        return closing + self._opened(len(self._blocks) - 1, self._blocks[-1])

    def _close(self, index: int) -> list[dict[str, Any]]:
        if index < 0 or self._blocks[index].done:
            return []
        self._blocks[index].done = True
        return self._closed(index, self._blocks[index])

    @abstractmethod
    def _begun(self) -> list[dict[str, Any]]:
        """The first events of a stream."""

    @abstractmethod
    def _opened(self, index: int, block: Block) -> list[dict[str, Any]]:
        """The events of a block that begins."""

    @abstractmethod
    def _grown(self, index: int, block: Block, text: str) -> list[dict[str, Any]]:
        """The events of a text that was added to a block."""

    @abstractmethod
    def _closed(self, index: int, block: Block) -> list[dict[str, Any]]:
        """The events of a block that ends."""

    @abstractmethod
    def _ended(self) -> list[dict[str, Any]]:
        """The last events of a stream."""
