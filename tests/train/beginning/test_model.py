"""What a run says of the model that it begins with."""

from slm.data.chat.tokens import with_chatml
from slm.data.tokenizers.make import load_tokenizer
from slm.train.beginning.model import starting_shape, without_rows
from tests.helpers import tiny_checkpoint as tiny


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_told(tmp_path):
    size = tiny.tokenizer().vocab_size
    for name, rows in (("whole", size), ("short", size - 5)):
        folder = str(tiny.checkpoint(tmp_path / name, vocab_size=rows, n_layers=1))
        chat = with_chatml(load_tokenizer(folder))  # its two marks are no mistake
        line = without_rows(folder, chat, starting_shape(folder, 32, chat))
        if name == "whole":
            assert line is None
        else:
            assert line is not None
            assert f"has {size} ids, and the model {size - 5} rows" in line
            assert "the other 5 tokens begin as the mean of all" in line
