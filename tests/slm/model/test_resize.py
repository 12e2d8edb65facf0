"""A model with more rows computes what it did, and each new row begins as the mean of the old ones."""

import pytest
import torch

from slm.model import checkpoint, resize
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_and_the_old_logits_stay(tied, tmp_path):
    shape = ModelConfig(
        vocab_size=128, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32,
        tie_embeddings=tied, bos_id=0, eos_id=0,
    )  # fmt: skip
    torch.manual_seed(1)
    model = LanguageModel(shape)
    checkpoint.save_model(tmp_path, model)
    larger = resize.with_vocabulary(shape, 130, bos_id=0, eos_id=129)
    assert (larger.vocab_size, larger.eos_id) == (192, 129)
    grown = resize.load_model(tmp_path, larger)
    ids = torch.arange(20)[None]
    torch.testing.assert_close(grown(ids)[..., :128], model(ids))
    table = grown.model.embed_tokens.weight
    torch.testing.assert_close(table[128:], model.model.embed_tokens.weight.mean(0).expand(64, -1))
    if not tied:
        torch.testing.assert_close(grown.lm_head.weight[129], model.lm_head.weight.mean(0))


def test_rows_that_are_there_already_are_used():
    shape = ModelConfig(
        vocab_size=128, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32
    )
    assert resize.with_vocabulary(shape, 120, bos_id=0, eos_id=1).vocab_size == 128
