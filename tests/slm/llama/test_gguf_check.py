import pytest

from slm.data.errors import UserError
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


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a git-lfs pointer, not the model"),
        (b"\n<!DOCTYPE html>\n<html>", "is a web page, not a model"),
        (b"PK\x03\x04", "is a zip file or a PyTorch checkpoint"),
        (b"tjgg" + bytes(40), "has a format from before GGUF"),
        (b'\x40\x00\x00\x00\x00\x00\x00\x00{"a":', "is a safetensors file"),
    ],
)
def test_other_files_are_called_what_they_are(tmp_path, start, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(start)
    with pytest.raises(UserError) as caught:
        read_header(path)
    assert said in str(caught.value)
    assert "damaged" not in str(caught.value)


def test_a_withdrawn_type_is_named(tmp_path, tiny_path):
    raw = bytearray(tiny_path.read_bytes())
    name = b"token_embd.weight"
    at = raw.index(name) + len(name) + 4 + 2 * 8  # behind the name, the number of dimensions, and two of these
    raw[at : at + 4] = (31).to_bytes(4, "little")
    path = tmp_path / "old.gguf"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"of the type q4_0_4_4, which llama\.cpp has withdrawn"):
        read_header(path)
