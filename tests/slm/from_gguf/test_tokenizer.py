"""Real vocabularies, read back from their GGUF files: the ids of 500 texts and of chats are llama.cpp's, and so they
are once the tokenizer has been written to a GGUF file again.

The files come from llama.cpp's own tests, in ``vocab/`` of the shared data. The suite has the quick ones;
``SLM_TEST_VOCABULARIES=FILE:FILE`` takes the files named.
"""

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.from_gguf.contents import open_contents
from slm.from_gguf.convert import RECORD, checkpoint
from slm.from_gguf.proof import TEXTS, made_texts, write_tokenizer
from slm.from_gguf.tokenizer import tokenizer_files
from slm.llama.model import Model
from slm.llama.quantize import quantize
from slm.vocabulary.exportable import write_vocabulary
from slm.vocabulary.gguf_vocab import build_vocab
from slm.vocabulary.same_ids import token_failures
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers import tiny_gguf

IN_THE_SUITE = ("deepseek-coder", "llama-spm")  # the others take up to half a minute each
NAMED = [Path(each) for each in os.environ.get("SLM_TEST_VOCABULARIES", "").split(":") if each]


@pytest.fixture(scope="module", params=NAMED or IN_THE_SUITE, ids=lambda each: Path(each).stem)
def vocabulary(request, shared_data) -> Path:
    path = request.param if NAMED else shared_data / "vocab" / f"ggml-vocab-{request.param}.gguf"
    if not path.is_file():
        pytest.skip(f"no vocabulary at {path}")
    return path


def test_a_real_vocabulary_there_and_back(vocabulary, tmp_path):
    assert write_tokenizer(vocabulary, tmp_path) == []
    tokenizer = load_tokenizer(tmp_path)
    texts = made_texts(tokenizer)
    assert len(set(texts)) > TEXTS * 0.9
    rows = len(open_contents(vocabulary).arrays["tokenizer.ggml.tokens"])
    (tmp_path / "config.json").write_text("{}")
    write_vocabulary(tmp_path / "again.gguf", build_vocab(tmp_path, rows), name="again")
    with Model(tmp_path / "again.gguf", vocab_only=True) as llama:
        assert token_failures(llama, texts, [tokenizer.encode_document(each) for each in texts]) == []
    first, again = (open_contents(path) for path in (vocabulary, tmp_path / "again.gguf"))
    for key in ("bos_token_id", "eos_token_id"):
        assert again.metadata[f"tokenizer.ggml.{key}"] == first.metadata[f"tokenizer.ggml.{key}"]


def test_a_wrong_pre_tokenizer_is_found(shared_data, tmp_path, monkeypatch):
    """What the name stands for is compared with llama.cpp, and not believed."""
    path = shared_data / "vocab" / "ggml-vocab-starcoder.gguf"
    if not path.is_file():
        pytest.skip(f"no vocabulary at {path}")
    contents = open_contents(path)
    contents.metadata["tokenizer.ggml.pre"] = "gpt-2"
    from slm.data.tokenizers.tokenizer import Tokenizer

    with Model(path, vocab_only=True) as llama:
        wrong = Tokenizer(tokenizer_files(llama, contents)[0], name="wrong")
        texts = made_texts(wrong)
        (failure,) = token_failures(llama, texts, [wrong.encode_document(each) for each in texts])
    assert "its tokenizer gives other ids" in failure


def test_what_llama_cpp_alone_can_split_is_named(tmp_path):
    path = tiny_gguf.write(tmp_path / "m.gguf")
    raw = path.read_bytes()
    at = raw.index(b"tokenizer.ggml.pre") + len(b"tokenizer.ggml.pre") + 4 + 8
    assert raw[at : at + 5] == b"gpt-2"
    path.write_bytes(raw[:at] + b"afmoe" + raw[at + 5 :])
    with pytest.raises(UserError, match=r"m\.gguf splits text by the rule 'afmoe', which is known to llama\.cpp alone"):
        write_tokenizer(path, tmp_path)


@pytest.fixture(scope="module")
def model_file(vocabulary, tmp_path_factory) -> Path:
    """An f32 file of a small model with the vocabulary; its checkpoint lies beside it."""
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    folder.mkdir()
    assert write_tokenizer(vocabulary, folder) == []
    contents = open_contents(vocabulary)
    ids = {f"{each}_id": contents.metadata.get(f"tokenizer.ggml.{each}_token_id") for each in ("bos", "eos")}
    rows = len(contents.arrays["tokenizer.ggml.tokens"])
    tiny.checkpoint(folder, own_tokenizer=True, vocab_size=rows, n_layers=1, tie_embeddings=True, **ids)
    return tiny.write(folder.parent / "model.gguf", folder)


@pytest.mark.parametrize("vocabulary", NAMED or IN_THE_SUITE[:1], indirect=True)
@pytest.mark.parametrize("kind", ("q8_0", "q4_0", "q4_k_m") if NAMED else ("q4_k_m",))
def test_a_quantized_model_with_it_there_and_back(model_file, kind, tmp_path, monkeypatch):
    """File, checkpoint, file: the checkpoint is proven, and its own file has the first one's values and vocabulary."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "quantized.gguf"
    quantize(model_file, path, kind, n_threads=2)
    found = checkpoint(path, lambda line: None)
    proof = json.loads((found / RECORD).read_text())["proof"]
    assert proof["kl"] < 0.02
    again = tiny.write(tmp_path / "again.gguf", found)
    first, second = (gguf.GGUFReader(each) for each in (path, again))
    values = {each.name: each.data for each in second.tensors}
    assert values.keys() == {each.name for each in first.tensors}
    for each in first.tensors:
        expected = gguf.quants.dequantize(each.data, each.tensor_type)
        assert np.array_equal(values[each.name].reshape(-1), expected.reshape(-1)), each.name
    for key in ("tokens", "merges", "token_type", "pre", "model", "bos_token_id", "eos_token_id"):
        name = f"tokenizer.ggml.{key}"
        if (kept := first.fields.get(name)) is not None:
            assert second.fields[name].contents() == kept.contents(), key
    if "tokenizer.ggml.scores" in first.fields:  # which of two merges comes first: only the order of pieces counts
        pieces = np.array(first.fields["tokenizer.ggml.token_type"].contents()) == gguf.TokenType.NORMAL
        scores = [np.array(each.fields["tokenizer.ggml.scores"].contents())[pieces] for each in (first, second)]
        assert np.array_equal(*(np.argsort(each, kind="stable") for each in scores))
    print(f"\n{model_file.parent.name} {kind}: KL {proof['kl']:.1e}, the same top token at {proof['same_top']:.0%}")
