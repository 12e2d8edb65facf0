"""AdamW by the kernels is torch's, to the bit, and factors of the gradient cost no additional pass."""

import math

import pytest
import torch

from slm.kernels.native import VARIANTS
from slm.train.config import OptimConfig
from slm.train.optim.fused import gradient_norm, update
from slm.train.optim.make import make_optimizer
from slm.train.optim.plain import AdamW
from tests.helpers.kernels import NAMES, kernels_for_test

SIZES = (64, 16 * 1024 + 32, 3 * 512)
"""Of parameters: whole vectors of every width."""
ONE_OF_EACH = [name for name in NAMES if VARIANTS[name].bits == 32]


class Parameters(torch.nn.Module):
    """A matrix, an embedding and a gain."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.q_proj = torch.nn.Parameter(torch.randn(SIZES[1] // 32, 32))
        self.embed_tokens = torch.nn.Parameter(torch.randn(SIZES[2] // 16, 16))
        self.norm = torch.nn.Parameter(torch.ones(SIZES[0]))


def set_gradients(model: Parameters, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 10.0 ** torch.randint(-6, 3, p.shape)
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.4, 0.999)])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_weights_and_moments_are_torchs_to_the_bit(name, betas):
    ours, theirs = Parameters(), Parameters()
    config = OptimConfig(lr=3e-3, betas=betas, weight_decay=0.1)
    with_kernels = make_optimizer(ours, config, kernels=kernels_for_test(name))
    without = make_optimizer(theirs, config)
    for step in range(4):
        factors = (1.0, 1.0) if step == 0 else (4 / 3, 0.37 / step)
        for model, optimizer in ((ours, with_kernels), (theirs, without)):
            update(optimizer, set_gradients(model, step), factors)
    for name, p in ours.named_parameters():
        other = theirs.get_parameter(name)
        assert torch.equal(p, other), name
        mine, reference = with_kernels.state[p], without.state[other]
        assert mine.keys() == reference.keys()
        assert all(torch.equal(mine[key], reference[key]) for key in mine), name


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_values_that_fill_no_vector_are_updated_too(name):
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 8 * 1024 + 5)) for _ in range(2))
    optimizers = [
        AdamW([{"params": [p]}], lr=0.1, kernels=kernels)
        for p, kernels in ((ours, kernels_for_test(name)), (theirs, None))
    ]
    for p, optimizer in zip((ours, theirs), optimizers, strict=True):
        p.grad = torch.linspace(3, -2, p.numel())
        optimizer.step()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_norm_is_the_gradients_and_no_matter_of_threads(name):
    model, norms = Parameters(), set()
    optimizer = make_optimizer(model, OptimConfig(lr=1e-3), kernels=kernels_for_test(name))
    model.extra = torch.nn.Parameter(torch.zeros(8197))
    gradients = set_gradients(model, 3)
    threads = torch.get_num_threads()
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        norms.add(gradient_norm(optimizer, gradients).item())
    torch.set_num_threads(threads)
    exact = math.sqrt(sum(each.double().square().sum().item() for each in gradients))
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(exact, rel=1e-6)
    gradients[1][3, 2] = float("nan")
    assert not math.isfinite(gradient_norm(optimizer, gradients).item())


def test_an_optimizer_without_factors_gets_scaled_gradients():
    model = Parameters()
    before = model.norm.detach().clone()
    gradients = set_gradients(model, 1)
    expected = before - gradients[2] * 0.5 * 3.0
    update(torch.optim.SGD(model.parameters(), lr=1.0), gradients, (0.5, 3.0))
    assert torch.equal(model.norm, expected)
