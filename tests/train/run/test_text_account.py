"""What a run says of its text: once at the start, in its record, and where the text is used up."""

import json
from dataclasses import replace

import pytest

from slm.data.config import TokenizerConfig
from slm.data.sources.documents import make_plans
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer
from slm.train.resolve import resolve
from slm.train.run.text_account import MORE, TextAccount


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), lambda: iter([story(1, 0)] * 9))


def config_of(tmp_path, same, *words):
    """A run on 80 records of which this many are in the validation file, too."""
    rows = [json.dumps({"text": story(1, n)[:120]}) + "\n" for n in range(80)]
    (tmp_path / "a.jsonl").write_text("".join(rows))
    (tmp_path / "v.jsonl").write_text("".join(rows[:same]))
    names = (f"data.files=[{tmp_path}/a.jsonl]", f"data.val_files=[{tmp_path}/v.jsonl]", f"runs_dir={tmp_path}")
    return resolve(["preset=tiny", "data=local", "train.seq_len=32", "train.micro_batch=4", *names, *words], None)


def test_the_rest_is_read_several_times_because_most_was_taken_out(tmp_path, tokenizer):
    config = config_of(tmp_path, 70, "train.max_steps=60")
    text = TextAccount.of(make_plans(config.data, "train"), tokenizer, config)
    name = tmp_path / "a.jsonl"
    (record,) = text.record()
    assert (record["read"], record["taken"], record["left_out"]) == (80, 10, {"also in data.val_files": 70})
    times = 60 * config.train.tokens_per_step / record["tokens"]
    first, second = text.lines(config)
    assert first.startswith(f"text of {name}: 80 records, 10 taken")
    assert second == f"most of {name} is left out, so 60 steps read the rest about {times:,.0f} times"
    assert text.at_the_end().startswith(
        f"of {name} 70 of 80 records are left out (70 also in data.val_files). Other validation text"
    )
    limited = replace(config, data=replace(config.data, max_epochs=2))
    assert text.lines(limited)[1].endswith("; after 2 times (data.max_epochs) it is used up")


def test_text_of_which_little_is_left_out_is_read_as_often_as_one_wants(tmp_path, tokenizer):
    config = config_of(tmp_path, 8, "train.max_steps=60")
    text = TextAccount.of(make_plans(config.data, "train"), tokenizer, config)
    assert len(text.lines(config)) == 1
    assert text.at_the_end() == MORE == TextAccount().at_the_end()


def test_endless_text_says_nothing(tokenizer):
    config = resolve(["preset=tiny"], None)
    text = TextAccount.of(make_plans(config.data, "train"), tokenizer, config)
    assert (text.lines(config), text.record()) == ([], [])
