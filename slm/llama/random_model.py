"""A tiny llama-architecture GGUF file with random weights: for the self-check of a build, and for tests.

Tested in tests/slm/llama/test_self_check.py.
"""

from __future__ import annotations

import gguf
import numpy as np

EMBED, FFN, N_HEADS, N_KV_HEADS, HEAD_DIM = 256, 512, 4, 2, 64
"""Rows of 256 numbers are the shortest that K-quants can store."""


def add_shape(writer: gguf.GGUFWriter, *, n_vocab: int, n_ctx: int, n_layers: int) -> None:
    """The model's sizes as metadata."""
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_weights(writer: gguf.GGUFWriter, *, n_vocab: int, n_layers: int, seed: int = 7) -> None:
    """Random f32 weights, the same for the same ``seed``. Logits have a standard deviation near 3."""
    rng = np.random.default_rng(seed)

    def matrix(name: str, rows: int, columns: int, scale: float) -> None:
        writer.add_tensor(name, rng.normal(0, scale, (rows, columns)).astype(np.float32))

    matrix("token_embd.weight", n_vocab, EMBED, 1.0)
    for i in range(n_layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(EMBED, np.float32))
        matrix(f"blk.{i}.attn_q.weight", N_HEADS * HEAD_DIM, EMBED, EMBED**-0.5)
        matrix(f"blk.{i}.attn_k.weight", N_KV_HEADS * HEAD_DIM, EMBED, EMBED**-0.5)
        matrix(f"blk.{i}.attn_v.weight", N_KV_HEADS * HEAD_DIM, EMBED, EMBED**-0.5)
        matrix(f"blk.{i}.attn_output.weight", EMBED, N_HEADS * HEAD_DIM, EMBED**-0.5)
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(EMBED, np.float32))
        matrix(f"blk.{i}.ffn_gate.weight", FFN, EMBED, EMBED**-0.5)
        matrix(f"blk.{i}.ffn_up.weight", FFN, EMBED, EMBED**-0.5)
        matrix(f"blk.{i}.ffn_down.weight", EMBED, FFN, FFN**-0.5)
    writer.add_tensor("output_norm.weight", np.ones(EMBED, np.float32))
    matrix("output.weight", n_vocab, EMBED, 3 * EMBED**-0.5)


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes everything that was added to the file, and closes it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
