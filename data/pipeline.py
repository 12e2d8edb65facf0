"""Documents to blocks in one object: what a worker process runs, or the training process itself."""

from data.packing import Packer
from data.sources import Plan, open_documents
from data.tokenizer import Tokenizer


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
) -> Packer:
    """An iterator of ``np.int32[seq_len + 1]`` over this shard's documents, with ``state_dict``."""
    documents = open_documents(
        plans,
        seed=seed,
        shard_index=shard_index,
        num_shards=num_shards,
        shuffle_buffer=shuffle_buffer,
        endless=endless,
    )
    return Packer(documents, tokenizer.encode, seq_len=seq_len, eot_id=tokenizer.eot_id)
