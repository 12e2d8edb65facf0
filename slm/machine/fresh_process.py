"""A function called in its own process, so that its memory, threads and settings are gone afterwards.

Tested in tests/slm/machine/test_fresh_process.py.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


class DiedError(Exception):
    """The process ended without an answer: killed, for want of memory say, or crashed."""


def in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """``function(*arguments)``, computed there; its exceptions are raised here. DiedError where there is no answer."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise DiedError(f"the process of {function.__name__} was killed or crashed") from None
