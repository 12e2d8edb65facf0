"""Which parameters get which update and learning rate."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.config import OptimConfig
from slm.train.distributed.zero1 import Shard
from slm.train.optim.make import make_optimizer
from slm.train.optim.muon import Muon

SHAPE = ModelConfig(
    arch="qwen3", vocab_size=64, n_layers=2, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32
)
MUON = OptimConfig(name="muon", lr=0.02, embed_lr=0.3, other_lr_scale=0.5, weight_decay=0.1)


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
    assert found["model.embed_tokens.weight"] == ("adamw", pytest.approx(0.15 * wider))
    assert found["lm_head.weight"] == ("adamw", pytest.approx(0.0035 * wider))
    for gain in ("model.norm.weight", "model.layers.0.self_attn.q_norm.weight"):
        assert found[gain] == ("adamw", pytest.approx(0.01))


def test_the_taps_of_short_convolutions_are_gains():
    model = LanguageModel(replace(SHAPE, arch="lfm2"))
    for config in (MUON, replace(MUON, name="adamw")):
        optimizer = make_optimizer(model, config)
        (group,) = (
            group
            for group in optimizer.param_groups
            if any(each is model.model.layers[0].conv.conv.weight for each in group["params"])
        )
        assert group["weight_decay"] == 0
        assert group.get("kind") != "muon"


def test_an_embedding_that_is_the_head_has_a_rate_of_its_own():
    found = rates(tie=True)
    assert "lm_head.weight" not in found
    assert found["model.embed_tokens.weight"] == ("adamw", pytest.approx(0.005 * (32 / 256) ** -0.5))


def test_a_shard_without_the_head_is_still_untied():
    """ZeRO-1 gives each rank some of the parameters."""
    model = LanguageModel(replace(SHAPE, tie_embeddings=False))
    shard = Shard(model, {"model.embed_tokens.weight"})
    embedding = make_optimizer(shard, MUON, tied=False).param_groups[1]
    assert embedding["lr_ratio"] * MUON.lr == pytest.approx(0.15 * (32 / 256) ** -0.5)


def test_decay_is_the_matrices_only_and_the_number_format_is_the_runs():
    model = LanguageModel(SHAPE)
    optimizer = make_optimizer(model, MUON, "bf16")
    assert isinstance(optimizer, Muon)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.0]
    assert optimizer._dtype == torch.bfloat16
    assert make_optimizer(model, MUON)._dtype == torch.float32


@pytest.mark.parametrize("tie", [True, False])
def test_embedding_and_head_lose_the_same_share_in_a_step(tie):
    model = LanguageModel(replace(SHAPE, tie_embeddings=tie))
    optimizer = make_optimizer(model, replace(MUON, table_decay=0.3))
    names = {p: name for name, p in model.named_parameters()}
    lost = {
        names[p]: group["weight_decay"] * group["lr_ratio"] * MUON.lr
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert lost["model.embed_tokens.weight"] == pytest.approx(0.3)
    assert lost.get("lm_head.weight", 0.3) == pytest.approx(0.3)
    found = {names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {
        name: value for name, value in found.items() if name not in ("model.embed_tokens.weight", "lm_head.weight")
    }
    assert {value for name, value in found.items() if "norm" in name} == {0.0}
    assert {value for name, value in found.items() if "norm" not in name} == {0.1}


def test_a_row_without_gradients_decays_by_rate_and_decay():
    """By 1 - rate x decay at each update; without decay they stay."""
    model = LanguageModel(replace(SHAPE, tie_embeddings=False))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, replace(MUON, table_decay=0.5))
    optimizer.param_groups[1]["weight_decay"], decay = 0.0, optimizer.param_groups[2]["weight_decay"]
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    torch.testing.assert_close(model.lm_head.weight.detach(), before["lm_head.weight"] * (1 - 0.1 * decay) ** 3)
    assert torch.equal(model.model.embed_tokens.weight, before["model.embed_tokens.weight"])


def test_adamw_is_torchs_own():
    model = LanguageModel(SHAPE)
    optimizer = make_optimizer(model, OptimConfig(lr=1e-3))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_adamw_is_torchs():
    torch.manual_seed(2)
    ours, theirs = (LanguageModel(SHAPE) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    config = OptimConfig(name="adamw", lr=1e-2, weight_decay=0.1)
    mine = make_optimizer(ours, config)
    groups = [{**group, "params": []} for group in mine.state_dict()["param_groups"]]
    for name, parameter in theirs.named_parameters():
        groups[0 if parameter.ndim >= 2 and "embed_tokens" not in name else 1]["params"].append(parameter)
    reference = torch.optim.AdamW(groups, fused=True)
    ids = torch.randint(64, (2, 9))
    for _ in range(3):
        for model, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            model.loss(ids[:, :-1], ids[:, 1:]).backward()
            optimizer.step()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(ours.get_parameter(name), parameter), name


def test_optimizers_import_no_compiler():
    code = (
        "import sys, torch\n"
        "from slm.train.config import OptimConfig\n"
        "from slm.train.optim.make import make_optimizer\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embed_tokens = torch.nn.Linear(8, 8, bias=False)\n"
        "        self.q_proj = torch.nn.Linear(8, 8, bias=False)\n"
        "for name in ('adamw', 'muon'):\n"
        "    model = Model()\n"
        "    optimizer = make_optimizer(model, OptimConfig(name=name, lr=1e-3))\n"
        "    model.q_proj(model.embed_tokens(torch.ones(2, 8))).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    optimizer.load_state_dict(optimizer.state_dict())\n"
        "print('torch._dynamo' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
