"""``python -m slm.llama.speed.trial FOLDER REQUEST``: tokens per second of a model of a shape, in several types.

Native code may die, and what it allocates should go: so this runs in its own process, which ``kept.py`` starts.
Speed does not depend on the numbers, so a matrix is one row in the type's blocks, repeated. The last line printed is a
JSON object, type to tokens per second.

Shape suffixes: R rounds, K types.

Tested in tests/slm/llama/speed/test_kept.py.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import gguf
import numpy as np

from slm.llama.blocks.rounding import quantize_rows
from slm.llama.blocks.shape import add_shape
from slm.llama.gguf_check import GGML_TYPES
from slm.llama.speed.kept import Shape
from slm.llama.speed.timing import Decoder
from slm.llama.speed.workload import Workload
from slm.model.config import ModelConfig

ROUNDS, TURN_S = 9, 0.08
"""Every type has its turn so often, for about this many seconds: short turns, so that types that are compared were
measured at the same time."""
_FEWEST, _PROBED = 4, 8
"""Tokens of a turn, and of the one that tells how many it should have."""


def write_model(path: Path, shape: Shape, kind: str, n_ctx: int = 576) -> Path:
    """A model without a vocabulary, with all matrices in the type; norms and biases as its architecture has them."""
    model = ModelConfig(seq_len=n_ctx, **asdict(shape))
    writer = gguf.GGUFWriter(path, shape.arch)
    add_shape(writer, model)
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(7)
    rows: dict[int, np.ndarray] = {}

    def matrix(name: str, n_rows: int, width: int) -> None:
        if width not in rows:
            row_D = rng.normal(0, width**-0.5, (1, width)).astype(np.float32)
            rows[width] = quantize_rows(row_D, kind, np.ones(width, np.float32))
        number = gguf.GGMLQuantizationType(GGML_TYPES[kind][0])
        writer.add_tensor(name, np.repeat(rows[width], n_rows, axis=0), raw_dtype=number)

    def vector(name: str, size: int = shape.d_model) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    matrix("token_embd.weight", shape.vocab_size, shape.d_model)
    for i in range(shape.n_layers):
        if model.traits.pre_norms:
            vector(f"blk.{i}.attn_norm.weight")
            vector(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", queries, shape.d_model)
        matrix(f"blk.{i}.attn_k.weight", keys, shape.d_model)
        matrix(f"blk.{i}.attn_v.weight", keys, shape.d_model)
        matrix(f"blk.{i}.attn_output.weight", shape.d_model, queries)
        matrix(f"blk.{i}.ffn_gate.weight", shape.ffn_dim, shape.d_model)
        matrix(f"blk.{i}.ffn_up.weight", shape.ffn_dim, shape.d_model)
        matrix(f"blk.{i}.ffn_down.weight", shape.d_model, shape.ffn_dim)
        if model.traits.qkv_bias:
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                vector(f"blk.{i}.attn_{name}.bias", size)
        if model.traits.qk_norm:
            wide = model.traits.wide_qk_norm
            vector(f"blk.{i}.attn_q_norm.weight", queries if wide else shape.head_dim)
            vector(f"blk.{i}.attn_k_norm.weight", keys if wide else shape.head_dim)
        if model.traits.post_norms:
            vector(f"blk.{i}.post_attention_norm.weight")
            vector(f"blk.{i}.post_ffw_norm.weight")
    vector("output_norm.weight")
    if model.arch == "olmo2":  # llama.cpp has no tied one
        matrix("output.weight", shape.vocab_size, shape.d_model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rates(folder: Path, shape: Shape, kinds: Sequence[str], threads: int, workload: Workload) -> dict[str, float]:
    """Tokens per second of the types, which take turns. Only the first of them computes the prompt: the others get its
    keys and values, for a speed does not depend on them."""
    n_ctx = workload.prompt + workload.tokens
    decoders: list[Decoder] = []
    taken_KR: list[list[float]] = [[] for _ in kinds]
    try:
        for kind in kinds:
            decoders.append(Decoder(write_model(folder / f"{kind}.gguf", shape, kind, n_ctx), workload, threads))
            if len(decoders) == 1:
                decoders[0].prefill()
                state = decoders[0].context.seq_state(0)
            else:
                decoders[-1].context.set_seq_state(0, state)
            decoders[-1].decode(min(_PROBED, workload.tokens))  # it reads the file and makes the buffers
        tokens = [_tokens_of_a_turn(each, workload) for each in decoders]
        for number in range(ROUNDS):
            order = range(len(kinds))[:: -1 if number % 2 else 1]
            for k in order:
                taken_KR[k].append(decoders[k].decode(tokens[k]) / tokens[k])
    finally:
        for decoder in decoders:
            decoder.close()
    return dict(zip(kinds, (1 / settled(np.array(taken_KR).T)).tolist(), strict=True))


def _tokens_of_a_turn(decoder: Decoder, workload: Workload) -> int:
    probed = min(_PROBED, workload.tokens)
    per_token_s = decoder.decode(probed) / probed
    return int(min(max(TURN_S / per_token_s, _FEWEST), workload.tokens))


def settled(taken_RK: np.ndarray) -> np.ndarray:
    """f64 [K]: seconds of each type, from those of every round. What slows a whole round, such as another program, does
    not count for the relation of types: that is the median of their relations within a round."""
    level_R = np.exp(np.log(taken_RK).mean(axis=1))
    return np.asarray(np.median(taken_RK / level_R[:, None], axis=0) * np.median(level_R), np.float64)


def main(folder: Path, request: str) -> None:
    """Measure what ``kept.py`` asks for."""
    asked = json.loads(request)
    found = rates(folder, Shape(**asked["shape"]), asked["kinds"], asked["threads"], Workload(**asked["workload"]))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
