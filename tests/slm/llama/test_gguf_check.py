import pytest

from slm.llama.gguf_check import GGML_TYPES, read_header


def test_type_table_is_ggufs_own():
    constants = pytest.importorskip("gguf.constants")
    for kind, (block, size) in constants.GGML_QUANT_SIZES.items():
        name = kind.name.lower()
        if name != "q8_1":  # never stored in a file; gguf-py's figure is an old layout's
            assert GGML_TYPES[name] == (kind.value, block, size)


def test_header_of_the_fixture(tiny_path, model):
    header = read_header(tiny_path)
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens[]"] == model.n_vocab
    assert sum(t.n_bytes for t in header.tensors) == model.size_bytes
    assert header.tensors[0].name == "token_embd.weight"
    assert header.tensors[0].shape == (256, model.n_vocab)
