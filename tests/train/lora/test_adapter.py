"""An adapter's gradients equal autograd's through W + scale * B A, and PEFT's, with and without kernels."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call

from slm.data.errors import UserError
from slm.kernels.fused import Fused
from slm.model import checkpoint, lora
from slm.model.transformer import LanguageModel
from slm.train.backend import AutogradBackend, Backend, KernelBackend
from slm.train.config import ADAPTER_SCALE, LoraConfig
from slm.train.lora.adapter import AdapterParameters
from slm.train.objective.batch import split
from slm.train.step import train_step
from tests.helpers.kernels import kernels_for_test
from tests.train.test_scored_tokens import PLAIN, SHAPE, conversations, new_model

CONFIG = LoraConfig(rank=3)


def new_adapter(model: LanguageModel, config: LoraConfig = CONFIG) -> AdapterParameters:
    """An adapter with a B other than zero, as after some steps."""
    torch.manual_seed(9)
    adapter = AdapterParameters(model, config, "base")
    with torch.no_grad():
        for _, b_OR in adapter.pairs.values():
            b_OR.normal_(std=0.05)
    return adapter


def backend_of(kind: str, model: LanguageModel) -> Backend:
    if kind == "autograd":
        return AutogradBackend(model, PLAIN)
    recompute = {"kernels": "none", "kernels, mlp": "mlp", "kernels, layer": "layer"}[kind]
    return KernelBackend(Fused(model, kernels_for_test("avx2"), recompute=recompute, keep_packed=kind == "kernels"))


def expected(config: LoraConfig = CONFIG) -> dict[str, torch.Tensor]:
    """The gradients of A and B by autograd through the merged weights."""
    frozen, model = new_model(), new_model()
    pairs = new_adapter(model, config).pairs
    weights = dict(frozen.named_parameters())
    for name, (a_RI, b_OR) in pairs.items():
        weights[name] = weights[name].detach() + ADAPTER_SCALE * b_OR @ a_RI
    nats, n_scored = torch.zeros(()), 0
    for block in conversations():
        ids, targets, starts = split(block[None])
        logits = functional_call(frozen, weights, (ids,), {"starts_BT": starts})
        nats = nats + torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        n_scored += int((targets != -100).sum())
    (nats / n_scored).backward()
    return {
        lora.part_name(name, part): each.grad
        for name, pair in pairs.items()
        for part, each in zip("AB", pair, strict=True)
    }


def step_gradients(kind: str, config: LoraConfig, passes: int) -> dict[str, torch.Tensor]:
    """The gradients of a whole optimizer step, read off an update of plain gradient descent."""
    model = new_model()
    backend = backend_of(kind, model)
    adapter = new_adapter(model, config)
    before = {name: p.detach().clone() for name, p in adapter.named_parameters()}
    frozen = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(adapter.parameters(), lr=1.0)
    batches = iter(np.split(conversations(), passes))
    train_step(adapter, optimizer, batches, grad_accum=passes, grad_clip=0.0, lr=1.0, backend=backend)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters())
    return {name: before[name] - p.detach() for name, p in adapter.named_parameters()}


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    size = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() < 2e-5 * gradient.norm() + 1e-6 * size, name


@pytest.mark.parametrize("kind", ["autograd", "kernels", "kernels, mlp", "kernels, layer"])
@pytest.mark.parametrize("passes", [1, 4])
def test_the_gradients_are_autograds(kind, passes):
    check(step_gradients(kind, CONFIG, passes), expected())


def test_only_the_layers_that_are_named_get_an_adapter():
    config = LoraConfig(rank=2, targets=("q_proj", "down_proj"))
    found = step_gradients("kernels", config, 2)
    assert len(found) == 2 * 2 * SHAPE.n_layers
    check(found, expected(config))


def test_the_gradients_are_pefts(tmp_path):
    """PEFT's own model of the directory that a checkpoint holds: the same loss and gradients."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    model = new_model()
    checkpoint.save_model(tmp_path, model)
    adapter = new_adapter(model)
    adapter.describe(tmp_path)
    from safetensors.torch import save_file

    save_file(adapter.adapter_tensors(), tmp_path / lora.FOLDER / lora.WEIGHTS)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / lora.FOLDER, is_trainable=True)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, SHAPE.vocab_size, (2, 20)))
    loss = theirs(input_ids=ids, labels=ids).loss
    loss.backward()
    backend = KernelBackend(Fused(model, kernels_for_test("avx2")))
    nats = backend.gradients(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), 1 / (2 * 19))
    assert nats / (2 * 19) == pytest.approx(loss.item(), rel=1e-5)
    grads = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    wanted = {name: grads[f"base_model.model.{name}"] for name, _ in adapter.named_parameters()}
    assert len(wanted) == len(grads)
    check({name: p.grad for name, p in adapter.named_parameters()}, wanted)


def test_merged_weights_are_the_base_and_the_product_as_they_were(tmp_path):
    model, base = new_model(), new_model()
    adapter = new_adapter(model)
    taken = checkpoint.take_snapshot(model.state_dict() | adapter.merged(), {})
    pairs = {name: [each.detach().clone() for each in pair] for name, pair in adapter.pairs.items()}
    assert taken.detach() == 0  # frozen weights are not copied
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 1
    assert taken.write_file(checkpoint.WEIGHTS, tmp_path / "merged") == checkpoint.sha256(tmp_path / "merged")
    assert taken.wait_read(0)
    merged = load_file(tmp_path / "merged")
    assert merged.keys() == model.state_dict().keys()
    for name, weight in base.named_parameters():
        own = merged[name]
        if name in adapter.pairs:
            a_RI, b_OR = pairs[name]
            torch.testing.assert_close(own, weight + ADAPTER_SCALE * b_OR @ a_RI)
            assert not torch.equal(own, weight)
        else:
            assert torch.equal(own, weight)


def test_an_adapter_begins_as_the_base():
    torch.manual_seed(1)
    model, base = new_model(), new_model()
    adapter = AdapterParameters(model, CONFIG, "base")
    for name, weight in base.named_parameters():
        assert np.array_equal(adapter.merged()[name].rows(slice(None)), weight.detach())
    a_RI, b_OR = adapter.pairs["model.layers.1.mlp.down_proj.weight"]
    assert (a_RI.shape, b_OR.shape) == ((3, SHAPE.ffn_dim), (SHAPE.d_model, 3))
    assert 0.9 / SHAPE.ffn_dim**0.5 < a_RI.abs().max() <= 1 / SHAPE.ffn_dim**0.5


def test_targets_are_an_architectures_own_layers_and_the_default_is_all_of_them():
    assert LoraConfig(rank=2).targets_in("qwen3")[3] == "o_proj"
    all_of_it = ("q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w3", "w2")
    assert LoraConfig(rank=2).targets_in("lfm2") == all_of_it
    assert LoraConfig(rank=2, targets=("in_proj",)).targets_in("lfm2") == ("in_proj",)
    with pytest.raises(UserError, match="names o_proj, which lfm2 models do not have"):
        LoraConfig(rank=2, targets=("q_proj", "o_proj")).targets_in("lfm2")
