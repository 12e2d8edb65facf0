"""Embeddings are made of what the model's file says: compared with llama.cpp's own pooling of the whole text."""

import ctypes

import gguf
import llama_cpp.llama_cpp as C
import numpy as np
import pytest

from slm.llama.model import Model
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.embedder import Embedder
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Embed, Failure, Generate, Reply
from tests.helpers import tiny_gguf

TEXTS = ("once upon a time", "a red boat in the river " * 20, "x", "the old fox", "the wind had taken the boat " * 12)
MODELS = [(pooling, encoder) for pooling in ("MEAN", "CLS", "LAST", "RANK") for encoder in (False, True)]
MODELS.remove(("RANK", False))  # a Llama has no head for it


def whole(path, text) -> np.ndarray:
    """llama.cpp's embedding of a text in one pass, of length 1; a reranker's score as it is."""
    with Model(path) as model:
        ids = model.tokenize(text, add_special=True, parse_special=False)
        params = C.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.embeddings = True
        context = C.llama_init_from_model(model._open(), params)
        batch = C.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
            assert C.llama_decode(context, batch) == 0
            found = C.llama_get_embeddings_seq(context, 0)
            n = model.n_scores if model.pooling == "rank" else model.n_embd
            vector = np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_float)), (n,)).copy()
        finally:
            C.llama_batch_free(batch)
            C.llama_free(context)
        return vector if model.pooling == "rank" else vector / np.linalg.norm(vector)


def run(engine, *commands):
    events = [event for command in commands for event in engine.handle(command)]
    while engine.busy:
        events += engine.step()
    return events


@pytest.mark.parametrize(("pooling", "encoder"), MODELS)
def test_an_embedding_is_that_of_the_whole_text(tmp_path, pooling, encoder):
    path = tiny_gguf.write(tmp_path / "m.gguf", pooling=gguf.PoolingType[pooling], encoder=encoder)
    engine = Engine(EngineConfig(model_path=path, threads=1, slots=2))
    (reply,) = run(engine, Embed(id="a", inputs=TEXTS))
    assert isinstance(reply, Reply), reply
    for text, found in zip(TEXTS, reply.value.vectors, strict=True):
        vector, expected = np.frombuffer(found, "<f4"), whole(path, text)
        assert vector.shape == expected.shape
        np.testing.assert_allclose(vector, expected, atol=2e-3 if pooling != "RANK" else 2e-2)
    if encoder:
        (failure,) = run(engine, Generate(id="b", prompt="x"), *[])
        assert "makes embeddings and no text" in failure.message
        # The table of positions ends there.
        (failure,) = run(engine, Embed(id="c", inputs=((5,) * 513,)))
        assert isinstance(failure, Failure)
        assert failure.code == "context_length_exceeded"
        (reply,) = run(engine, Embed(id="d", inputs=((5,) * 512, "x")))
        assert isinstance(reply, Reply)
    engine.close()


def test_kinds_differ(tmp_path):
    """Or the comparison above would show nothing."""
    vectors = []
    for pooling in ("MEAN", "CLS", "LAST"):
        path = tiny_gguf.write(tmp_path / f"{pooling}.gguf", pooling=gguf.PoolingType[pooling])
        vectors.append(whole(path, TEXTS[1]))
    assert max(float(vectors[a] @ vectors[b]) for a, b in ((0, 1), (0, 2), (1, 2))) < 0.95


def test_waiting_inputs_hold_no_buffers(tiny_path):
    with Model(tiny_path) as model:
        embedder = Embedder(model, context=64, threads=lambda: 1)
        embedder.add(Embed(id="a", inputs=("x",) * 40))
        embedder.step()
        held = [each.total for each in embedder._queue if each.total is not None]
        assert len(held) <= 16
        assert all(each.dtype == np.float32 for each in held)
        embedder.close()
