"""Conversations are packed whole, apart from each other, and resume where they were."""

import contextlib
import itertools
import json
import re

import numpy as np
import pytest

from slm.data.chat.formats import to_document
from slm.data.chat.story_chat import conversation
from slm.data.chat.tokens import ChatEncoder, with_chatml
from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources.contents import unit_hash
from slm.data.sources.plan import plan_sources
from slm.data.stream import marks
from slm.data.stream.conversations import n_blocks, place
from slm.data.stream.loader import Loader, validation_text
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.data.tokenizers.train_bpe import train

CONFIG = DataConfig(kind="story_chat", shuffle_buffer=0)


def tokenizer() -> Tokenizer:
    texts = [each["content"] for index in range(200) for each in conversation(1, index)["messages"]]
    return with_chatml(Tokenizer(train(iter(texts), vocab_size=800, min_frequency=2, sample_bytes=10**6), name="t"))


TOKENIZER = tokenizer()


def loader(**changes) -> Loader:
    options = {"seq_len": 1024, "micro_batch": 4, "seed": 1, "workers": 0}
    return Loader(CONFIG, TOKENIZER, **(options | changes))


def parts(block: np.ndarray) -> list[np.ndarray]:
    """A block's conversations, the padding left out."""
    cuts = np.flatnonzero(block & marks.FIRST)
    pieces = np.split(block, cuts[1:])
    return [each for each in pieces if marks.is_scored(each)[1:].any()]


def test_blocks_hold_whole_conversations_in_which_the_answers_are_scored():
    encoder = ChatEncoder(TOKENIZER)
    known = {}
    for index in range(400):
        ids, scored, _ = encoder.conversation(to_document(conversation(1, index)))
        known[tuple(ids.tolist())] = scored.tolist()
    batch = next(loader())
    assert batch.shape == (4, 1025)
    n = 0
    for block in batch:
        assert block[0] & marks.FIRST
        for each in parts(block):
            n += 1
            assert known[tuple(marks.ids_of(each).tolist())] == marks.is_scored(each).tolist()
    assert n >= 8


def test_little_is_padding():
    batch = np.concatenate([next(batches) for batches in [loader()] for _ in range(16)])
    filled = sum(len(each) for block in batch for each in parts(block))
    assert filled / batch.size > 0.85


def test_a_resumed_stream_goes_on_to_the_bit():
    with loader(micro_batch=1) as whole:
        batches = [next(whole) for _ in range(30)]
    with loader(micro_batch=1) as first:
        for _ in range(13):
            next(first)
        state = first.state_dict()
    with loader(micro_batch=1) as second:
        second.load_state_dict(state)
        for wanted in batches[13:]:
            assert np.array_equal(next(second), wanted)


def test_workers_give_what_this_process_gives():
    with loader() as here, loader(workers=1) as there:
        for _ in range(5):
            assert np.array_equal(next(here), next(there))


def test_a_conversation_longer_than_a_block_keeps_its_beginning():
    block = next(loader(seq_len=256, micro_batch=8))
    assert block.shape == (8, 257)
    assert all(marks.is_scored(each)[1:].any() for each in block)


def test_short_conversations_share_few_tokens_and_a_long_one_has_its_own_block():
    """With ``room`` a block is as long as what is in it."""
    lengths = set()
    with loader(micro_batch=1, room=160) as batches:
        for (block,) in itertools.islice(batches, 60):
            inside = sum(len(each) for each in parts(block))
            assert len(parts(block)) == 1 or inside <= 161
            assert inside <= len(block) < inside + 32
            assert (len(block) - 1) % 32 == 0
            lengths.add(len(block))
    assert len(lengths) > 1
    with loader(room=160) as batches:  # several rows are as long as the longest of them
        batch = next(batches)
    assert len(batch) == 4
    assert not marks.is_scored(batch)[:, -32:].all()


def test_a_stream_of_blocks_of_several_lengths_resumes_to_the_bit():
    with loader(room=160) as whole, loader(room=160) as second:
        for _ in range(5):
            next(whole)
        second.load_state_dict(whole.state_dict())
        for _ in range(5):
            assert np.array_equal(next(whole), next(second))
        with loader(room=128) as other, pytest.raises(UserError, match="data position is for room=160, not 128"):
            other.load_state_dict(whole.state_dict())


def test_nothing_is_held_out_of_few_conversations(tmp_path):
    """All are trained on, and scored."""
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(json.dumps(conversation(1, index)) for index in range(12)))
    few = DataConfig(kind="chat", files=[str(path)], val_fraction=0.0, max_epochs=1)
    options = {"seq_len": 1024, "micro_batch": 1, "seed": 1, "workers": 0}
    read: list[np.ndarray] = []
    with Loader(few, TOKENIZER, **options) as batches, contextlib.suppress(UserError):
        for (block,) in batches:
            read += parts(block)
    scored = [each for block in validation_text(few, TOKENIZER, 1024, 64, seed=1).blocks for each in parts(block)]
    assert len(read) == len(scored) == 12
    with pytest.raises(UserError, match="val_fraction=0 is for conversations"):
        DataConfig(kind="tales", val_fraction=0.0)


def test_the_share_held_out_of_conversations_is_the_one_asked_for(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(json.dumps(conversation(1, index)) for index in range(300)))
    config = DataConfig(kind="chat", files=[str(path)], val_fraction=0.05)
    held_out = [each for block in validation_text(config, TOKENIZER, 1024, 999, seed=1).blocks for each in parts(block)]
    assert 8 <= len(held_out) <= 24


def test_a_conversation_with_many_copies_counts_once_for_the_share_held_out(tmp_path):
    rows = [json.dumps(conversation(1, index)) for index in range(300)]
    path = tmp_path / "copies.jsonl"
    last = max(rows, key=lambda row: unit_hash(to_document(json.loads(row))))  # it is not held out
    path.write_text("\n".join([*rows, *[last] * 999]))
    plan, *_ = plan_sources(DataConfig(kind="chat", files=[str(path)], val_fraction=0.05), "validation")
    assert 8 <= sum(unit_hash(to_document(json.loads(row))) < plan.held_out for row in rows) <= 24


def test_validation_has_other_stories():
    blocks = validation_text(CONFIG, TOKENIZER, 1024, 8, seed=1).blocks
    assert len(blocks) == 8
    assert blocks.shape[1] <= 1025
    held_out = {tuple(marks.ids_of(each).tolist()) for block in blocks for each in parts(block)}
    trained = {tuple(marks.ids_of(each).tolist()) for block in next(loader(micro_batch=32)) for each in parts(block)}
    assert held_out
    assert not {each for each in held_out & trained if len(each) > 150}


def test_bins_are_never_too_full_and_hold_every_item_once():
    items = [np.full(n, n) for n in (5, 9, 3, 7, 2, 10, 1, 4)]
    bins = place(items, 10)
    assert all(sum(map(len, each)) <= 10 for each in bins)
    assert sorted(len(item) for each in bins for item in each) == [1, 2, 3, 4, 5, 7, 9, 10]
    assert len(bins) == 5


def test_no_bin_holds_a_conversation_twice():
    six = [np.arange(4) + 10 * number for number in range(6)]
    bins = place(six * 20, 8)
    assert len(bins) == 60
    assert all(len({item.tobytes() for item in each}) == len(each) == 2 for each in bins)
    alone = place(six[:1] * 5, 8)
    assert [len(each) for each in alone] == [1] * 5
    assert n_blocks([4] * 6, 8) == 3


def test_answers_that_come_too_late_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("slm.data.stream.conversations.MOST_WITHOUT_ANSWER", 30)
    path = tmp_path / "late.jsonl"
    made = [{"prompt": f"{i} " + "Say it. " * 60, "completion": f"It {i}."} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, made)))
    config = DataConfig(kind="chat", files=[str(path)], val_fraction=0.2, max_epochs=None)
    with pytest.raises(UserError, match=r"30 conversations in a row have no answer in their first train.seq_len=64"):
        next(Loader(config, TOKENIZER, seq_len=64, micro_batch=1, seed=1, workers=0))
    with pytest.raises(UserError, match=r"none of the held-out conversations has .*train.seq_len=64 tokens.*raise tr"):
        validation_text(config, TOKENIZER, 64, 9, 1)


def test_the_last_answers_alone_are_learned_where_that_is_asked(tmp_path):
    path = tmp_path / "talks.jsonl"
    turns = [("user", "Who?"), ("assistant", "A cat."), ("user", "And?"), ("assistant", "A hill.")]
    talk = [{"role": role, "content": said} for role, said in turns]
    path.write_text("\n".join(json.dumps({"messages": talk, "id": number}) for number in range(4)))
    scored = {}
    for which in ("all", "last"):
        config = DataConfig(kind="chat", files=[str(path)], val_fraction=0, train_on=which)
        (plan,) = plan_sources(config, "train")
        (block,) = next(iter(Loader(config, TOKENIZER, seq_len=64, micro_batch=1, seed=1, workers=0)))
        learned = parts(block)[0]
        scored[which] = plan.fingerprint, TOKENIZER.decode(marks.ids_of(learned)[marks.is_scored(learned)])
    assert scored["all"][1] == "A cat.A hill."
    assert scored["last"][1] == "A hill."
    assert scored["all"][0] != scored["last"][0]


def pair_records() -> list[dict]:
    asked = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A cat."}]
    more = [*asked, {"role": "user", "content": "And?"}]
    made = [{"prompt": f"Say {i}", "chosen": f"Yes {i}.", "rejected": "No. " * (i % 5 + 1)} for i in range(60)]
    made += [{"prompt": more, "chosen": "A hill.", "rejected": f"No {i}."} for i in range(20)]
    made += [
        {"chosen": [*more, {"role": "assistant", "content": f"Hill {i}"}], "rejected": [*more, asked[1]]}
        for i in range(20)
    ]
    same = {"prompt": "Same?", "chosen": "Same.", "rejected": "Same."}
    return [*made, same, {"prompt": "Alone?", "completion": "Alone."}]


def test_pairs_lie_next_to_each_other_and_only_what_differs_is_scored(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, pair_records())))
    config = DataConfig(kind="chat", files=[str(path)], max_epochs=1, val_fraction=0.1)

    def read(**changes) -> Loader:
        return Loader(config, TOKENIZER, **({"seq_len": 128, "micro_batch": 1, "seed": 1, "workers": 0} | changes))

    found = []
    for batch in itertools.chain(
        take(read(pairs=True)), validation_text(config, TOKENIZER, 128, 99, 1, pairs=True).blocks
    ):
        answers = parts(batch.reshape(-1))
        assert len(answers) % 2 == 0
        texts = [TOKENIZER.decode(marks.ids_of(each)[marks.is_scored(each)].tolist()) for each in answers]
        prompts = [TOKENIZER.decode(marks.ids_of(each)[~marks.is_scored(each)].tolist()) for each in answers]
        assert prompts[0::2] == prompts[1::2]
        assert all(marks.ids_of(each)[marks.is_scored(each)][-1] == TOKENIZER.eot_id for each in answers)
        found += zip(texts[0::2], texts[1::2], strict=True)
    assert len(found) == 100  # neither the pair of equals nor what is no pair
    assert {("Yes 7.", "No. No. No. "), ("A hill.", "No 3."), ("Hill 4", "A cat.")} <= set(found)
    with pytest.raises(UserError, match="the saved data position is for pairs=None"):
        read(pairs=True).load_state_dict(read().state_dict())
    plain = take(read())
    assert sum(len(parts(block.reshape(-1))) for block in plain) > 80  # the chosen answers, and what is no pair


def test_a_pair_that_is_too_long_keeps_both_beginnings(tmp_path, monkeypatch):
    monkeypatch.setattr("slm.data.stream.conversations.MOST_WITHOUT_ANSWER", 30)
    path = tmp_path / "pairs.jsonl"
    long = [{"prompt": f"Say {i}", "chosen": "A cat. " * 60, "rejected": "No. "} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, long)))
    config = DataConfig(kind="chat", files=[str(path)], val_fraction=0.2)
    (block,) = next(Loader(config, TOKENIZER, seq_len=64, micro_batch=1, seed=1, workers=0, pairs=True))
    chosen, rejected = parts(block)
    assert len(chosen) == 32
    assert len(rejected) < 32
    path.write_text(
        "\n".join(json.dumps({"prompt": "Say it. " * 60, "chosen": "A", "rejected": f"{i}"}) for i in range(9))
    )
    config = DataConfig(kind="chat", files=[str(path)], val_files=[str(path.with_name("other.jsonl"))])
    path.with_name("other.jsonl").write_text(json.dumps(long[0]))
    with pytest.raises(UserError, match=r"hold no pair of answers that fits train.seq_len=64"):
        next(Loader(config, TOKENIZER, seq_len=64, micro_batch=1, seed=1, workers=0, pairs=True))


def take(batches) -> list[np.ndarray]:
    """All of a finite stream."""
    found = []
    with contextlib.suppress(UserError):
        for batch in batches:
            found.append(batch)
    return found


@pytest.mark.parametrize("name", ["book.txt", "book.jsonl"])
def test_text_that_is_mixed_in_comes_whole(name, tmp_path):
    """A long document in pieces, each of its tokens once an epoch, and from any place on after a resume."""
    text = " ".join(f"word{i}" for i in range(1500))
    (tmp_path / name).write_text(text if name.endswith(".txt") else json.dumps({"text": text}) + "\n")
    (tmp_path / "other.txt").write_text("Something else.")
    other = [str(tmp_path / "other.txt")]
    book = SourceConfig(kind="files", files=[str(tmp_path / name)], val_files=other, validated=False)
    config = DataConfig(kind="mixture", sources=[SourceConfig(kind="story_chat"), book])

    def make() -> Loader:
        return Loader(config, TOKENIZER, seq_len=256, micro_batch=1, seed=1, workers=0)

    def in_book(block: np.ndarray) -> bool:
        return "word" in TOKENIZER.decode(marks.ids_of(block))

    batches = [next(loader)[0] for loader in [make()] for _ in range(160)]
    found = {
        int(each)
        for block in batches
        if in_book(block)
        for each in re.findall(r"word(\d+) ", TOKENIZER.decode(marks.ids_of(block)))
    }
    assert len(found) > 1250
    for cut in (7, 101):
        first, second = make(), make()
        for _ in range(cut):
            next(first)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert all(np.array_equal(next(second)[0], block) for block in batches[cut : cut + 40])


def test_shards_share_out_a_book_that_is_mixed_in(tmp_path):
    (tmp_path / "book.txt").write_text(" ".join(f"word{i}" for i in range(3000)))
    book = SourceConfig(kind="files", files=[str(tmp_path / "book.txt")], validated=False)
    config = DataConfig(kind="mixture", sources=[SourceConfig(kind="story_chat"), book])
    for rank in range(2):
        loader = Loader(config, TOKENIZER, seq_len=256, micro_batch=1, seed=1, workers=0, rank=rank, world_size=2)
        blocks = [TOKENIZER.decode(marks.ids_of(next(loader)[0])) for _ in range(30)]
        assert any("word" in each for each in blocks), rank
