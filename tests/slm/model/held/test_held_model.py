"""A model of matrices in their file computes what the loaded one does."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from slm.data.errors import UserError
from slm.model.checkpoint import WEIGHTS, load_model
from slm.model.fingerprint import fingerprint
from slm.model.held.held_model import load_as_stored
from slm.model.layers.held import Values, held_of
from tests.helpers import tiny_checkpoint as tiny

IDS_BT = torch.arange(40).view(2, 20)


@pytest.mark.parametrize("changes", [{}, {"arch": "qwen2", "tie_embeddings": True}, {"arch": "lfm2", "n_layers": 2}])
def test_matrices_stay_in_the_file_and_the_logits_are_the_same(tmp_path, changes):
    tiny.checkpoint(tmp_path, **changes)
    half = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    save_file(half, tmp_path / WEIGHTS)
    loaded, stored = load_model(tmp_path), load_as_stored(tmp_path)
    assert held_of(stored.head) is not None
    with torch.inference_mode():
        # The same values; torch may sum a product in another order where memory is aligned otherwise.
        torch.testing.assert_close(stored(IDS_BT), loaded(IDS_BT), rtol=1e-6, atol=1e-5)
    values = Values(stored)
    assert all(torch.equal(values[name], tensor) for name, tensor in loaded.state_dict().items())
    assert fingerprint(values) == fingerprint(loaded.state_dict())


def test_a_pickled_file_is_loaded(tmp_path):
    tiny.checkpoint(tmp_path)
    torch.save(load_file(tmp_path / WEIGHTS), tmp_path / "pytorch_model.bin")
    (tmp_path / WEIGHTS).unlink()
    assert held_of(load_as_stored(tmp_path).head) is None


def test_a_missing_tensor_is_named(tmp_path):
    tiny.checkpoint(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load_as_stored(tmp_path)
