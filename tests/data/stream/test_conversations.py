"""Conversations are packed whole, apart from each other, and resume where they were."""

import numpy as np

from data.chat.story_chat import conversation
from data.chat.tokens import ChatEncoder, with_chatml
from data.config import DataConfig
from data.stream import marks
from data.stream.conversations import place
from data.stream.loader import Loader, validation_blocks
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train_bpe import train

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
        from data.chat.formats import to_document

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
    with loader() as whole:
        batches = [next(whole) for _ in range(30)]
    with loader() as first:
        for _ in range(13):
            next(first)
        state = first.state_dict()
    with loader() as second:
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


def test_validation_has_other_stories():
    blocks = validation_blocks(CONFIG, TOKENIZER, 1024, 8, seed=1)
    assert blocks.shape == (8, 1025)
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
