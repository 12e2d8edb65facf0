"""Token bytes to text that may be shown: whole characters only, and nothing that may become part of a stop string."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Takes a sequence's token bytes one after the other, and returns text as soon as it may be shown.

    A character split over tokens waits for its last byte; invalid bytes become U+FFFD. Text that could be the beginning
    of a stop string is held back until that is decided. A stop string and what follows it never come out.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        assert all(stop), "an empty stop string would stop everything"
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.n_emitted = 0
        """Characters that came out."""
        self.n_decoded = 0
        """Characters that were decoded."""
        self.stopped = False
        """Whether a stop string was found."""

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
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            out, self._held = self._held[: min(found)], ""
        elif last:
            out, self._held = self._held, ""
        else:
            keep = self._n_undecided()
            out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.n_emitted += len(out)
        return out

    def _n_undecided(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest
