"""Progress of a long pass: one line of a terminal that is rewritten, or elsewhere a line every ten seconds."""

import sys
import time

LINE_SECONDS = 10.0
"""Between two lines where the output is no terminal."""


class Progress:
    """``update(done, total)`` shows the percentage and the time left, where ``total`` is known (not None)."""

    def __init__(self, what: str, before: float = 0.0) -> None:
        """``before``: what was done before this pass, in the units of ``done``; the time left does not count it."""
        self._what = what
        self._before = before
        self._start = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._wrote = False

    def update(self, done: float, total: float | None, note: str = "", left: float | None = None) -> None:
        """Show the progress. It writes at most three times a second, so it may be called after every item.

        ``left``: seconds, where the caller knows better than the share that is done says.
        """
        now = time.monotonic()
        if now - self._shown < (0.3 if self._terminal else LINE_SECONDS):
            return
        self._shown = now
        text = f"{self._what}: {note}"
        if total and done > self._before:
            left = (now - self._start) * (total - done) / (done - self._before) if left is None else left
            text += f", {min(1.0, done / total):.0%}, {_duration(left)} left"
        print(
            f"\r\033[K{text}" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )
        self._wrote = True

    def done(self) -> None:
        """Clear the line."""
        if self._terminal and self._wrote:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
