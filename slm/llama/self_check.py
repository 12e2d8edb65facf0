"""``python -m slm.llama.self_check FOLDER``: whether this build of llama.cpp computes, tried with a tiny random model.

A wrong build dies in native code or computes garbage. So this runs in its own process, which ``slm.llama.verdict``
starts and reads: one JSON object per line, each written before the next piece of work can kill the process. The
model's files go into FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np

from slm.llama import random_model
from slm.llama.context import Batch, Context
from slm.llama.log import build_features
from slm.llama.model import Model
from slm.llama.quantize import quantize

TYPES = ("f16", "q8_0", "q4_0", "q4_k_m", "iq4_xs")
TOLERANCE = {"f16": 0.03, "q8_0": 0.06, "q4_0": 0.35, "q4_k_m": 0.35, "iq4_xs": 0.35}
"""The largest error of a type: the norm of the difference to the f32 file's logits, as a share of their norm. Garbage
is near 1 or above. With AVX2 a right build has f16 0.0005, q8_0 0.013, and the 4-bit types 0.10 to 0.13."""
N_VOCAB, N_CTX = 512, 128
N_PROMPT, N_SINGLE = 96, 4
"""Tokens in one batch, which take the kernels for matrices (AMX's among them), and tokens one at a time."""


def write_model(path: Path) -> Path:
    """A model without a vocabulary, in f32; returns its path."""
    writer = gguf.GGUFWriter(path, "llama")
    random_model.add_shape(writer, n_vocab=N_VOCAB, n_ctx=N_CTX, n_layers=1)
    writer.add_tokenizer_model("no_vocab")
    random_model.add_weights(writer, n_vocab=N_VOCAB, n_layers=1)
    random_model.finish(writer)
    return path


def logits(path: Path, n_threads: int = 1) -> np.ndarray:
    """float32 [N_PROMPT + N_SINGLE, N_VOCAB]: what the file predicts after each token of a fixed sequence."""
    tokens = [7 * i % N_VOCAB for i in range(N_PROMPT + N_SINGLE)]
    rows = []
    # One thread unless told otherwise: on a busy machine, two that wait for each other after each of the many small
    # products take four times as long.
    with Model(path) as model, Context(model, n_ctx=N_CTX, n_batch=N_CTX, n_threads=n_threads) as context:
        batch = Batch(N_CTX)
        batch.extend(tokens[:N_PROMPT], 0, 0, True, every=True)
        context.decode(batch)
        rows.append(context.logits_all(N_PROMPT))
        for position in range(N_PROMPT, len(tokens)):
            batch.clear()
            batch.add(tokens[position], position, 0, True)
            context.decode(batch)
            rows.append(context.logits_all(1))
    return np.concatenate(rows)


def worst_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The larger error of the batch and of the single tokens; infinite where a number is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    parts = (slice(None, N_PROMPT), slice(N_PROMPT, None))
    return max(float(np.linalg.norm(found[p] - expected[p]) / np.linalg.norm(expected[p])) for p in parts)


def main(folder: Path) -> None:
    """Tries every type and reports on it line by line."""

    def report(**what: object) -> None:
        print(json.dumps(what), flush=True)

    report(features=build_features())
    report(begins="f32")
    source = write_model(folder / "f32.gguf")
    expected = logits(source)
    report(type="f32", right=bool(np.isfinite(expected).all()))
    for kind in TYPES:
        report(begins=kind)
        path = folder / f"{kind}.gguf"
        quantize(source, path, kind, n_threads=1)
        error = worst_error(logits(path), expected)
        report(type=kind, error=None if np.isinf(error) else error, right=error <= TOLERANCE[kind])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
