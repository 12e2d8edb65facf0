"""Writes a tiny llama-architecture GGUF with random weights, for tests that need a real file and no training.

Byte-level BPE (GPT-2's pre-tokenizer) of 256 bytes, some merges and special tokens. Seeded: the same bytes
each time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

from slm.exported import CONFIG_KEY
from slm.llama import random_model

EOT = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    "the old fox and the little bird went to the river to find the red boat that the wind had taken away "
    "once upon a time there was a girl who had a blue hat and she said hello to the bear in the garden "
) * 4


def _byte_alphabet() -> dict[int, str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    spare = 256
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(spare)
            spare += 1
    return alphabet


def _merges(n: int) -> list[tuple[str, str]]:
    alphabet = _byte_alphabet()
    words = [[alphabet[b] for b in (" " + word).encode()] for word in _TEXT.split()]
    merges: list[tuple[str, str]] = []
    for _ in range(n):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = ["".join(best)]
                i += 1
    return merges


def write(
    path: Path,
    *,
    chat_template: str | None = None,
    n_ctx: int = 512,
    n_layers: int = 2,
    checkpoint: str = "",
    script: dict[str, str] | None = None,
    pooling: gguf.PoolingType | None = None,
    encoder: bool = False,
    add_bos: bool = False,
) -> Path:
    """Writes the file and returns its path.

    ``checkpoint``: what the record of an export in it names. ``script``: which token follows which, so that the model
    says something certain; texts that are no tokens yet become one each. ``pooling``: what an embedding is made of.
    ``encoder``: a BERT, whose tokens see each other, in place of a Llama. ``add_bos``: every text begins with a token
    for that.
    """
    merges = _merges(60)
    alphabet = _byte_alphabet()
    tokens = [alphabet[b] for b in range(256)] + ["".join(pair) for pair in merges]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    specials = [EOT] + (["<|im_start|>", "<|im_end|>"] if chat_template else [])
    tokens += specials
    types += [gguf.TokenType.CONTROL] * len(specials)
    names = {token: token for token in tokens} | {"\n": alphabet[ord("\n")]}
    more = [each for each in dict.fromkeys([*(script or {}), *(script or {}).values()]) if each not in names]
    tokens += more
    types += [gguf.TokenType.USER_DEFINED] * len(more)
    names |= {each: each for each in more}

    writer = gguf.GGUFWriter(path, "bert" if encoder else "llama")
    writer.add_name("tiny test model")
    random_model.add_shape(writer, n_vocab=len(tokens), n_ctx=n_ctx, n_layers=n_layers)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokens.index(EOT))
    writer.add_eos_token_id(tokens.index(specials[-1]))
    writer.add_add_bos_token(add_bos)
    if chat_template:
        writer.add_chat_template(chat_template)
    if checkpoint:
        writer.add_string(CONFIG_KEY, json.dumps({"run": path.parent.parent.name, "checkpoint": checkpoint}))
    if encoder:
        _add_encoder(writer, n_vocab=len(tokens), n_ctx=n_ctx, n_layers=n_layers)
    elif script is None:
        random_model.add_weights(writer, n_vocab=len(tokens), n_layers=n_layers)
    else:
        ids = {tokens.index(names[a]): tokens.index(names[b]) for a, b in script.items()}
        _add_script(writer, ids, n_vocab=len(tokens), n_layers=n_layers)
    random_model.finish(writer)
    return path


def _add_encoder(writer: gguf.GGUFWriter, *, n_vocab: int, n_ctx: int, n_layers: int) -> None:
    """A BERT's random weights, and a head that gives a score."""
    embed, ffn = random_model.EMBED, random_model.FFN
    writer.add_causal_attention(False)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_type_count(2)
    writer.add_classifier_output_labels(["score"])
    rng = np.random.default_rng(7)

    def linear(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32))
        writer.add_tensor(f"{name}.bias", rng.normal(0, 0.1, rows).astype(np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(embed, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(embed, np.float32))

    writer.add_tensor("token_embd.weight", rng.normal(0, 1, (n_vocab, embed)).astype(np.float32))
    writer.add_tensor("position_embd.weight", rng.normal(0, 1, (n_ctx, embed)).astype(np.float32))
    writer.add_tensor("token_types.weight", rng.normal(0, 1, (2, embed)).astype(np.float32))
    norm("token_embd_norm")
    for i in range(n_layers):
        for name in ("attn_q", "attn_output"):
            linear(f"blk.{i}.{name}", embed, embed)
        for name in ("attn_k", "attn_v"):
            linear(f"blk.{i}.{name}", random_model.N_KV_HEADS * random_model.HEAD_DIM, embed)
        norm(f"blk.{i}.attn_output_norm")
        linear(f"blk.{i}.ffn_up", ffn, embed)
        linear(f"blk.{i}.ffn_down", embed, ffn)
        norm(f"blk.{i}.layer_output_norm")
    linear("cls", embed, embed)
    linear("cls.output", 1, embed)


def _add_script(writer: gguf.GGUFWriter, follows: dict[int, int], *, n_vocab: int, n_layers: int) -> None:
    """Weights with which a token's logits depend on that token alone: the one that follows it is by far likeliest."""
    embed = random_model.EMBED
    rng = np.random.default_rng(7)
    rows = rng.normal(0, 1, (n_vocab, embed)).astype(np.float32)
    heads = np.zeros((n_vocab, embed), np.float32)
    for before, after in follows.items():
        heads[after] += rows[before] * 0.2
    writer.add_tensor("token_embd.weight", rows)
    n_heads, n_kv = random_model.N_HEADS * random_model.HEAD_DIM, random_model.N_KV_HEADS * random_model.HEAD_DIM
    shapes = {"attn_q": (n_heads, embed), "attn_k": (n_kv, embed), "attn_v": (n_kv, embed)}
    shapes |= {"attn_output": (embed, n_heads), "ffn_gate": (random_model.FFN, embed)}
    shapes |= {"ffn_up": (random_model.FFN, embed), "ffn_down": (embed, random_model.FFN)}
    for i in range(n_layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(embed, np.float32))
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", np.zeros(shape, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(embed, np.float32))
    writer.add_tensor("output.weight", heads)


def exported_run(root: Path, *, exported_at: int, trained_to: int) -> Path:
    """A run's directory with checkpoints (by name only) and one file in ``gguf/`` that was exported at a step."""
    for step in {exported_at, trained_to}:
        checkpoint = root / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text("{}")
    (root / "gguf").mkdir()
    name = f"{root.name}-1M-v1.0-Q4_K_M.gguf"
    path = write(root / "gguf" / name, checkpoint=f"step-{exported_at:08d}")
    record = {"sha256": {name: hashlib.sha256(path.read_bytes()).hexdigest()}}
    (root / "gguf" / "export.json").write_text(json.dumps(record))
    return root
