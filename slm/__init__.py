"""The language model, what every stage needs, and the stages: ``slm.data``, ``slm.train``, ``slm.export``,
``slm.serve``, and over their commands ``slm.studio``.

An installed ``slm`` has the stages as folders in it. In a checkout they lie next to this folder.

The names below are the Python API (``slm/api``, docs/python.md): ``slm.load``, ``slm.train`` and the others. Some are
modules, too, which can be called.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from slm.early_interrupt import install

if TYPE_CHECKING:
    from slm.api.jobs import Export, evaluate, exam, export, plan, serve, train, tune
    from slm.api.models import Model, Perplexity, Sampling, load
    from slm.api.runs import Run
    from slm.data.errors import UserError as Error

__all__ = [
    "Error",
    "Export",
    "Model",
    "Perplexity",
    "Run",
    "Sampling",
    "evaluate",
    "exam",
    "export",
    "load",
    "plan",
    "runs",
    "serve",
    "train",
    "tune",
]
_HOMES = {
    **dict.fromkeys(("Export", "exam", "plan", "tune"), "slm.api.jobs"),
    **dict.fromkeys(("Model", "Perplexity", "Sampling", "load"), "slm.api.models"),
    **dict.fromkeys(("Run",), "slm.api.runs"),
}

PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that holds this package. A process started there (``python -m slm...``) imports the same one."""

if os.path.isfile(os.path.join(PARENT, "pyproject.toml")):
    __path__.append(PARENT)

install()


def __getattr__(name: str) -> Any:
    """A name of the API, imported when it is first asked for."""
    if name in ("train", "export", "serve", "evaluate", "runs"):
        return importlib.import_module(f"slm.{name}")
    if name == "Error":
        return importlib.import_module("slm.data.errors").UserError
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The API's names, for completion."""
    return sorted({*globals(), *__all__})
