"""Adafactor inside the backward pass: torch's numbers, in the memory of the weights and one gradient."""

import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.kernels.fused import Fused
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.backend import AutogradBackend, KernelBackend
from slm.train.config import OptimConfig
from slm.train.environment import Environment
from slm.train.guards import NonFiniteError
from slm.train.memory import state_bytes
from slm.train.optim.make import make_optimizer
from slm.train.resolve import resolve
from slm.train.step import train_step
from tests.helpers.kernels import kernels_for_test
from tests.helpers.small_run import SmallRun, differences, write_corpus

SHAPE = ModelConfig(vocab_size=64, n_layers=2, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32)
PLAIN = Environment(threads=1, precision="f32", compile=False, notes=())
OPTIM = OptimConfig(name="adafactor", lr=2e-2, weight_decay=0.1, grad_clip=0.0)


def new_model(**changes) -> LanguageModel:
    torch.manual_seed(4)
    return LanguageModel(replace(SHAPE, **changes)).train()


def blocks(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (3, 17)).astype(np.int32)


def backend_of(model: LanguageModel, name: str):
    if name == "autograd":
        return AutogradBackend(model, PLAIN)
    return KernelBackend(Fused(model, kernels_for_test(name), one_pass=True))


def step(model, optimizer, backend, seed, lr=2e-2):
    return train_step(model, optimizer, iter([blocks(seed)]), grad_accum=1, grad_clip=0.0, lr=lr, backend=backend)


@pytest.mark.parametrize("backend", ["autograd", "avx2"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_torchs_adafactor(backend, tied, monkeypatch):
    monkeypatch.setattr("slm.train.optim.adafactor.CHUNK", 200)  # several chunks, the last one shorter
    model, reference = new_model(tie_embeddings=tied), new_model(tie_embeddings=tied)
    optimizer, computes = make_optimizer(model, OPTIM), backend_of(model, backend)
    matrices = [p for name, p in reference.named_parameters() if p.ndim == 2 and "embed_tokens" not in name]
    kept = [p for name, p in reference.named_parameters() if p.ndim < 2 or "embed_tokens" in name]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
    theirs = torch.optim.Adafactor(groups, lr=2e-2, eps=(1e-15, 1e-3))
    for seed in range(5):
        result = step(model, optimizer, computes, seed)
        ids = torch.from_numpy(blocks(seed).astype(np.int64))
        theirs.zero_grad()
        loss = reference.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in reference.parameters()])
        assert result.loss == pytest.approx(loss.item(), rel=1e-4)
        assert result.grad_norm == pytest.approx(norm.item(), rel=1e-3)
        theirs.step()
    for ours, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("backend", ["autograd", "avx2"])
def test_a_gradient_is_gone_when_its_parameter_has_changed(backend):
    model = new_model(tie_embeddings=False)
    optimizer, computes = make_optimizer(model, OPTIM), backend_of(model, backend)
    most = 0

    def count(_: torch.Tensor) -> None:
        nonlocal most
        most = max(most, sum(p.grad is not None and p.ndim > 1 for p in model.parameters()))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(count)
    step(model, optimizer, computes, 0)
    assert most <= 3  # queries, keys and values have one
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_outside_of_an_update_are_left_alone():
    """A trial of the micro-batch, or a component's own."""
    model = new_model()
    make_optimizer(model, OPTIM)
    before = [p.detach().clone() for p in model.parameters()]
    ids = torch.from_numpy(blocks(0).astype(np.int64))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_a_loss_that_is_no_number_changes_nothing():
    model = new_model()
    optimizer = make_optimizer(model, OPTIM)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        step(model, optimizer, backend_of(model, "autograd"), 0)
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p, old, rtol=0, atol=0, equal_nan=True)


def test_two_passes_in_one_update_are_an_error():
    model = new_model()
    optimizer, backend = make_optimizer(model, OPTIM), backend_of(model, "autograd")
    batches = iter([blocks(0), blocks(1)])
    with pytest.raises(RuntimeError, match="came twice"):
        train_step(model, optimizer, batches, grad_accum=2, grad_clip=0.0, lr=1e-2, backend=backend)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("train.grad_accum=2", "train.grad_accum=2 cannot: use train.grad_accum=1"),
        ("optim.grad_clip=1", "optim.grad_clip=1"),
        ("train.qat=q8_0", "train.qat=q8_0"),
        ("distill.teacher=runs/other", "distill.teacher=runs/other"),
    ],
)
def test_what_needs_all_gradients_at_once_is_refused(word, named):
    with pytest.raises(UserError) as refused:
        resolve(["preset=tiny", "optim=adafactor", "train.grad_accum=1", word], lambda _: 1)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    corpus = write_corpus(tmp_path / "documents.jsonl")
    words = [f"data.files=[{corpus}]", "optim=adafactor", "train.grad_accum=1", "train.checkpoint_every=2"]
    words += ["train.max_steps=4", "train.keep_last=9", "train.eval_every=9", "name=run"]
    first = SmallRun(tmp_path / "first", *words)
    first.finish()
    shutil.copytree(tmp_path / "first", tmp_path / "second", symlinks=True)
    last = tmp_path / "second" / "run" / "checkpoints" / "step-00000004"
    shutil.rmtree(last)
    SmallRun(tmp_path / "second", *words).finish()
    assert not differences(first.root / "checkpoints" / last.name, last)


LARGE = ModelConfig(
    vocab_size=8192, n_layers=8, d_model=512, n_heads=8, n_kv_heads=8, head_dim=64, ffn_dim=1536, seq_len=32
)
PROGRAM = """
import sys
from slm.machine.hardware import recent_peak_rss_bytes as peak  # that of getrusage begins with the parent's
from tests.train.optim import test_adafactor as own

config = own.OPTIM if sys.argv[1] == "adafactor" else own.OptimConfig(lr=1e-3)
small = own.new_model()
own.step(small, own.make_optimizer(small, config), own.backend_of(small, "autograd"), 0)
before = peak()
model = own.LanguageModel(own.LARGE).train()
optimizer, backend = own.make_optimizer(model, config), own.backend_of(model, "autograd")
for seed in range(2):
    own.step(model, optimizer, backend, seed)
print(peak() - before)
"""


BESIDE = 128 << 20
"""Bytes, at most, of activations, buffers of libraries and what the allocator holds back."""


@pytest.mark.parametrize("name", ["adafactor", "adamw"])
def test_the_memory_is_what_the_check_before_a_run_counts(name):
    """31M parameters: 500 MB with AdamW, 140 without moments and gradients."""
    found = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, check=True)
    assert 0.9 * state_bytes(LARGE, name) < int(found.stdout) < state_bytes(LARGE, name) + BESIDE
