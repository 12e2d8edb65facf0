"""An export of a chat model is refused where its chats would differ, and says the first difference."""

import pytest

from data.chat.tokens import with_chatml
from export.chat_proof import chat_failures, conversations
from slm.llama.model import Model
from tests.helpers.chat_model import base_tokenizer, write_chat_gguf


@pytest.fixture(scope="module")
def tokenizer():
    return with_chatml(base_tokenizer())


@pytest.fixture(scope="module")
def gguf(tokenizer, tmp_path_factory):
    return write_chat_gguf(tmp_path_factory.mktemp("chat"), tokenizer)


def test_a_faithful_file_passes(gguf, tokenizer):
    with Model(gguf) as llama:
        assert chat_failures(llama, tokenizer) == []


def test_200_conversations_of_every_shape_are_compared():
    made = conversations()
    assert len(made) == 200
    assert {len(each) for each in made} == {1, 2, 3, 4, 5, 6}
    assert all(each[-1]["role"] == "user" for each in made)


def test_other_marks_in_the_file_are_found(tokenizer, tmp_path):
    """The file's marks have each other's ids."""
    text = tokenizer.files["tokenizer.json"].decode()
    swapped = text.replace("<|im_start|>", "@").replace("<|im_end|>", "<|im_start|>").replace("@", "<|im_end|>")
    other = type(tokenizer)(tokenizer.files | {"tokenizer.json": swapped.encode()}, name="other")
    with Model(write_chat_gguf(tmp_path, other)) as llama:
        (failure,) = chat_failures(llama, tokenizer)
    assert "in a chat, its tokenizer gives other ids: '<|im_start|>user" in failure


def test_a_turn_that_never_ends_is_found(tokenizer, tmp_path):
    """The template ends a turn with a token that the file takes for text."""
    plain = tokenizer.files["tokenizer_config.json"].decode().replace("<|im_end|>", "<|turn_over|>")
    spec = tokenizer.files["tokenizer.json"].decode().replace("<|im_end|>", "<|turn_over|>")
    changed = {"tokenizer_config.json": plain.encode(), "tokenizer.json": spec.encode()}
    other = type(tokenizer)(tokenizer.files | changed, name="other")
    without = type(tokenizer)(
        other.files
        | {
            "tokenizer_config.json": plain.replace(
                '"eos_token": "<|turn_over|>"', '"eos_token": "<|endoftext|>"'
            ).encode()
        },
        name="other",
    )
    path = write_chat_gguf(tmp_path, base_with_marks(without))
    with Model(path) as llama:
        (failure,) = chat_failures(llama, other)
    assert "its chats never end: token " in failure


def base_with_marks(tokenizer):
    """The tokenizer without its template: its GGUF does not know what ends a turn."""
    import json

    settings = json.loads(tokenizer.files["tokenizer_config.json"])
    settings["chat_template"] = "{{ messages[0].content }}"
    return type(tokenizer)(tokenizer.files | {"tokenizer_config.json": json.dumps(settings).encode()}, name="other")


def test_a_base_model_has_nothing_to_compare(tmp_path):
    with Model(write_chat_gguf(tmp_path, base_tokenizer())) as llama:
        assert chat_failures(llama, base_tokenizer()) == []
