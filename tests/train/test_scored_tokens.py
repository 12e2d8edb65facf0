"""The loss of a step is the mean over all its scored tokens, however they lie in micro-batches and ranks."""

import os
import socket

import numpy as np
import pytest
import torch

from slm.data.stream import marks
from slm.kernels.fused import Fused
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.backend import AutogradBackend, KernelBackend
from slm.train.environment import Environment
from slm.train.objective.batch import split
from slm.train.step import train_step
from tests.helpers.kernels import kernels_for_test
from tests.helpers.programs import CONTEXT

SHAPE = ModelConfig(
    vocab_size=128, n_layers=2, d_model=64, n_heads=2, n_kv_heads=1, head_dim=32, ffn_dim=96, seq_len=32
)
PLAIN = Environment(threads=1, precision="f32", compile=False, notes=())


def new_model() -> LanguageModel:
    torch.manual_seed(4)
    return LanguageModel(SHAPE).train()


def conversations(rows: int = 8, length: int = 33) -> np.ndarray:
    """Blocks of two conversations each, with 1 to 30 scored tokens: no two micro-batches have the same number."""
    chance = np.random.default_rng(3)
    blocks = []
    for row in range(rows):
        scored = np.zeros(length, dtype=bool)
        scored[chance.permutation(np.arange(1, length))[: 1 + 4 * row]] = True
        ids = chance.integers(0, SHAPE.vocab_size, length)
        cut = 5 + row
        blocks.append(
            np.concatenate([marks.mark(ids[:cut], scored[:cut]), marks.mark(ids[cut:], scored[cut:] * (cut < 32))])
        )
    return np.stack(blocks)


def take_step(backend, model, batches, **more) -> tuple[float, int, dict[str, torch.Tensor]]:
    """The loss, the number of scored tokens and the gradient, read off an update of plain gradient descent."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"grad_accum": len(batches), "grad_clip": 0.0, "lr": 1.0} | more
    result = train_step(model, optimizer, iter(batches), backend=backend, **options)
    return result.loss, result.scored, {name: before[name] - p.detach() for name, p in model.named_parameters()}


def backend_of(kind: str, model: LanguageModel):
    if kind == "autograd":
        return AutogradBackend(model, PLAIN)
    return KernelBackend(Fused(model, kernels_for_test("avx2")))


def expected() -> tuple[float, int, dict[str, torch.Tensor]]:
    """Summed over every block on its own, divided by the number of all scored tokens."""
    model, nats, n_scored = new_model(), torch.zeros(()), 0
    for block in conversations():
        ids, targets, starts = split(block[None])
        logits = model(ids, starts_BT=starts)
        nats = nats + torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        n_scored += int((targets != -100).sum())
    (nats / n_scored).backward()
    return (nats / n_scored).item(), n_scored, {name: p.grad for name, p in model.named_parameters()}


def check(found, wanted) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    assert found[1] == wanted[1]
    size = torch.stack([gradient.norm() for gradient in wanted[2].values()]).norm()
    for name, gradient in wanted[2].items():
        assert (found[2][name] - gradient).norm() < 2e-5 * gradient.norm() + 1e-6 * size, name


@pytest.mark.parametrize("kind", ["autograd", "kernels"])
@pytest.mark.parametrize("passes", [1, 2, 8])
def test_a_step_is_the_mean_over_its_scored_tokens_however_it_is_divided(kind, passes):
    model, blocks = new_model(), conversations()
    check(take_step(backend_of(kind, model), model, np.split(blocks, passes)), expected())


def test_the_chunked_loss_of_compiled_training_counts_alike():
    """The head of compiled training makes its gradients in the forward pass, chunk by chunk."""
    from slm.model.cross_entropy import linear_cross_entropy

    model = new_model()
    model._cross_entropy = lambda x, weight, targets, cap: linear_cross_entropy(
        x.flatten(0, 1), weight, targets.flatten(), cap=cap
    )
    check(take_step(AutogradBackend(model, PLAIN), model, np.split(conversations(), 4)), expected())


@pytest.mark.parametrize("kind", ["autograd", "kernels"])
def test_a_micro_batch_without_a_scored_token_adds_nothing(kind):
    model, blocks = new_model(), conversations()
    silent = blocks.copy() | marks.UNSCORED
    wanted = take_step(backend_of(kind, model), model, np.split(blocks, 2))
    other = new_model()
    check(take_step(backend_of(kind, other), other, [*np.split(blocks, 2), silent[:4]]), wanted)


def _rank(rank: int, port: int, results) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    from slm.train.distributed.gradient_sync import make_gradient_sync
    from slm.train.distributed.join import join

    ranks = join(pin=False)
    model = new_model()
    _, sync = make_gradient_sync(ranks, model, elapsed=lambda: 0.0, start_elapsed=0.0, dtype="f32")
    own = np.split(conversations(), 4)[rank::2]
    loss, scored, gradient = take_step(AutogradBackend(model, PLAIN), model, own, grad_accum=4, sync=sync)
    results.put((rank, loss, scored, {name: each.numpy() for name, each in gradient.items()}))
    ranks.close()


def test_two_processes_divide_by_the_scored_tokens_of_both():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_rank, args=(rank, port, results)) for rank in range(2)]
    for each in processes:
        each.start()
    found = [results.get(timeout=120) for _ in processes]
    for each in processes:
        each.join()
    wanted = expected()
    for _, loss, scored, gradient in found:
        check((loss, scored, {name: torch.from_numpy(each) for name, each in gradient.items()}), wanted)
