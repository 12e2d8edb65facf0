"""Soft targets: gradients against plain autograd, sparse ones right on average, a student that follows its teacher."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from slm.data.errors import UserError
from slm.kernels.fused import Fused
from slm.model.head_loss import HeadPass, head_gradients
from slm.model.transformer import LanguageModel
from slm.train.backend import make_frozen_backend
from slm.train.config import DistillConfig
from slm.train.objective import soft_targets
from slm.train.objective.batch import split
from slm.train.objective.distillation import DistillObjective
from slm.train.objective.objective import CROSS_ENTROPY
from slm.train.objective.reference import frozen_copy
from slm.train.objective.sampled_softmax import draw
from slm.train.objective.soft_targets import HeadRows, SparseTargets, sample
from slm.train.objective.teacher import ModelTeacher
from slm.train.qat.fake_quant import FakeQuant
from slm.train.step import train_step
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.kernels import kernels_for_test
from tests.train.objective.test_preference import BLOCKS, PLAIN, backend_of, model_of

N_IDS = 120
"""Of 128 rows of the vocabulary: the last ones stand for nothing."""
CONFIGS = {
    "both": DistillConfig(alpha=0.7),
    "only the teacher": DistillConfig(alpha=1.0),
}


def blocks() -> np.ndarray:
    """The pairs' blocks with ids of the tokenizer only."""
    flags = BLOCKS & ~0x7F
    return (BLOCKS & 0x7F) % N_IDS | flags


def teacher_of(model) -> ModelTeacher:
    return ModelTeacher(model, make_frozen_backend(model, PLAIN), n_ids=N_IDS)


def plain_losses(config: DistillConfig, model, teacher, batch) -> tuple[torch.Tensor, float]:
    """The mean loss by the definition, and the mean KL."""
    scored = batch.targets != -100
    z, t = model(batch.ids, starts_BT=batch.starts)[scored], teacher(batch.ids, starts_BT=batch.starts)[scored]
    log_p, q = z.log_softmax(-1)[:, :N_IDS], t[:, :N_IDS].softmax(-1).detach()
    kl = (q * (q.log() - log_p)).sum(1).mean()
    return (1 - config.alpha) * F.cross_entropy(z, batch.targets[scored]) + config.alpha * kl, kl.item()


@pytest.mark.parametrize("kind", ["autograd", "avx2", "avx512bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_of_the_definition(name, kind):
    config, batch = CONFIGS[name], split(blocks())
    model, teacher = model_of(1, name == "both"), model_of(2)
    wanted, kl = plain_losses(config, model, teacher, batch)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(wanted, parameters), strict=True))
    objective = DistillObjective(config, teacher_of(teacher))
    count = int((batch.targets != -100).sum())
    part = objective.gradients(backend_of(kind, model), batch, 1 / count)
    low = kind == "avx512bf16"
    assert part.count == count
    assert part.loss / count == pytest.approx(wanted.item(), rel=2e-2 if low else 1e-5)
    assert part.sums["teacher_kl"] / count == pytest.approx(kl, rel=5e-2 if low else 1e-4)
    for key, parameter in model.named_parameters():
        error = (parameter.grad - gradients[key]).norm() / gradients[key].norm()
        assert error < (0.05 if low else 2e-4), f"{key}: {error}"


@pytest.mark.parametrize("kind", ["autograd", "avx2", "avx512bf16"])
@pytest.mark.parametrize("teaches", ["autograd", "avx2", "avx512bf16"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [0, 256], ids=["all words", "drawn words"])
def test_a_model_that_computes_along_gives_the_gradients_of_the_definition(name, kind, teaches, count, monkeypatch):
    """Without rows that stand for nothing a teacher's softmax is computed like the student's, among the same words."""
    monkeypatch.setattr(soft_targets, "SHOWN", 1)
    check_gradients(CONFIGS[name], kind, teaches, count)


@pytest.mark.parametrize(("kind", "teaches"), [("autograd", "avx2"), ("avx2", "autograd")])
@pytest.mark.parametrize("count", [0, 256], ids=["all words", "drawn words"])
def test_soft_caps_of_student_and_teacher(kind, teaches, count, monkeypatch):
    """The teacher predicts by capped logits, and the slope of the student's cap is the gradient's last factor."""
    monkeypatch.setattr(soft_targets, "SHOWN", 1)
    check_gradients(CONFIGS["both"], kind, teaches, count, arch="gemma2", tie=True, logit_cap=2.0, attention_cap=2.0)


def check_gradients(config: DistillConfig, kind: str, teaches: str, count: int, **shape) -> None:
    """``count``: drawn words; 0: all."""
    batch = split(blocks())
    model, teacher = model_of(1, vocab_size=1024, **shape), model_of(2, vocab_size=1024, **shape)
    scored = batch.targets != -100
    z, t = (each(batch.ids, starts_BT=batch.starts)[scored] for each in (model, teacher))
    targets, offsets, words = batch.targets[scored], torch.zeros(1024), draw(batch.targets, 1024, count)
    assert (words is None) == (count == 0)
    if words is not None:
        z, t, offsets, targets = z[:, words.ids], t[:, words.ids], words.offsets, words.places(targets)
    log_p, log_q = ((each + offsets).log_softmax(-1) for each in (z, t.detach()))
    kl = (log_q.exp() * (log_q - log_p)).sum(1).mean()
    wanted = (1 - config.alpha) * F.cross_entropy(z + offsets, targets) + config.alpha * kl
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(wanted, parameters), strict=True))
    live = ModelTeacher(teacher, backend_of(teaches, teacher), n_ids=1024)
    objective = DistillObjective(config, live, sampled=count, n_ids=1024)
    part = objective.gradients(backend_of(kind, model), batch, 1 / int(scored.sum()))
    low = "avx512bf16" in (kind, teaches)
    assert part.loss / part.count == pytest.approx(wanted.item(), rel=2e-2 if low else 1e-4)
    assert part.sums["teacher_kl"] / part.count == pytest.approx(kl.item(), rel=5e-2 if low else 1e-3)
    for key, parameter in model.named_parameters():
        error = (parameter.grad - gradients[key]).norm() / gradients[key].norm()
        assert error < (0.05 if low else 2e-4), f"{key}: {error}"


def test_what_is_drawn_of_a_distribution_is_the_distribution_on_average():
    """Every token's mean weight is its probability, within five deviations of the mean; plain top-k fails this."""
    torch.manual_seed(0)
    log_q = (2 * torch.randn(60)).log_softmax(0)
    n = 20_000
    drawn = sample(log_q.expand(n, -1), 4, 3, torch.Generator().manual_seed(5))
    ids, weights = drawn.targets()
    assert torch.allclose(weights.sum(1), torch.ones(n), atol=1e-5)
    assert drawn.entropy[0].item() == pytest.approx(-(log_q.exp() * log_q).sum().item(), rel=1e-5)
    dense = torch.zeros(n, 60, dtype=torch.float64).scatter_add_(1, ids, weights.double())
    error, spread = (dense.mean(0) - log_q.exp()).abs(), dense.std(0) / n**0.5
    assert (error <= 5 * spread + 1e-6).all()
    top = dense.clone()
    top[:, log_q.argsort()[:-4]] = 0
    biased = (top / top.sum(1, keepdim=True)).mean(0)
    assert ((biased - log_q.exp()).abs() > 5 * spread + 1e-6).sum() > 30
    certain = torch.full((1, 9), -1e5).index_fill_(1, torch.tensor([3]), 0.0)
    ids, weights = sample(certain, 2, 2, torch.Generator()).targets()
    assert weights.sum() == 1
    assert weights[0, ids[0] == 3].sum() == 1


@pytest.mark.parametrize("kind", ["torch", "avx2"])
def test_gradients_of_sparse_targets_are_right_on_average(kind):
    """The mean over many draws comes near the gradient of the whole distribution, by the root of their number."""
    model, teacher, batch = model_of(1), model_of(2), split(blocks())
    N, targets = batch.ids.numel(), batch.targets.flatten()
    with torch.no_grad():
        log_q = teacher(batch.ids, starts_BT=batch.starts).flatten(0, 1)[:, :N_IDS].log_softmax(-1)
        x = model.hidden_states(batch.ids, starts_BT=batch.starts).flatten(0, 1)
    dense = teacher_of(teacher).targets(batch)
    fused = Fused(model, kernels_for_test("avx2"))

    def gradient(soft) -> tuple[torch.Tensor, float]:
        kl = 0.0

        class Head:
            def over_logits(self, losses):
                def soften(dlogits, losses_R, rows):
                    nonlocal kl
                    kl += soft.correct(HeadRows(rows, dlogits, losses_R, targets[rows], 1.0), share=1.0)

                return HeadPass(1.0, soften=soften)

        if kind == "torch":
            return head_gradients(x, model.head_weight_VD, targets, Head())[0], kl
        model.zero_grad()
        fused.head_gradients(batch.ids, batch.targets, Head(), starts_BT=batch.starts)
        return model.model.norm.weight.grad.clone(), kl

    wanted, kl = gradient(dense)
    found = []
    for seed in range(64):
        drawn = sample(log_q, 8, 8, torch.Generator().manual_seed(seed))
        ids, weights = drawn.targets()
        scored = (targets != -100)[:, None]
        found.append(gradient(SparseTargets(ids, weights * scored, drawn.entropy)))
    assert len(log_q) == N
    distances = [
        ((torch.stack([each for each, _ in found[:n]]).mean(0) - wanted).norm() / wanted.norm()).item() for n in (1, 64)
    ]
    assert distances[1] < 0.25 * distances[0]  # an eighth, but for chance
    kls = np.array([each for _, each in found])
    assert abs(kls.mean() - kl) < 4 * kls.std() / 8


def test_a_student_comes_nearer_to_its_teacher_than_with_hard_targets_in_as_many_steps():
    teacher, batch = model_of(2), split(blocks())
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter *= 1.5

    def divergence(config: DistillConfig | None) -> float:
        model = model_of(1)
        objective = DistillObjective(config, teacher_of(teacher)) if config else CROSS_ENTROPY
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
        for _ in range(12):
            options = {"grad_accum": 1, "grad_clip": 1.0, "lr": 2e-3, "objective": objective}
            train_step(model, optimizer, iter([blocks()]), backend=backend_of("autograd", model), **options)
        with torch.no_grad():
            return plain_losses(DistillConfig(alpha=1.0), model, teacher, batch)[1]

    with torch.no_grad():
        before = plain_losses(DistillConfig(alpha=1.0), model_of(1), teacher, batch)[1]
    hard, soft = divergence(None), divergence(DistillConfig(alpha=1.0))
    assert soft < 0.7 * before
    assert soft < 0.5 * hard


def test_it_heals_what_rounding_costs():
    """A model on ternary weights learns from itself as it was: in 20 steps the divergence falls to a half."""
    model = LanguageModel(tiny.config(n_layers=1))
    tiny.randomize(model)
    ids = torch.arange(64).view(2, 32) * 5 % 400
    block = torch.cat([ids, ids[:, :1]], 1).numpy().astype(np.int32)
    teacher = ModelTeacher(copy := frozen_copy(model), make_frozen_backend(copy, PLAIN), n_ids=400)
    objective = DistillObjective(DistillConfig(alpha=1.0), teacher)
    fake_quant = FakeQuant(model, "tq2_0", 1.0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    optimizer.register_step_pre_hook(lambda *_: fake_quant.show_masters())
    fake_quant.begin()
    losses = []
    for step in range(20):
        options = {"grad_accum": 1, "grad_clip": 1.0, "lr": 1e-3, "objective": objective}
        result = train_step(model, optimizer, iter([block]), backend=backend_of("autograd", model), **options)
        fake_quant.after_update(step + 1)
        losses.append(result.loss)
    assert losses[0] > 0.01
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "above 0 and at most 1"),
        ({"cache": "there"}, "name the teacher"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        DistillConfig(**options)
