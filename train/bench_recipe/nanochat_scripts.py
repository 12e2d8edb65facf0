"""What runs in nanochat's own Python, with its tokenizer and its model: texts of programs.

Tested in tests/train/bench_recipe/test_nanochat_scripts.py.
"""

PIECES = """
import random, sys
import pyarrow as pa, pyarrow.parquet as pq
from nanochat.tokenizer import get_tokenizer
shard, length, row_group, seed = sys.argv[1], *map(int, sys.argv[2:])
length += 2  # a piece by itself may have a token or two fewer
tokenizer = get_tokenizer()
begins_word = [tokenizer.decode([i])[:1].isspace() for i in range(tokenizer.get_vocab_size())]
blank = tokenizer.encode("\\n\\n")
pieces, rest = [], []
for batch in pq.ParquetFile(shard).iter_batches():
    for tokens in tokenizer.encode(batch.column("text").to_pylist(), num_threads=4):
        rest += tokens + blank
        first, end = 0, length
        while end < len(rest):
            if begins_word[rest[end]]:
                pieces.append(tokenizer.decode(rest[first:end]))
                first, end = end, end + length
            else:
                end += 1
        rest = rest[first:]
pieces.append(tokenizer.decode(rest))
random.Random(seed).shuffle(pieces)
pq.write_table(pa.table({"text": pieces}), shard, row_group_size=row_group)
"""
"""Cuts the training shard ``shard`` into pieces of ``length`` tokens and a few more, each to the end of a word, in
random order. Its loader cuts off what does not fit into a row, so that of a longer document it reads the beginning
alone."""

SCORE = """
import json, math, sys
import torch
from nanochat.checkpoint_manager import load_model
source, out, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, tokenizer, _ = load_model("base", torch.device("cpu"), phase="eval")
documents = [json.loads(line)["text"] for line in open(source, encoding="utf-8")]
start = tokenizer.get_bos_token_id()
stream = [token for text in documents for token in tokenizer.encode(text, prepend=start)]
nats = 0.0
with torch.inference_mode():
    for begin in range(0, len(stream) - 1, length):
        end = min(begin + length, len(stream) - 1)
        first = max(0, min(begin, end - 2))  # it takes two tokens at least
        inputs, targets = torch.tensor([stream[first:end]]), torch.tensor([stream[first + 1 : end + 1]])
        losses = model(inputs, targets, loss_reduction="none").float().view(-1)
        nats += losses[begin - first :].double().sum().item()
n_bytes = sum(len(text.encode("utf-8")) for text in documents)
json.dump({"bits_per_byte": nats / math.log(2) / n_bytes}, open(out, "w"))
"""
"""Bits per byte of its newest checkpoint, in contiguous windows: what every contender is scored by."""
