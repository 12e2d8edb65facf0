"""An optimizer's state goes into a checkpoint by parameter name, and back."""

import pytest
import torch

from slm.data.errors import UserError
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.config import OptimConfig
from slm.train.optim.make import make_optimizer
from slm.train.optim.state import load_state_tensors, state_tensors

SHAPE = ModelConfig(vocab_size=64, n_layers=2, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32)
CONFIGS = {
    "adamw": OptimConfig(lr=1e-2),
    "muon": OptimConfig(name="muon", lr=1e-2),
}


def new_model() -> LanguageModel:
    torch.manual_seed(4)
    return LanguageModel(SHAPE).train()


def update(model: LanguageModel, optimizer: torch.optim.Optimizer, seed: int) -> None:
    ids = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(seed))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * group.get("lr_ratio", 1.0)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", CONFIGS)
def test_it_survives_by_name(name):
    model, other = new_model(), new_model()
    optimizer, fresh = make_optimizer(model, CONFIGS[name]), make_optimizer(other, CONFIGS[name])
    update(model, optimizer, 0)
    update(model, optimizer, 1)
    other.load_state_dict(model.state_dict())
    load_state_tensors(other, fresh, state_tensors(model, optimizer))
    update(model, optimizer, 2)
    update(other, fresh, 2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    saved, again = state_tensors(model, optimizer), state_tensors(other, fresh)
    assert saved.keys() == again.keys()
    assert all(torch.equal(saved[key], again[key]) for key in saved)


@pytest.mark.parametrize(("saved", "used"), [(a, b) for a in CONFIGS for b in CONFIGS if a != b])
def test_the_state_of_another_optimizer_is_refused_in_one_line(saved, used):
    model = new_model()
    optimizer = make_optimizer(model, CONFIGS[saved])
    update(model, optimizer, 0)
    with pytest.raises(UserError, match=r"holds .* of the state of .*resume=never") as refused:
        load_state_tensors(model, make_optimizer(model, CONFIGS[used]), state_tensors(model, optimizer))
    assert "\n" not in str(refused.value)


def test_a_part_of_a_state_is_refused():
    model = new_model()
    optimizer = make_optimizer(model, CONFIGS["adamw"])
    update(model, optimizer, 0)
    part = {key: value for key, value in state_tensors(model, optimizer).items() if not key.endswith("exp_avg_sq")}
    with pytest.raises(
        UserError, match=r"holds step, exp_avg of the state of .* AdamW needs step, exp_avg, exp_avg_sq"
    ):
        load_state_tensors(model, make_optimizer(model, CONFIGS["adamw"]), part)
