"""The whole way from documents to blocks, as a worker process or the training process runs it.

Tested in tests/data/stream/test_loader.py.
"""

import os

from data.chat.tokens import ChatEncoder
from data.sources.corpus import Corpus
from data.sources.document_stream import Document, TokenStream
from data.sources.documents import mix, open_stream
from data.sources.plan import Plan
from data.stream import token_cache
from data.stream.conversations import ConversationPacker, Conversations, Pieces
from data.stream.packing import Packer, Tokenized
from data.tokenizers.fast_encode import make_encode
from data.tokenizers.tokenizer import Tokenizer


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
) -> Packer | ConversationPacker:
    """An iterator of ``np.int32[seq_len + 1]`` over this shard's documents, with ``state_dict``.

    Blocks of conversations carry marks (``data.stream.marks``).

    Sources are mixed by tokens. Each is read once, or with ``endless`` as often as its ``max_epochs`` allows.
    """
    assert 0 <= shard_index < num_shards
    encode = make_encode(tokenizer)
    chats = any(plan.source.is_chat for plan in plans)

    def tokens(number: int, plan: Plan) -> TokenStream:
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
            shuffle_buffer=shuffle_buffer,
            repeat=endless,
            wrap=cached,
        )
        if plan.source.is_chat:
            return Conversations(documents, ChatEncoder(tokenizer), seq_len=seq_len)
        text = Tokenized(documents, encode, eot_id=tokenizer.eot_id)
        return Pieces(text, seq_len=seq_len) if chats else text

    streams = [tokens(number, plan) for number, plan in enumerate(plans)]
    mixed = mix(streams, plans, measure=len, seed=f"{seed}/{shard_index}")
    if chats:
        return ConversationPacker(mixed, seq_len=seq_len, padding=tokenizer.eot_id, seed=f"{seed}/{shard_index}")
    return Packer(mixed, seq_len=seq_len)
