"""Retries for a network that fails now and then: wait longer each time, and print one line for each."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from slm.data.errors import UserError, one_line

T = TypeVar("T")
WAITS = (1, 2, 4, 8, 16, 32, *[60] * 10)  # seconds before each further try: eleven minutes in all
TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)  # of HTTP
TRANSIENT_ERRORS = {
    "httpx": ("TransportError",),
    "httpx2": ("TransportError",),
    "requests": ("ConnectionError", "Timeout", "ChunkedEncodingError"),
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "fsspec": ("FSTimeoutError",),
    "http": ("IncompleteRead",),
    "urllib3": ("HTTPError",),
}
"""Errors of the libraries beneath, by package, as names: not all of these packages are installed."""


def retry(action: Callable[[], T], host: str, on_failure: Callable[[], None] = lambda: None) -> T:
    """What ``action()`` returns, tried again after each failure of the network.

    ``on_failure()`` is called after each, to drop the broken connection. Raises UserError after the last try; other
    errors are raised at once.
    """
    for wait in (*WAITS, None):
        try:
            return action()
        except StopIteration:
            raise
        except Exception as error:
            if not is_transient(error):
                raise
            on_failure()
            if wait is None:
                raise UserError(
                    f"{host} could not be read for {sum(WAITS) // 60} minutes ({_reason(error)}): check the network "
                    "and run the same command again, it goes on from the last checkpoint"
                ) from error
            print(f"{host}: {_reason(error)}; trying again in {wait} s", file=sys.stderr, flush=True)
        time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def is_transient(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, is the network's: a broken connection, a time-out, a busy server."""
    seen = 0
    while error is not None and seen < 8:
        status = getattr(getattr(error, "response", None), "status_code", getattr(error, "status", None))
        if isinstance(status, int):
            return status in TRANSIENT_STATUSES
        if isinstance(error, ConnectionError | TimeoutError):
            return True
        for base in type(error).__mro__:
            if base.__name__ in TRANSIENT_ERRORS.get(base.__module__.split(".")[0], ()):
                return True
        error = error.__cause__ or error.__context__
        seen += 1
    return False


def _reason(error: BaseException) -> str:
    text = one_line(error, 120)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
