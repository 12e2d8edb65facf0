"""The kernels' low-rank terms: losses and gradients equal merged weights', by every instruction set's kernels."""

import pytest
import torch
from torch.func import functional_call

from slm.kernels.fused import Fused
from slm.kernels.low_rank import LowRank, set_low_rank
from slm.kernels.native import VARIANTS
from slm.model.transformer import LanguageModel
from tests.helpers.kernels import NAMES, kernels_for_test
from tests.slm.kernels.test_fused import SHAPES, batch, new_model

SCALE = 0.7


def adapters(model: LanguageModel, ranks: dict[str, int]) -> dict[str, LowRank]:
    """Freeze the model, and put an adapter of its rank beside each layer that ``ranks`` names."""
    model.requires_grad_(False)
    torch.manual_seed(5)
    made = {}
    for name, weight in model.named_parameters():
        if (rank := ranks.get(name.split(".")[-2])) and weight.ndim == 2:
            rows, width = weight.shape
            a, b = torch.randn(rank, width) / width**0.5, 0.3 * torch.randn(rows, rank)
            made[name] = LowRank(torch.nn.Parameter(a), torch.nn.Parameter(b), SCALE)
            set_low_rank(weight, made[name])
    return made


def merged_way(model: LanguageModel, made: dict[str, LowRank], ids, targets) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients by autograd through W + scale * B A."""
    weights = {name: model.get_parameter(name) + each.scale * each.b @ each.a for name, each in made.items()}
    logits = functional_call(model, weights, (ids,))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), take(made)


def take(made: dict[str, LowRank]) -> list[torch.Tensor]:
    found = [parameter.grad for each in made.values() for parameter in (each.a, each.b)]
    for each in made.values():
        each.a.grad = each.b.grad = None
    return found


def merged_by_kernels(shape: str, made: dict[str, LowRank], kernels, ids, targets) -> list[torch.Tensor]:
    """The same gradients by the same kernels, through dW of W + scale * B A."""
    model = new_model(**SHAPES[shape])
    with torch.no_grad():
        for name, each in made.items():
            model.get_parameter(name).add_(each.scale * each.b @ each.a)
    Fused(model, kernels).loss_and_gradients(ids, targets)
    found = []
    for name, each in made.items():
        gradient = model.get_parameter(name).grad
        found += [each.scale * each.b.detach().T @ gradient, each.scale * gradient @ each.a.detach().T]
    return found


def norm(gradients: list[torch.Tensor]) -> float:
    return torch.cat([each.flatten() for each in gradients]).norm().item()


def differences(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a - b for a, b in zip(found, wanted, strict=True)]


ALL = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 4)
LFM2 = dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"), 4)
PHI3 = dict.fromkeys(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), 4)
SOME = {"k_proj": 3, "up_proj": 5, "down_proj": 33}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "ranks"),
    [
        *(("grouped", ALL), ("grouped", SOME), ("biases", ALL), ("gemma2", ALL), ("gemma3", ALL)),
        *(("lfm2", LFM2), ("phi3", PHI3)),
    ],
)
def test_loss_and_gradients_are_those_of_merged_weights(shape, ranks, name):
    """Kernels that round to 16 or 8 bits are as far from f32 as they are with merged weights: all gradients together at
    most 1.35 times (one rounding more, of x A^T), and each at most twice."""
    kernels = kernels_for_test(name)
    model = new_model(**SHAPES[shape])
    made = adapters(model, ranks)
    ids, targets = batch(2, 33)
    loss, wanted = merged_way(model, made, ids, targets)
    bits = VARIANTS[name].bits if kernels.dtype == torch.float32 else 8
    near = {32: 2e-5, 16: 2e-3, 8: 0.01}[bits]
    size = norm(wanted)
    if bits == 8:
        merged = differences(merged_by_kernels(shape, made, kernels, ids, targets), wanted)
    for recompute in ("none", "mlp", "layer"):
        fused = Fused(model, kernels, recompute=recompute, keep_packed=recompute == "none")
        assert fused.loss_and_gradients(ids, targets) == pytest.approx(loss, rel=near)
        apart = differences(take(made), wanted)
        if bits == 8:
            assert norm(apart) < 1.35 * norm(merged)
            for found, theirs in zip(apart, merged, strict=True):
                assert found.norm() < 2 * theirs.norm() + 1e-5 * size
        else:
            for found, expected in zip(apart, wanted, strict=True):
                assert found.norm() < near * expected.norm() + 0.03 * near * size
        assert all(parameter.grad is None for parameter in model.parameters())
    assert fused.losses(ids, targets).mean().item() == pytest.approx(loss, rel=near)


def test_passes_add_up_and_an_update_is_seen():
    """By kernels that keep what they packed: the frozen weights' as it is, the adapters' after an update no more."""
    model = new_model(**SHAPES["grouped"])
    made = adapters(model, ALL)
    fused = Fused(model, kernels_for_test("avx2"))
    ids, targets = batch(2, 33)
    fused.loss_and_gradients(ids, targets)
    once = take(made)
    for _ in range(2):
        fused.loss_and_gradients(ids, targets)
    for found, each in zip(take(made), once, strict=True):
        torch.testing.assert_close(found, 2 * each)
    with torch.no_grad():
        for each in made.values():
            each.b.data.mul_(2)  # as the update's kernel changes it: nothing counts it
    fused.forget_weights()
    loss, wanted = merged_way(model, made, ids, targets)
    assert fused.loss_and_gradients(ids, targets) == pytest.approx(loss, rel=1e-5)
    for found, each in zip(take(made), wanted, strict=True):
        assert (found - each).norm() < 1e-4 * each.norm() + 1e-6


def test_a_pass_calls_the_adapters_hooks_once():
    model = new_model(**SHAPES["grouped"])
    made = adapters(model, SOME)
    called = []
    for each in made.values():
        for parameter in (each.a, each.b):
            parameter.register_post_accumulate_grad_hook(called.append)
    Fused(model, kernels_for_test("avx2")).loss_and_gradients(*batch(1, 33))
    assert len(called) == len({id(parameter) for parameter in called}) == 2 * len(made)
