"""DPO and ORPO on packed pairs: losses and gradients against the papers' formulas, on each answer alone."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from slm.data.errors import UserError
from slm.data.stream import marks
from slm.data.stream.loader import HeldOut
from slm.kernels.fused import Fused
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.backend import AutogradBackend, KernelBackend, make_frozen_backend
from slm.train.config import ADAPTER_SCALE, LoraConfig, PreferenceConfig
from slm.train.environment import Environment
from slm.train.lora.adapter import AdapterParameters
from slm.train.objective.batch import split
from slm.train.objective.preference import Answers, PreferenceObjective
from slm.train.objective.reference import KeptReference, digest_of, frozen_copy
from slm.train.step import train_step
from slm.train.validation import Validator
from tests.helpers.kernels import kernels_for_test

SHAPE = ModelConfig(
    vocab_size=128, n_layers=2, d_model=64, n_heads=2, n_kv_heads=1, head_dim=32, ffn_dim=96, seq_len=64
)
PLAIN = Environment(threads=1, precision="f32", compile=False, notes=())
LENGTH = 49
PAIRS = ([(5, 9, 3), (4, 2, 6)], [(7, 12, 9)], [(3, 1, 1), (2, 5, 5), (4, 4, 7)])
"""Per block: tokens of prompt, chosen and rejected answer."""
CONFIGS = {
    "dpo": PreferenceConfig(loss="dpo", beta=0.3),
    "dpo with sft": PreferenceConfig(loss="dpo", beta=0.5, sft=0.7),
    "orpo": PreferenceConfig(loss="orpo", beta=0.4),
}


def model_of(seed: int, tie: bool = False, **changes) -> LanguageModel:
    torch.manual_seed(seed)
    model = LanguageModel(ModelConfig(**{**vars(SHAPE), "tie_embeddings": tie, **changes})).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def make_blocks() -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray, int]]]:
    """Packed pairs [B, T + 1], and each pair as (chosen ids, rejected ids, tokens of the prompt)."""
    chance = np.random.default_rng(3)
    blocks, pairs = [], []
    for lengths in PAIRS:
        parts = []
        for prompt, *answers in lengths:
            ids = chance.integers(1, 128, prompt)
            both = [np.concatenate([ids, chance.integers(1, 128, n)]) for n in answers]
            parts += [marks.mark(each, np.arange(len(each)) >= prompt) for each in both]
            pairs.append((*both, prompt))
        left = LENGTH - sum(map(len, parts))
        blocks.append(np.concatenate([*parts, marks.mark(np.zeros(left), np.zeros(left))]))
    return np.stack(blocks).astype(np.int32), pairs


BLOCKS, EACH = make_blocks()


def log_p(model, ids: np.ndarray, prompt: int) -> torch.Tensor:
    """log p of every token of an answer, alone in its sequence."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    logits_TV = model(tokens[None, :-1])[0]
    return logits_TV.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]][prompt - 1 :]


def plain_loss(config: PreferenceConfig, model, reference) -> torch.Tensor:
    """The mean over pairs, from the papers."""
    losses = []
    for chosen, rejected, prompt in EACH:
        yes, no = log_p(model, chosen, prompt), log_p(model, rejected, prompt)
        if config.loss == "dpo":
            with torch.no_grad():
                yes_0, no_0 = log_p(reference, chosen, prompt), log_p(reference, rejected, prompt)
            z = config.beta * ((yes.sum() - yes_0.sum()) - (no.sum() - no_0.sum()))
            loss = F.softplus(-z) + config.sft * -yes.mean()
        else:
            p_yes, p_no = yes.mean().exp(), no.mean().exp()
            ratio = torch.log((p_yes / (1 - p_yes)) / (p_no / (1 - p_no)))
            loss = -yes.mean() + config.beta * torch.log1p(torch.exp(-ratio))
        losses.append(loss)
    return torch.stack(losses).mean()


def objective_of(config: PreferenceConfig, reference, path=None) -> PreferenceObjective:
    if config.loss == "orpo":
        return PreferenceObjective(config)
    return PreferenceObjective(config, KeptReference(make_frozen_backend(reference, PLAIN), digest_of(reference), path))


def backend_of(kind: str, model):
    if kind == "autograd":
        return AutogradBackend(model, PLAIN)
    return KernelBackend(Fused(model, kernels_for_test(kind)))


def gradients_of_step(objective, model, backend, blocks) -> tuple[float, dict[str, torch.Tensor], dict[str, float]]:
    """What a whole step does: its gradients, for which SGD at a rate of 1 stands."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = train_step(
        model,
        optimizer,
        iter(blocks),
        grad_accum=len(blocks),
        grad_clip=0.0,
        lr=1.0,
        backend=backend,
        objective=objective,
    )
    assert result.scored == len(EACH)
    moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}
    return result.loss, moved, {name: value / result.scored for name, value in result.sums.items()}


@pytest.mark.parametrize("kind", ["autograd", "avx2", "avx512bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_and_gradients_are_those_of_the_papers(name, kind):
    """Pairs lie packed in micro-batches of unequal numbers; the plain version sees one answer at a time."""
    config, tie = CONFIGS[name], name == "orpo"
    model, reference = model_of(1, tie), frozen_copy(model_of(2, tie))
    wanted = plain_loss(config, model, reference)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(wanted, parameters), strict=True))
    parts = [BLOCKS[:1], BLOCKS[1:2], BLOCKS[2:]]
    objective = objective_of(config, reference)
    loss, found, figures = gradients_of_step(objective, model, backend_of(kind, model), parts)
    low = kind == "avx512bf16"
    assert loss == pytest.approx(wanted.item(), rel=2e-2 if low else 1e-5)
    for key, gradient in gradients.items():
        error = (found[key] - gradient).norm() / gradient.norm()
        assert error < (0.05 if low else 2e-4), f"{key}: {error}"
    if not low:
        model = model_of(1, tie)
        rewards = []
        with torch.no_grad():
            for chosen, rejected, prompt in EACH:
                if config.loss == "orpo":
                    rewards.append([log_p(model, each, prompt).mean() for each in (chosen, rejected)])
                else:
                    pair = [(log_p(model, x, prompt), log_p(reference, x, prompt)) for x in (chosen, rejected)]
                    rewards.append([config.beta * (p.sum() - q.sum()) for p, q in pair])
        margins = [float(yes - no) for yes, no in rewards]
        assert figures["reward_accuracy"] == pytest.approx(np.mean(np.array(margins) > 0))
        assert figures["reward_margin"] == pytest.approx(np.mean(margins), rel=1e-4)


def test_held_out_pairs_have_the_same_figures_and_the_chosen_answers_their_bits():
    from tests.helpers.chat_model import base_tokenizer

    config = CONFIGS["dpo"]
    model, reference = model_of(1), frozen_copy(model_of(2))
    objective = objective_of(config, reference)
    validator = Validator(HeldOut(BLOCKS), base_tokenizer(), 700, 3, objective)
    with torch.no_grad():
        found = validator(backend_of("autograd", model))
        wanted = plain_loss(config, model, reference).item()
        nats = -sum(float(log_p(model, chosen, prompt).sum()) for chosen, _, prompt in EACH)
    lengths = base_tokenizer().byte_lengths()
    n_bytes = sum(int(lengths[chosen[prompt:]].sum()) for chosen, _, prompt in EACH)
    assert (found.loss, found.tokens) == (pytest.approx(wanted, rel=1e-5), len(EACH))
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-4)
    _, _, figures = gradients_of_step(objective, model, backend_of("autograd", model), [BLOCKS])
    assert found.figures == pytest.approx(figures, rel=1e-5)


@pytest.mark.parametrize("loss", ["dpo", "orpo"])
def test_a_model_learns_to_prefer_the_chosen_answers(loss):
    model = model_of(1)
    objective = objective_of(PreferenceConfig(loss=loss, beta=0.5), frozen_copy(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    results = []
    for _ in range(10):
        options = {"grad_accum": 1, "grad_clip": 1.0, "lr": 1e-3}
        backend = AutogradBackend(model, PLAIN)
        results.append(train_step(model, optimizer, iter([BLOCKS]), backend=backend, objective=objective, **options))
    assert results[-1].sums["reward_accuracy"] == len(EACH)
    assert results[-1].sums["reward_margin"] > results[0].sums["reward_margin"] + 1
    if loss == "dpo":  # it begins as its reference: no reward at all, and a loss of log 2
        assert results[0].loss == pytest.approx(math.log(2), rel=1e-5)
        assert results[0].sums == {"reward_accuracy": 0.0, "reward_margin": pytest.approx(0.0, abs=1e-4)}
    assert all(after.loss < before.loss for before, after in pairwise(results[::5]))


def test_an_adapter_gets_the_gradients_of_the_merged_weights():
    model = model_of(1)
    adapter = AdapterParameters(model, LoraConfig(rank=4), "base")
    with torch.no_grad():
        for _, b_OR in adapter.pairs.values():
            b_OR.normal_(0, 0.02)
    backend = backend_of("autograd", model)
    batch = split(BLOCKS)
    part = objective_of(CONFIGS["orpo"], None).gradients(backend, batch, 1 / len(EACH))
    plain = model_of(1)
    weights = dict(plain.named_parameters())
    merged = adapter.merged()
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(torch.from_numpy(merged[name].rows(slice(None)).copy()))
    wanted = plain_loss(CONFIGS["orpo"], plain, None)
    wanted.backward()
    assert part.loss / len(EACH) == pytest.approx(wanted.item(), rel=1e-5)
    for name, (a_RI, b_OR) in adapter.pairs.items():
        gradient_OI = ADAPTER_SCALE * weights[name].grad
        torch.testing.assert_close(a_RI.grad, b_OR.T @ gradient_OI, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(b_OR.grad, gradient_OI @ a_RI.T, rtol=1e-3, atol=1e-6)


def test_a_block_of_padding_alone_counts_nothing():
    empty = np.concatenate([marks.mark(np.zeros(LENGTH), np.zeros(LENGTH))]).astype(np.int32)[None]
    model = model_of(1)
    objective = objective_of(CONFIGS["orpo"], model)
    assert len(Answers(split(empty))) == 0
    part = objective.gradients(backend_of("autograd", model), split(empty), 1.0)
    assert (part.loss, part.count) == (0.0, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "dpo", "beta": 0.0}, "must be above 0"),
        ({"loss": "dpo", "sft": -1.0}, "0 or above"),
        ({"loss": "orpo", "sft": 0.1}, r"is for preference.loss=dpo"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        PreferenceConfig(**options)
