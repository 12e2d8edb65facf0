"""Rows that are read from a file are the tensor's own."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slm.data.errors import UserError
from slm.model.held.stored_matrix import stored_matrices
from slm.model.layers.held import ROWS

VALUES = torch.randn(ROWS + 70, 6, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_those_of_the_tensor(tmp_path, dtype):
    stored = VALUES.to(dtype)
    save_file({"norm": torch.ones(5), "w": stored, "taps": torch.ones(2, 1, 3)}, tmp_path / "m.safetensors")
    found = stored_matrices(tmp_path / "m.safetensors")
    assert list(found) == ["w"]
    assert found["w"].shape == tuple(VALUES.shape)
    expected = stored.float().numpy()
    for some in (slice(None), slice(3, ROWS + 40), slice(5, 5), np.array([7, 0, ROWS + 69, 7])):
        assert np.array_equal(found["w"].rows(some), expected[some])
    out = np.zeros((4, 6), np.float32)
    assert found["w"].rows(slice(1, 5), out) is out
    assert np.array_equal(out, expected[1:5])


def test_a_file_that_is_cut_meanwhile_is_named(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"w": VALUES}, path)
    matrix = stored_matrices(path)["w"]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"m\.safetensors has become shorter"):
        matrix.rows(slice(None))
