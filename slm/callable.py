"""Modules that can be called: ``slm.train(...)``, ``slm.export(...)``, ``slm.evaluate(...)``, ``slm.serve(...)`` and
``slm.runs()`` are functions of the API, and there are modules of these names. Python looks a call up in an object's
class, so these modules get one that has it.

Tested in tests/slm/api/test_api.py.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class Stage(ModuleType):
    """A module that when called is the function of that name in ``slm.api.jobs``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """See ``slm.api.jobs``."""
        jobs = importlib.import_module("slm.api.jobs")
        return getattr(jobs, self.__name__.rpartition(".")[2])(*args, **options)


def make_callable(name: str) -> None:
    """Let the module ``name`` be called."""
    sys.modules[name].__class__ = Stage
