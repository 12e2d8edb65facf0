import pytest

from slm.llama.context import Context
from slm.llama.model import Model
from tests.helpers import tiny_gguf


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """A base model: no chat template."""
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(tiny_path):
    with Model(tiny_path) as model:
        yield model


@pytest.fixture
def context(model):
    with Context(model, n_ctx=256, n_batch=64, n_seq_max=3, n_threads=1) as context:
        yield context
