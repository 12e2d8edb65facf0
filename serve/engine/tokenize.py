"""Between text and tokens: texts of megabytes are tokenized without holding up the streams, and the bytes of generated
tokens become text that may be shown.

Tested in tests/serve/engine/test_tokenize.py, tests/serve/engine/test_detokenizer.py.
"""

from __future__ import annotations

import codecs
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.serve.engine.messages import Event, Failure, Reply, Tokenize

_CHARACTERS_PER_TOKEN = 8
"""How much of a text is looked at first, per token that it may have."""
_SHORT = 16_384
"""Characters that are tokenized at once."""


def tokenize_within(
    model: Model,
    text: str,
    limit: int,
    *,
    add_special: bool,
    parse_special: bool,
    literal_spans: tuple[tuple[int, int], ...] = (),
) -> tuple[list[int], bool]:
    """The tokens of a text, and whether they are all of them.

    A text that has more than ``limit`` tokens may be cut: then the tokens of a beginning are returned, which alone are
    more than ``limit``, and False. ``literal_spans`` are those of ``Generate``.
    """

    def tokens_of(n: int) -> list[int]:
        """Of the first ``n`` characters."""
        spans = [(begin, min(end, n)) for begin, end in literal_spans if begin < n]
        return model.tokenize_parts(text[:n], spans, add_special=add_special, parse_special=parse_special)

    size = max(_CHARACTERS_PER_TOKEN * limit, _SHORT)
    while size < len(text):
        tokens = tokens_of(size)
        # Where the text is cut, a word may have other tokens than in the whole text, but not by so many.
        if len(tokens) > limit + limit // 4 + 64:
            return tokens, False
        size *= 4
    return tokens_of(len(text)), True


class BackgroundTokenizer:
    """Tokenizes long texts in a thread. llama.cpp does not hold Python's lock meanwhile, and the vocabulary does not
    change."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._thread: ThreadPoolExecutor | None = None
        self._pending: dict[str, Future[list[int]]] = {}

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to wait for."""
        return bool(self._pending)

    def add(self, query: Tokenize) -> list[Event]:
        """The reply for a short text; that of a long one comes from ``step``. Raises ``LlamaError``."""

        def work() -> list[int]:
            tokens, _ = tokenize_within(
                self._model,
                query.text,
                len(query.text) if query.limit is None else query.limit,
                add_special=query.add_special,
                parse_special=query.parse_special,
                literal_spans=query.literal_spans,
            )
            return tokens

        if len(query.text) <= _SHORT:
            return [Reply(id=query.id, value=work())]
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tokenize")
        self._pending[query.id] = self._thread.submit(work)
        return []

    def cancel(self, query_id: str) -> None:
        """Forgets a query."""
        pending = self._pending.pop(query_id, None)
        if pending is not None:
            pending.cancel()

    def step(self, *, patient: bool) -> list[Event]:
        """The replies that are ready. ``patient``: waits a moment where there is none."""
        if patient:
            wait(self._pending.values(), timeout=0.02, return_when=FIRST_COMPLETED)
        events: list[Event] = []
        for query_id in [key for key, pending in self._pending.items() if pending.done()]:
            try:
                events.append(Reply(id=query_id, value=self._pending.pop(query_id).result()))
            except LlamaError as error:
                events.append(Failure(id=query_id, code="invalid_request", message=str(error)))
        return events

    def close(self) -> None:
        """Waits for the thread, which uses the model."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


class Detokenizer:
    """Takes a sequence's token bytes one after the other, and returns text as soon as it may be shown.

    A character split over tokens waits for its last byte; invalid bytes become U+FFFD. Text that could be the beginning
    of a stop string is held back until that is decided. A stop string and what follows it never come out. From the text
    ``until`` on, where it comes, there are no stop strings any more.
    """

    def __init__(self, stop: tuple[str, ...] = (), until: str = "") -> None:
        assert all(stop), "an empty stop string would stop everything"
        self._stop = stop
        self._until = until
        self._before = ""
        """The end of what came out: ``until`` may begin in it."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.n_emitted = 0
        """Characters that came out."""
        self.n_decoded = 0
        """Characters that were decoded."""
        self.stop_string: str | None = None
        """The stop string that was found."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.stop_string is not None

    def push(self, piece: bytes) -> str:
        """The text that this token's bytes complete."""
        return self._release(self._decoder.decode(piece), last=False)

    def finish(self) -> str:
        """The rest: there are no more tokens."""
        return self._release(self._decoder.decode(b"", final=True), last=True)

    def _release(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        self.n_decoded += len(text)
        self._held += text
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if self._stop and self._until:
            mark = (self._before + self._held).find(self._until) - len(self._before)
            if mark >= -len(self._before) and all(mark < at for at, _ in found):
                self._stop, found = (), []
        if found:
            at, self.stop_string = min(found, key=lambda each: each[0])
            out, self._held = self._held[:at], ""
        elif last:
            out, self._held = self._held, ""
        else:
            keep = self._n_undecided()
            out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.n_emitted += len(out)
        if self._stop and self._until:
            self._before = (self._before + out)[-(len(self._until) - 1) :] if len(self._until) > 1 else ""
        return out

    def stop_at(self, name: str) -> str:
        """The rest: a token that is the stop string ``name`` came, which has no text."""
        rest = self.finish()
        self.stop_string = self.stop_string or name
        return rest

    def _n_undecided(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest
