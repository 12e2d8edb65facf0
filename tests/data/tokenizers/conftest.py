"""Tokenizers that several test modules use."""

import pytest

from slm.data.config import TokenizerConfig
from slm.data.tokenizers.make import load_tokenizer, make_tokenizer
from tests.helpers.tokenizers import auto, stories


@pytest.fixture(scope="session")
def gpt2(shared_data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
        return make_tokenizer(TokenizerConfig(kind="tiktoken", name="gpt2"), lambda: iter(()))


@pytest.fixture(scope="session")
def bpe():
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=1024), stories)


@pytest.fixture(scope="session", params=["gpt2", "bpe"])
def pair(request, tmp_path_factory):
    tokenizer = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer.save(folder)
    return tokenizer, auto(folder), load_tokenizer(folder)
