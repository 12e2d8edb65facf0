"""``python -m slm.llama.speed.trial FOLDER REQUEST``: tokens per second of a model of a shape, in several types.

Native code may die, and what it allocates should go: so this runs in a process of its own, which ``kept.py`` starts.
Speed does not depend on the numbers, so a matrix is one row in the type's blocks, repeated. The last line printed is a
JSON object, type to tokens per second.

Tested in tests/slm/llama/speed/test_kept.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import gguf
import numpy as np

from slm.llama.blocks.rounding import quantize_rows
from slm.llama.blocks.shape import add_shape
from slm.llama.context import Batch, Context
from slm.llama.gguf_check import GGML_TYPES
from slm.llama.model import Model
from slm.llama.speed.kept import Shape
from slm.model.config import ModelConfig

ROUNDS, ROUND_S = 3, 0.2
"""Every type has its turn so often, for about so many seconds."""
N_CTX = 96


def write_model(path: Path, shape: Shape, kind: str) -> Path:
    """A model without a vocabulary whose matrices all have the type."""
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer, ModelConfig(arch="llama", seq_len=N_CTX, **asdict(shape)))
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(7)
    rows: dict[int, np.ndarray] = {}

    def matrix(name: str, n_rows: int, width: int) -> None:
        if width not in rows:
            row_D = rng.normal(0, width**-0.5, (1, width)).astype(np.float32)
            rows[width] = quantize_rows(row_D, kind, np.ones(width, np.float32))
        number = gguf.GGMLQuantizationType(GGML_TYPES[kind][0])
        writer.add_tensor(name, np.repeat(rows[width], n_rows, axis=0), raw_dtype=number)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.d_model, np.float32))

    queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    matrix("token_embd.weight", shape.vocab_size, shape.d_model)
    for i in range(shape.n_layers):
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", queries, shape.d_model)
        matrix(f"blk.{i}.attn_k.weight", keys, shape.d_model)
        matrix(f"blk.{i}.attn_v.weight", keys, shape.d_model)
        matrix(f"blk.{i}.attn_output.weight", shape.d_model, queries)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", shape.ffn_dim, shape.d_model)
        matrix(f"blk.{i}.ffn_up.weight", shape.ffn_dim, shape.d_model)
        matrix(f"blk.{i}.ffn_down.weight", shape.d_model, shape.ffn_dim)
    norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Decoder:
    """One model, ready to decode."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = Model(path)
        self.context = Context(self.model, n_ctx=N_CTX, n_batch=8, n_threads=threads)
        self.batch = Batch(8)
        self.rates: list[float] = []
        self._decode(4)  # the first tokens read the file and make the buffers

    def round(self, seconds: float) -> None:
        """Decode for about this time, and note the rate."""
        tokens, began = 0, perf_counter()
        while (taken := perf_counter() - began) < seconds:
            tokens += self._decode(8)
        self.rates.append(tokens / taken)

    def _decode(self, n_tokens: int) -> int:
        self.context.clear()
        for position in range(n_tokens):
            self.batch.clear()
            self.batch.add(position, position, 0, True)
            self.context.decode(self.batch)
            self.context.row(0)
        return n_tokens

    def close(self) -> None:
        self.context.close()
        self.model.close()


def rates(folder: Path, shape: Shape, kinds: Sequence[str], threads: int) -> dict[str, float]:
    """Medians of tokens per second, the types in turn."""
    decoders = {kind: Decoder(write_model(folder / f"{kind}.gguf", shape, kind), threads) for kind in kinds}
    for _ in range(ROUNDS):
        for decoder in decoders.values():
            decoder.round(ROUND_S)
    found = {kind: float(np.median(decoder.rates)) for kind, decoder in decoders.items()}
    for decoder in decoders.values():
        decoder.close()
    return found


def file_rate(path: Path, threads: int) -> float:
    """Tokens per second of one file as it is, measured in this process: the median of a few short rounds."""
    decoder = Decoder(path, threads)
    for _ in range(ROUNDS):
        decoder.round(ROUND_S)
    decoder.close()
    return float(np.median(decoder.rates))


def main(folder: Path, request: str) -> None:
    """Measure what ``kept.py`` asks for."""
    asked = json.loads(request)
    print(json.dumps(rates(folder, Shape(**asked["shape"]), asked["kinds"], asked["threads"])), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
