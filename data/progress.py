"""How far a long pass is, on one line of a terminal (or a line every half minute elsewhere)."""

import sys
import time


class Progress:
    """``update(done, total)`` shows a share and the time left; ``total`` None where the end is not known."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._wrote = False

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """At most a few times a second is anything written, so it may be called as often as is convenient."""
        now = time.monotonic()
        if now - self._shown < (0.3 if self._terminal else 30):
            return
        self._shown = now
        text = f"{self._what}: {note}"
        if total and done:
            left = (now - self._start) * (total - done) / done
            text += f", {min(1.0, done / total):.0%}, {_duration(left)} left"
        print(
            f"\r\033[K{text}" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )
        self._wrote = True

    def done(self) -> None:
        """Leave a clean line behind."""
        if self._terminal and self._wrote:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
