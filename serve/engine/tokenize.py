"""Between text and tokens: of a text that is too long only a beginning is tokenized, and the bytes of generated tokens
become text that may be shown.

Tested in tests/serve/engine/test_tokenize.py, tests/serve/engine/test_detokenizer.py.
"""

from __future__ import annotations

import codecs

from slm.llama.model import Model

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
    more than ``limit``, and False. ``literal_spans``: as in ``Generate``.
    """

    def tokens_of(n: int) -> list[int]:
        """Tokens of the first ``n`` characters."""
        spans = [(begin, min(end, n)) for begin, end in literal_spans if begin < n]
        return model.tokenize_parts(text[:n], spans, add_special=add_special, parse_special=parse_special)

    size = max(_CHARACTERS_PER_TOKEN * limit, _SHORT)
    while size < len(text):
        tokens = tokens_of(size)
        # Where the text is cut, a word may have other tokens than in the whole text, but not by this many.
        if len(tokens) > limit + limit // 4 + 64:
            return tokens, False
        size *= 4
    return tokens_of(len(text)), True


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

    def stop_at(self, name: str | None) -> str:
        """The rest: a token that ends the text came, and adds none. ``name``: the stop string that names it, if any."""
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
