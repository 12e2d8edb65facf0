"""How far a scoring is: a bar in a terminal, lines in a log."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from slm.evaluate.perplexity import Progress

PLAIN_SECONDS = 30.0
"""Without a terminal, a line of progress at most this often."""


@contextmanager
def progress_bar(name: str, total: int, unit: str = "tokens") -> Iterator[Progress | None]:
    """A bar with the time left in a terminal, else a line now and then."""
    from rich.markup import escape
    from rich.progress import Progress as Bar

    if not sys.stdout.isatty():
        yield plain_progress(name, total, unit)
        return
    with Bar(transient=True) as bar:
        task = bar.add_task(escape(name), total=total)
        yield lambda tokens: bar.advance(task, tokens)


def plain_progress(name: str, total: int, unit: str = "tokens") -> Progress:
    """Prints how far the scoring is and the minutes left, for logs."""
    started = last = perf_counter()
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done, last
        done += tokens
        now = perf_counter()
        if now - last >= PLAIN_SECONDS:
            last = now
            left = (now - started) / done * (total - done)
            print(f"{name}: {done:,} of {total:,} {unit}, {left / 60:.1f} min left", flush=True)

    return advance
