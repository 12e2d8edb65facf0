"""The whole way from documents to blocks, as a worker process or the training process runs it.

Tested in tests/data/stream/test_loader.py.
"""

import os
from collections.abc import Sequence

import numpy as np

from slm.data.chat.tokens import ChatEncoder
from slm.data.sources.corpus import Corpus
from slm.data.sources.document_stream import Document, ResumableStream, State, TokenStream
from slm.data.sources.documents import mix, open_stream
from slm.data.sources.plan import Plan
from slm.data.stream import token_cache
from slm.data.stream.blocks import EveryNth, ShuffledBlocks
from slm.data.stream.conversations import ConversationPacker, Conversations, Pairs, Pieces
from slm.data.stream.packing import Packer, Tokenized
from slm.data.stream.read_so_far import Recorder
from slm.data.tokenizers.fast_encode import make_encode
from slm.data.tokenizers.tokenizer import Tokenizer


class Pipeline:
    """An iterator of ``np.int32[seq_len + 1]``, with ``state_dict``."""

    def __init__(
        self,
        blocks: ResumableStream[np.ndarray],
        packers: Sequence[Packer | ConversationPacker],
        recorders: Sequence[Recorder],
    ) -> None:
        self._blocks = blocks
        self._packers = packers
        self._recorders = recorders

    def __iter__(self) -> "Pipeline":
        return self

    def __next__(self) -> np.ndarray:
        return next(self._blocks)

    @property
    def queued(self) -> int:
        """Tokens that were read and do not fill a block yet."""
        return sum(packer.queued for packer in self._packers)

    def state_dict(self) -> State:
        """The position; ``read`` says how far each source was read, which is often further."""
        return {**self._blocks.state_dict(), "read": [recorder.place() for recorder in self._recorders]}

    def load_state_dict(self, state: State) -> None:
        self._blocks.load_state_dict(state)


def open_pipeline(
    *,
    plans: list[Plan],
    tokenizer: Tokenizer,
    seq_len: int,
    seed: int,
    shuffle_buffer: int,
    endless: bool,
    shard_index: int = 0,
    num_shards: int = 1,
    cache_option: str | bool = False,
    cache_folder: str | os.PathLike[str] = "",
    pairs: bool = False,
    room: int | None = None,
) -> Pipeline:
    """This shard's blocks. Each source is read once, or with ``endless`` as often as its ``max_epochs`` allows.

    Sources are mixed by tokens: their documents, or if some are long, their blocks. Blocks of training text are
    shuffled, so that a step's are not of one or two documents. Where long documents are few, every shard reads all of
    them, and the shards share out the blocks.

    Blocks of conversations carry marks (``slm.data.stream.marks``). Text that is mixed with them comes in pieces, and
    where its documents are long, in shuffled blocks. With ``pairs`` both answers of preference pairs are in them.
    ``room``: as for ``ConversationPacker``; the blocks then have several lengths.
    """
    assert 0 <= shard_index < num_shards
    for plan in plans:
        if plan.prepared is not None:
            plan.prepared.check(tokenizer)
    encode = make_encode(tokenizer)
    chats = any(plan.source.is_chat for plan in plans)
    recorders = [Recorder() for _ in plans]

    def tokens(number: int, plan: Plan, shard_index: int, num_shards: int) -> TokenStream:
        """One shard's documents, or where text is mixed with conversations, its pieces."""

        def cached(corpus: Corpus[str]) -> Corpus[Document]:
            if not token_cache.is_wanted(cache_option, plan):
                return corpus
            return token_cache.add_cache(
                corpus, plan, tokenizer, cache_folder, encode=encode, required=cache_option is True
            )

        documents = open_stream(
            plan,
            seed=seed,
            number=number,
            shard_index=shard_index,
            num_shards=num_shards,
            shuffle_buffer=0 if plan.long_documents else shuffle_buffer,  # instead, their blocks are shuffled
            repeat=endless,
            wrap=cached,
            recorder=recorders[number],
        )
        if pairs:
            return Pairs(documents, ChatEncoder(tokenizer), seq_len=seq_len)
        if plan.source.is_chat:
            encoder = ChatEncoder(tokenizer, train_on=plan.source.train_on)
            return Conversations(documents, encoder, seq_len=seq_len)
        text = Tokenized(documents, encode, eot_id=tokenizer.eot_id, begins=tokenizer.begins)
        if not chats:
            return text
        piece = min(seq_len, room or seq_len)
        if not plan.long_documents or not shuffle_buffer:
            return Pieces(text, seq_len=piece)
        return Pieces(in_groups(Packer(text, seq_len=piece), number, shard_index), seq_len=piece)

    def in_groups(packer: Packer, number: int, shard_index: int) -> ResumableStream[np.ndarray]:
        return ShuffledBlocks(packer, seed=f"{seed}/{number}/{shard_index}/blocks")

    mixing_seed = f"{seed}/{shard_index}"
    if chats or not any(plan.long_documents for plan in plans):
        streams: list[TokenStream] = []
        for number, plan in enumerate(plans):
            if chats and not plan.source.is_chat and plan.few_documents(num_shards):
                streams.append(EveryNth(tokens(number, plan, 0, 1), index=shard_index, n=num_shards))
            else:
                streams.append(tokens(number, plan, shard_index, num_shards))
        mixed = mix(streams, plans, measure=len, seed=mixing_seed)
        if chats:
            padding = tokenizer.eot_id
            whole = ConversationPacker(mixed, seq_len=seq_len, padding=padding, seed=mixing_seed, room=room)
            return Pipeline(whole, [whole], recorders)
        packed = Packer(mixed, seq_len=seq_len)
        shuffled = endless and shuffle_buffer > 0
        blocks_of_all = ShuffledBlocks(packed, seed=f"{mixing_seed}/blocks") if shuffled else packed
        return Pipeline(blocks_of_all, [packed], recorders)
    packers: list[Packer | ConversationPacker] = []
    blocks = []
    for number, plan in enumerate(plans):
        share_out = plan.few_documents(num_shards)
        shard = (0, 1) if share_out else (shard_index, num_shards)
        packer = Packer(tokens(number, plan, *shard), seq_len=seq_len)
        stream: ResumableStream[np.ndarray] = packer
        if plan.long_documents and shuffle_buffer:
            stream = in_groups(packer, number, shard[0])
        if share_out:
            stream = EveryNth(stream, index=shard_index, n=num_shards)
        packers.append(packer)
        blocks.append(stream)
    return Pipeline(mix(blocks, plans, measure=len, seed=mixing_seed), packers, recorders)
