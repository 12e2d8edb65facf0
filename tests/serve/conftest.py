import pytest

from tests.helpers import tiny_gguf
from tests.helpers.servers import running_server


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """A base model: no chat template."""
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def chat_path(tmp_path_factory):
    """A model with a chat template."""
    folder = tmp_path_factory.mktemp("gguf-chat")
    return tiny_gguf.write(folder / "tiny-chat.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def slow_path(tmp_path_factory):
    """A model of many layers: slow enough that a request can be caught in the middle."""
    path = tmp_path_factory.mktemp("gguf-slow") / "slow.gguf"
    return tiny_gguf.write(path, n_ctx=4096, n_layers=12)


@pytest.fixture(scope="session")
def start_server():
    return running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_path):
    with running_server(tmp_path_factory.mktemp("log") / "server.log", tiny_path) as server:
        yield server


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory, chat_path):
    with running_server(tmp_path_factory.mktemp("log") / "server.log", chat_path) as server:
        yield server


@pytest.fixture
def slow_server(tmp_path, slow_path):
    """One slot, two places to wait."""
    with running_server(tmp_path / "server.log", slow_path, "serve.slots=1", "serve.queue=2") as server:
        yield server
