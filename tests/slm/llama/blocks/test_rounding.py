import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama.blocks.codec import row_bytes
from slm.llama.blocks.rounding import dequantize_rows, fits, quantize_rows, rounded
from slm.llama.gguf_check import read_header
from slm.llama.quantize import quantize
from slm.llama.self_check import write_model

KINDS = ["q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "iq4_nl", "iq4_xs", "q3_k", "q2_k", "f16"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random f32 file, and its matrices as float32."""
    path = write_model(tmp_path_factory.mktemp("rounding") / "f32.gguf")
    return path, matrices(path)


def matrices(path) -> dict[str, np.ndarray]:
    """name -> uint8 [rows, bytes of a row] of the file's matrices."""
    header = read_header(path)
    raw = np.memmap(path, np.uint8, mode="r")
    found = {}
    for tensor in header.tensors:
        if len(tensor.shape) > 1:
            start = header.data_offset + tensor.offset
            found[tensor.name] = np.array(raw[start : start + tensor.n_bytes]).reshape(tensor.shape[1], -1)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_of_the_quantized_file_to_the_bit(model, tmp_path, kind):
    path, weights = model
    name = "blk.0.ffn_gate.weight"
    width = 256
    importance = {name: np.linspace(0.1, 3, width, dtype=np.float32)}
    quantize(path, tmp_path / "out.gguf", "q8_0", imatrix=importance, tensor_types={"ffn_gate": kind}, n_threads=1)
    stored = {tensor.name: tensor.type for tensor in read_header(tmp_path / "out.gguf").tensors}
    assert stored[name] == kind
    rows_OD = weights[name].view(np.float32)
    packed = quantize_rows(rows_OD, kind, importance[name], n_threads=2)
    assert packed.shape == (len(rows_OD), row_bytes(kind, width))
    np.testing.assert_array_equal(packed, matrices(tmp_path / "out.gguf")[name])
    # Any rows alone give the same, and rounding what is rounded changes next to nothing.
    np.testing.assert_array_equal(quantize_rows(rows_OD[100:103], kind, importance[name]), packed[100:103])
    values = dequantize_rows(packed, kind, width)
    error = float(np.square(values - rows_OD).mean() / np.square(rows_OD).mean())
    assert 0 < error < 0.1
    np.testing.assert_array_equal(rounded(rows_OD, kind, importance[name]), values)


def test_what_does_not_fit_is_refused():
    rows_OD = np.ones((2, 96), np.float32)
    assert fits("q4_0", 96)
    assert not fits("q4_k", 96)
    for kind, message in (("q4_k", "not multiples of 256"), ("iq3_xxs", "not multiples"), ("i32", "no.*type that")):
        with pytest.raises(UserError, match=message):
            quantize_rows(rows_OD, kind)
    with pytest.raises(UserError, match="needs the importance"):
        quantize_rows(np.ones((2, 256), np.float32), "iq3_xxs")
