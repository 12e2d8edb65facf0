"""A filter of a person's own: ``data.filter=module:function``, from a text to True (keep) or False."""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from slm.data.errors import UserError, excerpt, nearest, one_line

FORM = "data.filter=module:function, a Python function that takes a text and returns True (keep) or False"


def own_filter(name: str) -> Callable[[str], bool]:
    """The function, checked at each call. UserError where it cannot be found, fails, or returns something else."""
    function = _function(name)

    def keeps(text: str) -> bool:
        try:
            kept = function(text)
        except Exception as error:
            raise UserError(
                f"data.filter={name} failed ({type(error).__name__}: {one_line(error, 200)}{_line(error)}) on the text "
                f"that begins {excerpt(text[:80])!r}: mend the function"
            ) from error
        if not isinstance(kept, (bool, np.bool_)):
            raise UserError(
                f"data.filter={name} returned {excerpt(repr(kept)[:80])}, not True (keep) or False (leave out): mend "
                "the function"
            )
        return bool(kept)

    return keeps


def identity(name: str) -> str:
    """Changes with the function's name and its module's source."""
    source = getattr(_module(name.partition(":")[0]), "__file__", None)
    if not source or not os.path.isfile(source):
        return name
    with open(source, "rb") as file:
        return f"{name} {hashlib.blake2b(file.read(), digest_size=8).hexdigest()}"


def _function(name: str) -> Callable[[str], Any]:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UserError(f"data.filter={name} names no function: write {FORM}")
    module = _module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [each for each in vars(module) if callable(getattr(module, each)) and not each.startswith("_")]
        hint = nearest(function_name, names) or f"its functions are {', '.join(names[:8]) or 'none'}"
        raise UserError(f"data.filter={name}: {module_name} has no function {function_name}; {hint}")
    return function


@functools.cache
def _module(name: str) -> ModuleType:
    """A module by its name, from this folder or from those of Python; ``filters.py`` and ``own/filters.py`` are read as
    files. UserError where there is none, or where it fails."""
    try:
        if name.endswith(".py"):
            path = os.path.abspath(os.path.expanduser(name))
            spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        return importlib.import_module(name)
    except FileNotFoundError as error:
        raise UserError(f"data.filter: there is no file {name}; write {FORM}") from error
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise UserError(f"data.filter: {name} needs {error.name}, which is not installed") from error
        raise UserError(
            f"data.filter: there is no module {name} in this folder ({os.getcwd()}) or installed; write {FORM}"
        ) from error
    except Exception as error:
        raise UserError(
            f"data.filter: importing {name} failed ({type(error).__name__}: {one_line(error, 200)}{_line(error)})"
        ) from error


def _line(error: BaseException) -> str:
    """Where the person's own code failed, for a message."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else f", line {at.tb_lineno} of {os.path.basename(at.tb_frame.f_code.co_filename)}"
