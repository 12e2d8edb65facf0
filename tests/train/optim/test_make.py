"""Which parameters get which update and learning rate."""

from dataclasses import replace

import pytest
import torch

from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from train.config import OptimConfig
from train.distributed.zero1 import Shard
from train.optim.make import make_optimizer
from train.optim.muon import Muon

SHAPE = ModelConfig(
    arch="qwen3", vocab_size=64, n_layers=2, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32
)
MUON = OptimConfig(name="muon", lr=0.02, embed_lr=0.3, head_lr=0.004, tied_lr=0.01, gain_lr=0.01, weight_decay=0.1)


def rates(tie: bool, config: OptimConfig = MUON) -> dict[str, tuple[str, float]]:
    """Kind and learning rate at the peak of every parameter."""
    model = LanguageModel(replace(SHAPE, tie_embeddings=tie))
    optimizer = make_optimizer(model, config)
    names = {p: name for name, p in model.named_parameters()}
    found = {
        names[p]: (group["kind"], group["lr_ratio"] * config.lr)
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert len(found) == len(names)
    return found


def test_muon_takes_the_layers_matrices_and_adamw_the_rest_at_rates_of_their_own():
    found = rates(tie=False)
    assert found["model.layers.1.mlp.down_proj.weight"] == ("muon", 0.02)
    assert found["model.layers.0.self_attn.q_proj.weight"] == ("muon", 0.02)
    wider = (32 / 256) ** -0.5
    assert found["model.embed_tokens.weight"] == ("adamw", pytest.approx(0.3 * wider))
    assert found["lm_head.weight"] == ("adamw", pytest.approx(0.004 * wider))
    for gain in ("model.norm.weight", "model.layers.0.self_attn.q_norm.weight"):
        assert found[gain] == ("adamw", pytest.approx(0.01))


def test_an_embedding_that_is_the_head_has_a_rate_of_its_own():
    found = rates(tie=True)
    assert "lm_head.weight" not in found
    assert found["model.embed_tokens.weight"] == ("adamw", pytest.approx(0.01 * (32 / 256) ** -0.5))


def test_a_shard_without_the_head_is_still_untied():
    """ZeRO-1 gives each rank some of the parameters."""
    model = LanguageModel(replace(SHAPE, tie_embeddings=False))
    shard = Shard(model, {"model.embed_tokens.weight"})
    embedding = make_optimizer(shard, MUON, tied=False).param_groups[1]
    assert embedding["lr_ratio"] * MUON.lr == pytest.approx(0.3 * (32 / 256) ** -0.5)


def test_decay_is_the_matrices_only_and_the_number_format_is_the_runs():
    model = LanguageModel(SHAPE)
    optimizer = make_optimizer(model, MUON, "bf16")
    assert isinstance(optimizer, Muon)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.0]
    assert optimizer._dtype == torch.bfloat16
    assert make_optimizer(model, MUON)._dtype == torch.float32


def test_adamw_is_torchs_own():
    model = LanguageModel(SHAPE)
    optimizer = make_optimizer(model, OptimConfig(lr=1e-3))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
