"""The training kernels compute what the model computes: losses, every gradient, masks, recomputation, hooks."""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch

from slm.kernels import head
from slm.kernels.fused import Fused, unsupported
from slm.kernels.head import HEAD_ROWS
from slm.kernels.native import VARIANTS, Kernels
from slm.model.config import ModelConfig
from slm.model.head_loss import HeadPass, head_gradients
from slm.model.transformer import LanguageModel
from tests.helpers.kernels import NAMES, kernels_for_test, runs_here

SHAPES = {
    # As wide as it takes for gate and up to be packed in two groups of panels.
    "llama": dict(n_heads=4, n_kv_heads=4, head_dim=64, d_model=256, ffn_dim=512),
    "grouped": dict(n_heads=4, n_kv_heads=2, head_dim=64, d_model=160),
    "qk-norm": dict(arch="qwen3", n_heads=4, n_kv_heads=1, head_dim=32, d_model=128, tie_embeddings=False),
    "wide heads": dict(arch="qwen3", n_heads=2, n_kv_heads=2, head_dim=128, d_model=128),
    "biases": dict(arch="qwen2", n_heads=4, n_kv_heads=2, head_dim=32, d_model=128),
    "gemma2": dict(  # scores and logits up to where a cap bends them
        arch="gemma2",
        n_heads=4,
        n_kv_heads=2,
        head_dim=32,
        d_model=96,
        sliding_window=40,
        query_scalar=48.0,
        attention_cap=1.5,
        logit_cap=2.0,
    ),
    "gemma3": dict(
        arch="gemma3",
        n_heads=4,
        n_kv_heads=1,
        head_dim=32,
        d_model=96,
        n_layers=3,
        sliding_window=40,
        local_layers=(True, False, True),
        query_scalar=48.0,
        rope_theta=1e6,
    ),
    "smollm3": dict(arch="smollm3", n_layers=4, n_heads=2, n_kv_heads=1, head_dim=32, d_model=64, ffn_dim=96),
    "granite": dict(
        arch="granite",
        n_heads=4,
        n_kv_heads=2,
        head_dim=32,
        d_model=128,
        embedding_multiplier=12.0,
        attention_multiplier=0.1,
        residual_multiplier=0.22,
        logits_scaling=3.0,
    ),
    "exaone4": dict(arch="exaone4", n_heads=4, n_kv_heads=2, head_dim=32, d_model=128),
    "olmo2": dict(arch="olmo2", n_heads=4, n_kv_heads=2, head_dim=32, d_model=128),
    "olmo3": dict(
        arch="olmo2", n_heads=4, n_kv_heads=2, head_dim=32, d_model=128, sliding_window=20, local_layers=(True, False)
    ),
    "phi3": dict(arch="phi3", n_heads=2, n_kv_heads=1, head_dim=64, d_model=128, rotary_dim=32, ffn_dim=544),
    "lfm2": dict(arch="lfm2", n_heads=4, n_kv_heads=2, head_dim=32, d_model=128, n_layers=2),
}

ALIKE = ("smollm3", "granite", "exaone4", "olmo2", "olmo3")
"""Shapes that call the same kernels as the others, in another order or with other factors."""


def grid(names: str, all_: Sequence[tuple], once: Sequence[tuple]) -> pytest.MarkDecorator:
    """Every combination with the kernels that run here; with a model of others', those that meet each kernel and each
    end of its blocks once. Python's part is the same for all of them."""
    assert set(once) <= set(all_)
    found = [(kernels, *each) for kernels in NAMES for each in (all_ if runs_here(kernels) else once)]
    return pytest.mark.parametrize(("kernels", *names.split()), found, indirect=["kernels"])


@pytest.fixture(params=NAMES)
def kernels(request) -> Kernels:
    """Each instruction set's kernels, or a model of them."""
    return kernels_for_test(request.param)


def new_model(**changes) -> LanguageModel:
    values = dict(arch="llama", n_layers=2, ffn_dim=224, vocab_size=320, seq_len=2048, tie_embeddings=True)
    torch.manual_seed(3)
    model = LanguageModel(ModelConfig(**(values | SHAPES["grouped"] | changes))).train()
    with torch.no_grad():
        for parameter in model.parameters():  # norms away from one, logits away from flat
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def batch(rows: int, length: int, *, ignored: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(rows * 1000 + length)
    ids = torch.randint(0, 320, (rows, length), generator=chance)
    targets = torch.randint(0, 320, (rows, length), generator=chance)
    if ignored:
        targets[:, ::3] = -100
    return ids, targets


def gradients(model: LanguageModel) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def plain(model: LanguageModel, ids, targets, starts=None, *, bf16: bool = False) -> tuple[float, dict]:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model.loss(ids, targets, starts)
    loss.backward()
    return loss.item(), gradients(model)


@pytest.fixture(scope="module", autouse=True)
def references() -> Iterator[None]:
    """What PyTorch computes is kept for the other instruction sets' tests of the same model and batch, and what kernels
    compute without thrift for their tests with it."""
    yield
    REFERENCES.clear()
    WITHOUT_THRIFT.clear()


REFERENCES: dict[bytes, tuple[float, dict]] = {}
WITHOUT_THRIFT: dict[tuple[str, str], tuple[float, dict]] = {}
"""By kernels and shape."""


def reference_of(model: LanguageModel, ids, targets, starts=None, *, bf16: bool = False) -> tuple[float, dict]:
    """``plain``, once for the same numbers."""
    tensors = [*model.parameters(), ids, targets, *([] if starts is None else [starts])]
    key = hashlib.sha256(f"{model.config} {bf16}".encode())
    for tensor in tensors:
        key.update(tensor.detach().numpy())
    if key.digest() not in REFERENCES:
        REFERENCES[key.digest()] = plain(model, ids, targets, starts, bf16=bf16)
    return REFERENCES[key.digest()]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def check(model: LanguageModel, fused: Fused, ids, targets, starts=None) -> None:
    """Every gradient is at most as far from f32 as that of autocast, give or take a third, and with products of 8-bit
    integers five times as far; f32 kernels give f32's, and those with products of 16-bit integers come within a
    thousandth: a seventh of bf16's distance or less."""
    exact, reference = reference_of(model, ids, targets, starts)
    bits = VARIANTS[fused.kernels.name].bits
    if fused.kernels.dtype == torch.float32 and bits > 8:
        coarser = 100 if bits == 16 else 1
        assert fused.loss_and_gradients(ids, targets, starts_BT=starts) == pytest.approx(exact, rel=1e-5 * coarser)
        size = torch.stack([gradient.norm() for gradient in reference.values()]).norm()
        for name, gradient in gradients(model).items():
            bound = 1e-5 * reference[name].norm() + 5e-7 * size
            assert (gradient - reference[name]).norm() < coarser * bound, name
        return
    rough, autocast = reference_of(model, ids, targets, starts, bf16=True)
    loss = fused.loss_and_gradients(ids, targets, starts_BT=starts)
    assert loss == pytest.approx(exact, abs=max(0.01 if bits == 8 else 0.005, 3 * abs(rough - exact)))
    size = torch.stack([gradient.norm() for gradient in reference.values()]).norm()
    for name, gradient in gradients(model).items():
        theirs = (autocast[name] - reference[name]).norm()
        assert (gradient - reference[name]).norm() < (5 if bits == 8 else 1.35) * theirs + 1e-5 * size, name


# Longer than the blocks of queries (96), losses (192) and keys (128); the widest model only up to their ends.
@grid(
    "shape length",
    [(s, n) for s in SHAPES for n in ((33,) if s in ALIKE else (1, 33, 96, 257)) if (s, n) != ("llama", 257)],
    [
        *(("grouped", n) for n in (1, 33, 96, 257)),  # every end of a block
        ("llama", 96),  # two groups of panels
        ("qk-norm", 33),  # norms of heads, untied embeddings, one head of keys for all
        ("wide heads", 257),  # the largest head over the ends of blocks
        ("biases", 33),  # their gradients
        ("gemma2", 257),  # soft-caps, where windows begin within a block
        ("gemma3", 257),  # windows that begin within a block, GELU, norms behind
        ("lfm2", 33),  # short convolutions
        ("phi3", 33),  # heads that are rotated in part, joined matrices
    ],
)
def test_loss_and_gradients_are_the_models(shape, length, kernels):
    model = new_model(**SHAPES[shape])
    rows = 12 if length == 1 else 3  # a gain's gradient over three positions is a sum of three roundings
    check(model, Fused(model, kernels), *batch(rows, length))


@grid(
    "shape keep_packed recompute",
    list(
        itertools.product(
            ("qk-norm", "gemma2", "gemma3", "lfm2", "olmo2", "phi3"), (True, False), ("none", "mlp", "layer")
        )
    ),
    [("qk-norm", False, "none"), ("gemma3", True, "mlp"), ("lfm2", False, "layer"), ("olmo2", False, "mlp")],
)
def test_recomputing_and_repacking_change_nothing(shape, recompute, keep_packed, kernels):
    model = new_model(**SHAPES[shape])
    ids, targets = batch(2, 65)
    if (kernels.name, shape) not in WITHOUT_THRIFT:
        first = Fused(model, kernels).loss_and_gradients(ids, targets)
        WITHOUT_THRIFT[kernels.name, shape] = first, gradients(model)
    first, expected = WITHOUT_THRIFT[kernels.name, shape]
    thrifty = Fused(model, kernels, recompute=recompute, keep_packed=keep_packed)
    assert thrifty.loss_and_gradients(ids, targets) == first
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, expected[name]), name


def test_packing_for_one_pass_changes_nothing(kernels):
    model = new_model(n_layers=1)
    ids, targets = batch(2, 33)
    kept, once = Fused(model, kernels), Fused(model, kernels, one_pass=True)
    for _ in range(2):
        losses = [fused.losses(ids, targets) for fused in (kept, once)]
        assert torch.equal(*losses)
        assert kept.loss_and_gradients(ids, targets) == once.loss_and_gradients(ids, targets)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)


def test_the_head_works_in_chunks_and_skips_what_is_not_scored(kernels):
    model = new_model(n_layers=1, n_heads=1, n_kv_heads=1, d_model=64, ffn_dim=96)
    check(model, Fused(model, kernels), *batch(2, HEAD_ROWS // 2 + 50, ignored=True))


@pytest.mark.parametrize(("frozen", "capped"), [(False, {}), (True, {}), (False, {"arch": "gemma2", "logit_cap": 1.5})])
def test_a_head_packed_in_slices_changes_nothing(frozen, capped, kernels, monkeypatch):
    monkeypatch.setattr(head, "HEAD_ROWS", 33)  # two chunks of positions
    monkeypatch.setattr(head, "LEAN_ROWS", 512)
    model = new_model(n_layers=1, n_heads=1, n_kv_heads=1, d_model=64, ffn_dim=96, vocab_size=2080, **capped)
    assert kernels.head.slm_head_block(2080) < 2080
    model.head.requires_grad_(not frozen)
    ids, targets = batch(2, 33)
    found = []
    for lean in (False, True):
        fused = Fused(model, kernels, keep_packed=False, lean=lean)
        losses, loss = fused.losses(ids, targets), fused.loss_and_gradients(ids, targets)
        found.append((losses, loss, {name: each.grad for name, each in model.named_parameters()}))
        model.zero_grad()
    (losses, loss, expected), (lean_losses, lean_loss, gradients) = found
    assert torch.equal(lean_losses, losses)
    assert lean_loss == loss
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(gradients[name], gradient) if gradient is not None else gradients[name] is None, name


@grid("shape", [("grouped",), ("gemma3",), ("lfm2",)], [("gemma3",), ("lfm2",)])  # Gemma's has layers without a window
def test_documents_do_not_see_each_other(shape, kernels):
    model = new_model(**SHAPES[shape])
    ids, targets = batch(2, 200)
    starts = torch.zeros(2, 200, dtype=torch.int32)
    starts[0, 50:], starts[0, 130:], starts[1, 199:] = 50, 130, 199
    fused = Fused(model, kernels)
    check(model, fused, ids, targets, starts)
    # What comes before a document's start has no influence on it.
    losses = fused.losses(ids, targets, starts_BT=starts)
    other = ids.clone()
    other[0, :50] = (other[0, :50] + 7) % 320
    assert torch.equal(fused.losses(other, targets, starts_BT=starts)[0, 50:], losses[0, 50:])
    assert not torch.equal(fused.losses(other, targets)[0, 50:], fused.losses(ids, targets)[0, 50:])


def test_gradients_add_up_and_scale(kernels):
    model = new_model()
    fused, (ids, targets) = Fused(model, kernels), batch(2, 40)
    fused.loss_and_gradients(ids, targets)
    once = gradients(model)
    fused.loss_and_gradients(ids, targets, scale=0.25)
    fused.loss_and_gradients(ids, targets, scale=0.5)
    for name, gradient in gradients(model).items():
        assert distance(gradient, 0.75 * once[name]) < 0.004, name


@pytest.mark.parametrize("changed", ["nothing", "one gradient", "one is frozen"])
def test_gradients_that_lie_together_and_apart(changed, kernels):
    """Layers with one input get their gradients in one product, unless somebody has put one elsewhere or froze it."""
    ids, targets = batch(2, 70)
    model = new_model()
    fused = Fused(model, kernels)
    fused.loss_and_gradients(ids, targets)
    attention = model.model.layers[0].self_attn
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    grads = [each.weight.grad for each in layers]
    assert len({each.untyped_storage().data_ptr() for each in grads}) == 1
    once = [each.clone() for each in grads]
    expected = [2 * each for each in once]
    if changed == "one gradient":
        attention.k_proj.weight.grad = once[1].clone()
    elif changed == "one is frozen":
        attention.k_proj.weight.requires_grad_(False)
        expected[1] = once[1]
    fused.loss_and_gradients(ids, targets)
    for layer, gradient in zip(layers, expected, strict=True):
        assert layer.weight.grad.shape == layer.weight.shape
        torch.testing.assert_close(layer.weight.grad, gradient, rtol=1e-4, atol=1e-6)


@grid("shape", [("grouped",), ("biases",), ("lfm2",)], [("biases",), ("lfm2",)])
def test_threads_do_not_change_a_bit(shape, kernels):
    model = new_model(**SHAPES[shape])
    ids, targets = batch(3, 100)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((Fused(model, kernels).loss_and_gradients(ids, targets), gradients(model)))
    finally:
        torch.set_num_threads(before)
    for loss, gradient in found[1:]:
        assert loss == found[0][0]
        assert all(torch.equal(gradient[name], found[0][1][name]) for name in gradient)


def test_losses_are_those_of_training_and_follow_the_weights(kernels):
    model = new_model(**SHAPES["qk-norm"])
    fused, (ids, targets) = Fused(model, kernels), batch(4, 40, ignored=True)
    losses = fused.losses(ids, targets)
    assert losses.shape == (4, 40)
    assert (losses[:, ::3] == 0).all()
    mean = losses.sum().item() / (targets >= 0).sum().item()
    assert mean == pytest.approx(fused.loss_and_gradients(ids, targets), rel=1e-5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for _ in range(5):
        optimizer.step()
        optimizer.zero_grad()
        fused.loss_and_gradients(ids, targets)
    assert fused.losses(ids, targets).sum() < 0.9 * losses.sum()


@pytest.mark.parametrize("shape", ["grouped", "gemma2"])
@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"])
def test_a_weight_that_is_no_number_makes_the_loss_no_number(name, shape, kernels):
    """The guards of a run look at the loss: no kernel may make a number of it."""
    model = new_model(**SHAPES[shape])
    with torch.no_grad():
        model.get_parameter(name)[3, 5] = float("nan")
    fused, (ids, targets) = Fused(model, kernels), batch(2, 40)
    assert fused.losses(ids, targets)[:, 1:].isnan().all()
    assert math.isnan(fused.loss_and_gradients(ids, targets))


@grid("shape", [("qk-norm",), ("biases",), ("gemma3",), ("lfm2",)], [("lfm2",)])
def test_hooks_hear_of_every_parameter_once(shape, kernels):
    model = new_model(**SHAPES[shape])
    heard = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: heard.append((name, p.grad is not None)))
    Fused(model, kernels).loss_and_gradients(*batch(2, 32))
    assert sorted(heard) == sorted((name, True) for name, _ in model.named_parameters())
    order = [name for name, _ in heard]
    down = "feed_forward.w2" if shape == "lfm2" else "mlp.down_proj"
    assert order.index(f"model.layers.1.{down}.weight") < order.index(f"model.layers.0.{down}.weight")


class EveryPart:
    """A loss that asks for all that a pass over the logits offers: weights, some ids with offsets, soft targets."""

    def __init__(self, rows: int) -> None:
        chance = torch.Generator().manual_seed(11)
        self.words = torch.randperm(320, generator=chance)[:64].sort().values
        self.offsets, self.weights = torch.randn(64, generator=chance), torch.rand(rows, generator=chance) + 0.5
        self.targets = torch.randint(0, 64, (rows,), generator=chance)
        self.targets[::7] = -100
        self.scored = self.targets >= 0
        self.soft = torch.randn(rows, 64, generator=chance).softmax(-1)

    def over_logits(self, losses) -> HeadPass:
        return HeadPass(self.weights, self._soften, self.words, self.offsets)

    def _soften(self, dlogits_RV, losses_R, rows) -> None:
        """The mean of the token and of the soft target takes the token's place."""
        weights_R = self.weights[rows] * self.scored[rows] / 2
        dlogits_RV += (weights_R[:, None] * (self._one_hot()[rows] - self.soft[rows])).to(dlogits_RV.dtype)

    def _one_hot(self) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.targets.clamp(min=0), 64)

    def plainly(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The same loss for autograd."""
        log_p_NV = (logits_NV[:, self.words] + self.offsets).log_softmax(-1)
        wanted_NV = (self._one_hot() + self.soft) / 2
        return -(self.weights * self.scored * (wanted_NV * log_p_NV).sum(-1)).sum()


def test_other_losses_go_through_a_soft_cap(kernels):
    """Soft targets and offsets belong to capped logits; the cap's slope comes last."""
    model = new_model(**SHAPES["gemma2"])
    (ids, _), head = batch(2, 33), EveryPart(66)
    head.plainly(model(ids).flatten(0, 1)).backward()
    wanted = gradients(model)
    x_ND = model.hidden_states(ids).flatten(0, 1)
    dx_ND, dhead_VD = head_gradients(x_ND, model.head, head.targets, head, model.config.logit_cap)
    torch.autograd.backward([x_ND, model.head], [dx_ND, dhead_VD])
    for name, gradient in gradients(model).items():
        assert distance(gradient, wanted[name]) < 1e-5, name
    Fused(model, kernels).head_gradients(ids, head.targets.view(2, 33), head)
    near = {32: 2e-5, 16: 2e-3, 8: 0.05}[VARIANTS[kernels.name].bits if kernels.dtype == torch.float32 else 8]
    for name, gradient in gradients(model).items():
        assert distance(gradient, wanted[name]) < near, name


def test_models_that_do_not_fit_are_named(kernels):
    narrow = new_model(n_heads=8, n_kv_heads=8, head_dim=8, d_model=64)
    assert "head_dim=8" in unsupported(narrow, kernels)
    assert unsupported(new_model(), kernels) is None
    assert "f32" in unsupported(new_model().to(torch.bfloat16), kernels)
    with pytest.raises(ValueError, match="head_dim=8"):
        Fused(narrow, kernels)
