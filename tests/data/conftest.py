import types

import pytest


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch):
    """Workers come from the tests' fork server, which has their modules in memory: started by ``spawn``, each imports
    them for a second. They get what they read by the same pickles. Tests of a program of its own
    (tests/data/stream/test_loader.py) and of memory (tests/data/test_measure_loader.py) have the real ones."""
    from slm.data.stream import loader
    from tests.helpers.programs import CONTEXT

    monkeypatch.setattr(loader, "multiprocessing", types.SimpleNamespace(get_context=lambda _: CONTEXT))
