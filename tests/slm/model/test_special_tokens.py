"""Which special tokens a model directory has, and which of them stand around a text by default."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from slm.model.special_tokens import SpecialTokens, read_special_tokens


@pytest.fixture
def directory(tmp_path):
    """Writes a model directory with a byte-level tokenizer of 258 tokens."""

    def write(*, begins: bool = False, **config) -> None:
        vocab = {
            each: index for index, each in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"])
        }
        tokenizer = Tokenizer(models.BPE(vocab, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<s>", "</s>"])
        if begins:
            tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    write.path = tmp_path
    return write


def test_the_files_say_what_is_added(directory):
    directory(bos_token="<s>", eos_token="</s>", add_bos_token=True, chat_template="{{ messages }}")
    special = read_special_tokens(directory.path, 258)
    assert special.ids == {"bos": 256, "eos": 257}
    assert (special.bos_added, special.document_start) == (256, 256)
    assert special.chat_template == "{{ messages }}"


@pytest.mark.parametrize("begins", [False, True])
def test_where_they_do_not_the_tokenizer_is_asked(directory, begins):
    directory(bos_token="<s>", eos_token="</s>", begins=begins)
    special = read_special_tokens(directory.path, 258)
    assert special.added["bos"] is begins
    assert special.bos_added == (256 if begins else None)


def test_without_a_beginning_the_end_stands_before_a_text(directory):
    directory(eos_token="</s>")
    special = read_special_tokens(directory.path, 258)
    assert (special.bos_added, special.document_start) == (None, 257)
    assert SpecialTokens().document_start is None
    assert SpecialTokens().bos_added is None


def test_ids_that_the_model_does_not_have_are_left_out(directory):
    directory(bos_token="<s>", eos_token="</s>")
    found = read_special_tokens(directory.path, 257)
    assert (found.ids, found.beyond) == ({"bos": 256}, {"eos": 257})
    assert read_special_tokens(directory.path, 258).beyond == {}


def test_a_template_with_which_no_chat_works_is_told(directory):
    directory(eos_token="</s>", chat_template="{{ messages[0].content }}")
    assert read_special_tokens(directory.path, 258).template_fault is None
    directory(eos_token="</s>", chat_template="{% for m in messages %}")
    assert "endfor" in read_special_tokens(directory.path, 258).template_fault


def test_a_byte_order_mark_is_no_part_of_a_file(directory):
    directory(bos_token="<s>", eos_token="</s>", chat_template="{{ messages }}", begins=True)
    plain = read_special_tokens(directory.path, 258)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        path = directory.path / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_special_tokens(directory.path, 258) == plain
    assert plain.chat_template == "{{ messages }}"
