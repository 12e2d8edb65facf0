"""The account of a source's text counts what the streams give."""

import json
import random

import pytest

from slm.data.account.account import HELD_OUT, IN_VALIDATION, REFUSED, TOO_LONG, account, count_tokens
from slm.data.chat.tokens import ChatEncoder, chat_tokenizer
from slm.data.config import DataConfig, TokenizerConfig
from slm.data.sources.documents import make_plans, open_documents, open_stream
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer
from tests.helpers.documents import local, take, write_jsonl


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), lambda: iter([story(1, 0)] * 9))


def chats(path, texts):
    rows = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(config):
    return take(open_documents(make_plans(config, "train"), seed=1))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_taken_is_what_the_stream_gives(tmp_path, tokenizer, seed):
    """Any mix of empty, short, repeated and held-out records, of training text and of validation files."""
    chance = random.Random(seed)
    rows = [story(seed, index) for index in range(chance.randint(30, 120))]
    rows += ["", "  ", "short", *rows[:5], rows[0] + " again"]
    chance.shuffle(rows)
    write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "long.txt").write_text(" ".join(rows))
    options = {"dedup": chance.choice(["none", "exact", "near"]), "cache_dir": str(tmp_path / "cache")}
    options |= {"min_chars": chance.choice([0, 20]), "val_fraction": chance.choice([0.01, 0.3])}
    if chance.random() < 0.5:
        options["val_files"] = [write_jsonl(tmp_path / "val.jsonl", chance.sample(rows, 20))]
    config = local(tmp_path / "a.jsonl", tmp_path / "long.txt", **options)
    (plan,) = make_plans(config, "train")
    found = account(plan)
    taken = read(config)
    count_tokens(found, tokenizer, seq_len=64)
    assert found.exact
    assert found.taken == len(taken)
    assert found.taken + found.left_out.total() == found.read == len(rows) + 1
    assert found.left_out["empty"] == 2
    whole = sum(len(text.encode()) for text in taken)
    assert abs(found.taken_bytes - whole) <= (0.02 * whole if found.passages else 0)
    assert found.tokens == pytest.approx(sum(len(tokenizer.encode(text)) + 1 for text in taken), rel=0.05)


def test_training_text_that_is_validation_text_is_told(tmp_path, tokenizer):
    talks = [(f"What is {n} and {n}?", f"It is {2 * n}.") for n in range(80)]
    files, val = chats(tmp_path / "a.jsonl", talks), chats(tmp_path / "v.jsonl", talks[:70])
    (plan,) = make_plans(DataConfig(kind="chat", files=[files], val_files=[val]), "train")
    found = account(plan)
    count_tokens(found, chat_tokenizer(tokenizer), seq_len=200)
    assert (found.read, found.taken, dict(found.left_out)) == (80, 10, {IN_VALIDATION: 70})
    assert found.mostly_removed
    assert found.line() == (
        f"text of {files}: 80 records, 10 taken ({found.tokens:,} tokens); left out: 70 also in data.val_files"
    )


def test_the_share_that_is_held_out_is_told_and_is_not_called_removed(tmp_path):
    config = local(write_jsonl(tmp_path / "a.jsonl", [story(1, n) for n in range(100)]), val_fraction=0.6)
    (plan,) = make_plans(config, "train")
    found = account(plan)
    assert found.left_out[HELD_OUT] == 100 - found.taken > 50
    assert (found.removed, found.mostly_removed) == (0, False)


def test_conversations_that_cannot_be_learned(tmp_path, tokenizer):
    talks = [("Hello?", "Yes."), ("word " * 200, "No."), ("Hello again?", "Yes.")] * 5
    path = tmp_path / "a.jsonl"
    chats(path, talks)
    with path.open("a") as file:
        file.write('{"text": "none"}\n')
    config = DataConfig(kind="chat", files=[str(path)], val_files=[chats(tmp_path / "v.jsonl", [("a", "b")])])
    (plan,) = make_plans(config, "train")
    found = account(plan)
    tokenizer = chat_tokenizer(tokenizer)
    count_tokens(found, tokenizer, seq_len=100)
    assert found.left_out == {"no conversations": 1, TOO_LONG: 5}
    assert found.taken == 10
    stream = open_stream(plan, seed=1, wrap=lambda corpus: corpus)
    lengths = [len(ChatEncoder(tokenizer).conversation(document)[0]) for document in take(stream)]
    assert found.tokens == pytest.approx(sum(length for length in lengths if length <= 101), rel=0.05)
    assert REFUSED not in found.left_out


def test_reasoning_that_the_template_does_not_write_is_said(tmp_path, tokenizer):
    answer = {"role": "assistant", "content": "Yes.", "reasoning": "It is."}
    rows = [{"messages": [{"role": "user", "content": f"Is it {n}?"}, answer]} for n in range(12)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(
        kind="chat", files=[str(tmp_path / "a.jsonl")], val_files=[chats(tmp_path / "v.jsonl", [("a", "b")])]
    )
    found = account(make_plans(config, "train")[0])
    count_tokens(found, chat_tokenizer(tokenizer), seq_len=100)
    assert found.line().endswith("; the chat template does not write the reasoning of 12 answers")
    assert found.record()["without_reasoning"] == 12


def test_large_text_is_read_in_part(tmp_path, tokenizer):
    rows = [story(1, n) for n in range(600)]
    rows[::3] = [row[:15] for row in rows[::3]]
    val = write_jsonl(tmp_path / "v.jsonl", rows[1::6])
    config = local(write_jsonl(tmp_path / "a.jsonl", rows), val_files=[val], min_chars=20)
    (plan,) = make_plans(config, "train")
    whole, part = account(plan), account(plan, limit=90_000)
    assert not part.exact
    assert "about" in part.line()
    assert part.read == pytest.approx(whole.read, rel=0.1)
    assert part.left_out["min_chars"] == pytest.approx(200, rel=0.15)
    assert part.left_out[IN_VALIDATION] == pytest.approx(100, rel=0.25)
    for each in (whole, part):
        count_tokens(each, tokenizer, seq_len=64)
    assert part.tokens == pytest.approx(whole.tokens, rel=0.1)


def test_what_is_masked_is_counted_with_examples(tmp_path):
    rows = [f"Story {n}. " + (f"Write to a{n}@example.org." if n % 2 else "") for n in range(60)]
    config = local(write_jsonl(tmp_path / "a.jsonl", rows), mask_personal=True)
    (plan,) = make_plans(config, "train")
    found = account(plan)
    assert found.changed["[email]"] == pytest.approx(found.taken / 2, abs=10)
    assert len(found.changes) == 3
    texts = read(config)
    assert sum("[email]" in text for text in texts) == found.changed["[email]"]
    assert not any("@" in text for text in texts)


def test_text_without_an_end_has_no_account():
    (plan,) = make_plans(DataConfig(kind="tales"), "train")
    assert account(plan) is None
