"""Token bytes to text that may be shown: whole characters only, and nothing that a stop string may still eat."""

from __future__ import annotations

import codecs


class TextStream:
    """Feed it token bytes; it hands out text as soon as that is safe.

    A character split over tokens waits for its last byte; invalid bytes become U+FFFD. Text that could be the
    beginning of a stop string is held back until that is decided; a stop string and what follows it never come
    out. ``emitted`` counts the characters handed out, ``total`` those decoded.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        assert all(stop), "an empty stop string would stop everything"
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.emitted = 0
        self.total = 0
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """The text that became safe with this token's bytes."""
        return self._take(self._decoder.decode(piece), last=False)

    def finish(self) -> str:
        """The rest: no more tokens will come."""
        return self._take(self._decoder.decode(b"", final=True), last=True)

    def _take(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        self.total += len(text)
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            out, self._held = self._held[: min(found)], ""
        elif last:
            out, self._held = self._held, ""
        else:
            keep = self._undecided()
            out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.emitted += len(out)
        return out

    def _undecided(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest
