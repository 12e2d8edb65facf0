import contextlib

import pytest

from tests.helpers import tiny_gguf
from tests.helpers.servers import running_server


@pytest.fixture(scope="session")
def chat_server(tmp_path_factory):
    """A server of a random model with a chat template."""
    folder = tmp_path_factory.mktemp("examples")
    model = tiny_gguf.write(folder / "tiny-chat.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE, n_ctx=1024)
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(running_server(folder / "server.log", model))
