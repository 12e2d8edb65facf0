"""An export of a chat model is refused where its chats would differ, and says the first difference."""

import pytest

from slm.data.chat.template import CHATML, IM_END, IM_START
from slm.data.chat.tokens import ChatEncoder, with_chatml
from slm.llama.model import Model
from slm.vocabulary.same_ids import chat_failures, conversations, prompts
from tests.helpers.chat_model import base_tokenizer, with_template, write_chat_gguf


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
    assert {len(messages) for messages, _ in made} == {1, 2, 3, 4, 5, 6}
    assert all(messages[-1]["role"] == "user" for messages, _ in made)


def test_calls_of_tools_are_compared_where_the_template_knows_them(tokenizer):
    more = conversations(tools=True)
    called = [each for each in more if each[1]]
    assert len(called) == len(more) - 200 > 10
    texts = [rendered.text for _, rendered in prompts(ChatEncoder(tokenizer).template, called)]
    assert len(texts) == len(called)
    assert all('{"name": "look", "arguments": {"text": ' in text for text in texts)


def test_another_id_of_a_mark_is_found(tmp_path):
    marks, ends = (IM_START, IM_END, "<|x|>"), {"bos": "<|endoftext|>", "eos": IM_END}
    with Model(write_chat_gguf(tmp_path, with_template(base_tokenizer(), CHATML, marks[::-1], **ends))) as llama:
        (failure,) = chat_failures(llama, with_template(base_tokenizer(), CHATML, marks, **ends))
    assert "in a chat, its tokenizer gives other ids: '<|im_start|>user" in failure


def test_a_turn_that_never_ends_is_found(tmp_path, monkeypatch):
    """The template ends a turn with a token of a name that llama.cpp does not know, and the file does not say it."""
    marks, template = ("<|im_start|>", "<|over|>"), CHATML.replace(IM_END, "<|over|>")
    whole = with_template(base_tokenizer(), template, marks, bos="<|endoftext|>", eos="<|endoftext|>")
    with Model(write_chat_gguf(tmp_path / "whole", whole)) as llama:
        assert chat_failures(llama, whole) == []  # since the file names it
    silent = with_template(
        base_tokenizer(), "{{ messages[0].content }}", marks, bos="<|endoftext|>", eos="<|endoftext|>"
    )
    with Model(write_chat_gguf(tmp_path / "silent", silent)) as llama:
        assert chat_failures(llama, whole) == ["its chat template is another one than the checkpoint's"]
        monkeypatch.setattr(llama, "chat_template", lambda: template)
        (failure,) = chat_failures(llama, whole)
    assert "its chats never end: token 701" in failure


def test_a_base_model_has_nothing_to_compare(tmp_path):
    with Model(write_chat_gguf(tmp_path, base_tokenizer())) as llama:
        assert chat_failures(llama, base_tokenizer()) == []
