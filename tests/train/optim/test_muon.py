"""Muon's update, written down a second time in the plainest way, and what its options do."""

import pytest
import torch
from torch import nn

from slm.train.optim.muon import Muon, orthogonalize

GROUP = {
    "kind": "muon",
    "momentum": (0.85, 0.95),
    "momentum_steps": 2,
    "ns_steps": 5,
    "second_moment": False,
    "weight_decay": 0.0,
}


def parameters(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in shapes]


def gradients(ps: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in ps:
        p.grad = torch.randn(*p.shape, generator=generator)


def test_three_updates_are_the_textbooks():
    ps = parameters((16, 16), (32, 16), (16, 16))
    expected, momenta = [p.detach().clone() for p in ps], [torch.zeros_like(p) for p in ps]
    optimizer = Muon([{**GROUP, "params": ps}])
    for seed, momentum in ((1, 0.9), (2, 0.95), (3, 0.95)):
        gradients(ps, seed)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()
        for p, old, buffer in zip(ps, expected, momenta, strict=True):
            buffer.mul_(momentum).add_((1 - momentum) * p.grad)
            nesterov = momentum * buffer + (1 - momentum) * p.grad
            scale = max(1, p.shape[0] / p.shape[1]) ** 0.5
            old -= 0.1 * scale * orthogonalize(nesterov[None], 5)[0]
    for p, old in zip(ps, expected, strict=True):
        torch.testing.assert_close(p.detach(), old, atol=1e-5, rtol=1e-5)


def test_weight_decay_is_cautious():
    """It shrinks a weight only where the update makes it smaller, too."""
    plain, decayed = parameters((16, 32)), parameters((16, 32))
    before = plain[0].detach().clone()
    for ps, decay in ((plain, 0.0), (decayed, 0.5)):
        gradients(ps, 5)
        optimizer = Muon([{**GROUP, "params": ps, "weight_decay": decay}])
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
    update = before - plain[0].detach()
    agrees = (update * before) >= 0
    assert 0.2 < agrees.float().mean() < 0.8
    torch.testing.assert_close(decayed[0].detach(), plain[0].detach() - 0.1 * 0.5 * before * agrees)


@pytest.mark.parametrize("shape", [(32, 16), (16, 32)])
def test_the_second_moment_evens_out_rows_and_keeps_the_norm(shape):
    plain, evened = parameters(shape), parameters(shape)
    before = plain[0].detach().clone()
    updates = []
    for ps, second_moment in ((plain, False), (evened, True)):
        # One direction of the rows (of the columns, where there are more of them) has a much larger gradient.
        gradients(ps, 5)
        scale = torch.ones(max(shape))
        scale[0] = 20
        ps[0].grad *= scale[:, None] if shape[0] > shape[1] else scale
        optimizer = Muon([{**GROUP, "params": ps, "second_moment": second_moment}])
        optimizer.param_groups[0]["lr"] = 1.0
        optimizer.step()
        updates.append(before - ps[0].detach())
    dim = 1 if shape[0] > shape[1] else 0
    spread = [update.norm(dim=dim).std() / update.norm(dim=dim).mean() for update in updates]
    assert spread[1] < 0.01 < 0.1 < spread[0]
    assert updates[1].norm() == pytest.approx(updates[0].norm().item(), rel=1e-3)


def test_the_other_kind_is_adamw():
    ours, theirs = parameters((16, 8)), parameters((16, 8))
    group = {"kind": "adamw", "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    mine = Muon([{**group, "params": ours}])
    torchs = torch.optim.AdamW(theirs, lr=0.01, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.1, fused=True)
    for seed in range(3):
        gradients(ours, seed)
        gradients(theirs, seed)
        mine.param_groups[0]["lr"] = 0.01
        mine.step()
        torchs.step()
    assert torch.equal(ours[0], theirs[0])


def test_a_parameter_without_a_gradient_is_left_alone():
    ps = parameters((16, 16), (16, 16))
    before = ps[1].detach().clone()
    optimizer = Muon([{**GROUP, "params": ps}])
    gradients(ps[:1], 1)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    assert torch.equal(ps[1], before)
    assert not optimizer.state[ps[1]]
