"""Training on quantized values: what the model computes with, what the masters get, what a checkpoint holds."""

import numpy as np
import pytest
import torch

from slm.export.imatrix import collect
from slm.kernels.column_squares import matrix_names
from slm.kernels.fused import Fused
from slm.llama.blocks import codec
from slm.llama.blocks.compensated import round_compensated
from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.rounding import quantize_rows
from slm.model.transformer import LanguageModel
from slm.train.qat.fake_quant import FakeQuant
from slm.train.qat.moments import input_moments
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.kernels import kernels_for_test

KINDS = ("q4_0", "q8_0", "iq4_nl", "q4_k", "q3_k", "tq2_0")
IDS = torch.arange(64).view(2, 32) * 5 % 400


def started(kind: str, **changes) -> tuple[LanguageModel, FakeQuant, dict[str, torch.Tensor]]:
    """A model in training, its quantization, which is on, and its weights before."""
    model = LanguageModel(tiny.config(n_layers=1, **changes))
    tiny.randomize(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fake_quant = FakeQuant(model, kind, 0.25, 2)
    assert not fake_quant.due(0.74)
    assert fake_quant.due(0.75)
    fake_quant.begin()
    assert fake_quant.on
    assert not fake_quant.due(0.9)
    return model, fake_quant, before


def update(model, fake_quant, step: int, size: float = 1e-3) -> dict[str, torch.Tensor]:
    """One step down the gradient, as the trainer does it. Returns the gradients."""
    model.zero_grad()
    model.loss(IDS, IDS.roll(-1, 1)).backward()
    fake_quant.show_masters()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= size * parameter.grad
    fake_quant.after_update(step)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_computes_with_the_blocks_of_its_masters(kind):
    model, fake_quant, before = started(kind, tie_embeddings=kind == "q8_0")
    for step in (1, 2):
        update(model, fake_quant, step)
    with fake_quant.masters():
        masters = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        saved, more, quantized = fake_quant.checkpoint(model.state_dict())
        assert quantized is not None
    assert quantized.file_type == {"q4_k": "q4_k_m", "q3_k": "q3_k_m"}.get(kind, kind)
    assert set(quantized.types) == {name for name, tensor in before.items() if tensor.ndim == 2}
    for name, tensor in model.state_dict().items():
        assert torch.equal(saved[name], tensor)  # what the next forward pass sees
        if name not in quantized.types:
            assert torch.equal(masters[name], tensor)
            continue
        assert torch.equal(more[f"{name}.unquantized"], masters[name])
        values = codec.dequantize(quantized.types[name], quantized.blocks[name].numpy(), tensor.shape[1])
        assert torch.equal(torch.from_numpy(values), tensor)
        assert not torch.equal(masters[name], tensor)


@pytest.mark.parametrize("kind", ["q4_0", "q4_k"])
def test_rounding_is_weighted_by_the_columns_inputs(kind):
    """As llama.cpp rounds with an importance matrix; a resumed run goes on so."""
    model = LanguageModel(tiny.config(n_layers=1))
    tiny.randomize(model)
    name = "model.layers.0.mlp.gate_proj.weight"
    master = model.state_dict()[name].clone()
    importance = (
        torch.linspace(-3, 3, master.shape[1]).exp()[torch.arange(master.shape[1]) * 101 % master.shape[1]].clone()
    )
    errors = {}
    for given in ({}, {name: importance.diag()}):
        fake_quant = FakeQuant(model, kind, 0.25, 2, compensated=False)
        fake_quant.begin(given)
        assert fake_quant.weighted
        difference = model.state_dict()[name] - master
        errors[bool(given)] = (difference.square() * importance).sum().item()
        if given:
            with fake_quant.masters():
                _, more, _ = fake_quant.checkpoint(model.state_dict())
            blocks = quantize_rows(master.numpy(), kind, importance.numpy())
            assert torch.equal(more[f"{name}.blocks.{kind}"], torch.from_numpy(blocks))
            assert torch.equal(more[f"{name}.importance"], importance)
            state = {key: value.clone() for key, value in more.items()}
            other = FakeQuant(model, kind, 0.25, 1)
        fake_quant.end()
    assert errors[True] < 0.95 * errors[False]
    other.load(state)
    other.resume()
    with other.masters():
        _, more, _ = other.checkpoint(model.state_dict())
    assert torch.equal(more[f"{name}.importance"], importance)
    assert not FakeQuant(model, "q8_0").weighted
    assert not FakeQuant(model, "tq2_0").weighted


def test_the_moments_diagonal_is_exports_importance_matrix():
    """On text that fills few windows, and on none that does not fill one."""
    tokenizer, text = tiny.tokenizer(), tiny.text(9_000)
    model = LanguageModel(tiny.config(n_layers=2, seq_len=48))
    tiny.randomize(model)
    found = input_moments(model, tokenizer, text)
    starts = sorted({round(start) for start in np.linspace(0, len(text) - 8 * 48, 64)})
    windows = np.array([tokenizer.encode(text[start : start + 8 * 48])[:48] for start in starts], np.int32)
    expected = collect(model, windows, dataset="x").means()
    assert len(found) == len(expected) == 14
    for name, moments_DD in found.items():
        np.testing.assert_allclose(moments_DD.diagonal().numpy(), expected[gguf_name(name)], rtol=1e-4)
        assert torch.allclose(moments_DD, moments_DD.T)
    assert found["model.layers.1.mlp.up_proj.weight"] is found["model.layers.1.mlp.gate_proj.weight"]
    assert input_moments(model, tokenizer, "too short") == {}


def test_moments_by_the_kernels_are_those_of_pytorch():
    tokenizer, text = tiny.tokenizer(), tiny.text(9_000)
    model = LanguageModel(tiny.config(n_layers=2, seq_len=48))
    tiny.randomize(model)
    expected = input_moments(model, tokenizer, text)
    found = input_moments(model, tokenizer, text, kernels=kernels_for_test("avx2"))
    assert found.keys() == expected.keys()
    for name, moments_DD in found.items():
        assert float((moments_DD - expected[name]).norm()) < 1e-4 * float(expected[name].norm())
        assert moments_DD is not expected[name]


def test_a_short_run_measures_fewer_moments(monkeypatch):
    """One of sixteen tokens that it will read, between 4,096 and 32,768."""
    from slm.train.qat import moments

    n_pieces: list[int] = []
    monkeypatch.setattr(moments, "column_products", lambda model, windows, kernels: n_pieces.append(len(windows)) or {})
    model = LanguageModel(tiny.config(n_layers=1, seq_len=48))
    for training_tokens in (100, 16 * 512 * 20.5, 1e12, None):
        input_moments(model, tiny.tokenizer(), tiny.text(9_000), training_tokens=training_tokens)
    assert n_pieces == [8, 20, 64, 64]


def correlated(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Moments of inputs with neighbouring columns much alike, for all of the layers' matrices."""
    found = {}
    for names in same_inputs(model):
        width = model.get_parameter(names[0]).shape[1]
        distance = (torch.arange(width)[:, None] - torch.arange(width)).abs()
        sizes = torch.linspace(0, 1.5, width).exp()
        found.update(dict.fromkeys(names, 0.9**distance * torch.outer(sizes, sizes)))
    return found


def same_inputs(model: LanguageModel) -> list[list[str]]:
    """The layers' matrices by name, those together that read the same input."""
    names = matrix_names(model)
    groups = [group for layer in model.model.layer_list() for group in layer.input_groups()]
    return [[names[id(each.weight)] for each in group] for group in groups]


@pytest.mark.parametrize("kind", ["q4_0", "q4_k", "q8_0"])
def test_columns_make_up_for_each_others_errors(kind):
    """The blocks equal those of export's compensated rounding; what a layer adds to its output is less."""
    errors = {}
    for compensated in (False, True):
        model = LanguageModel(tiny.config(n_layers=1))
        tiny.randomize(model)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moments = correlated(model)
        fake_quant = FakeQuant(model, kind, 0.25, 2, compensated=compensated)
        fake_quant.begin(moments, steps_left=24)
        with fake_quant.masters():
            _, more, _ = fake_quant.checkpoint(model.state_dict())
        total = 0.0
        for name, moments_DD in moments.items():
            error_OD = model.state_dict()[name] - before[name]
            total += ((error_OD @ moments_DD) * error_OD).sum().item()
            if compensated and kind != "q8_0":
                (key,) = (key for key in more if key.startswith(f"{name}.blocks."))
                expected = round_compensated(before[name].numpy(), moments_DD, fake_quant.types[name])
                assert torch.equal(more[key], torch.from_numpy(expected))
        errors[compensated] = total
    if kind == "q8_0":
        assert errors[True] == errors[False]
        assert not any(".compensation" in name for name in more)
    else:
        assert errors[True] < 0.8 * errors[False]


def test_matrices_with_the_same_input_have_their_turn_together():
    """Each matrix twelve times until the end; between its turns its blocks stay."""
    model = LanguageModel(tiny.config(n_layers=1))
    tiny.randomize(model)
    fake_quant = FakeQuant(model, "q4_0", 0.25, 2)
    fake_quant.begin(correlated(model), steps_left=48)
    changes: dict[str, list[int]] = {name: [] for name in fake_quant.types if ".layers." in name}
    for step in range(8):
        old = {name: model.state_dict()[name].clone() for name in changes}
        update(model, fake_quant, step, size=1.0)
        for name, steps in changes.items():
            if not torch.equal(old[name], model.state_dict()[name]):
                steps.append(step)
    for names in same_inputs(model):
        (turns,) = {tuple(changes[name]) for name in names}
        assert len(turns) == 2
        assert turns[1] - turns[0] == 4
    assert len({turns[0] for turns in changes.values()}) == 4


def test_gradients_go_straight_through_to_the_masters():
    model, fake_quant, before = started("q4_0")
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = LanguageModel(model.config)
    plain.load_state_dict(values)  # a model that has these weights and knows nothing of quantization
    plain.loss(IDS, IDS.roll(-1, 1)).backward()
    gradients = update(model, fake_quant, 1)
    with fake_quant.masters():
        for name, parameter in plain.named_parameters():
            assert torch.equal(gradients[name], parameter.grad)
            assert torch.equal(model.state_dict()[name], before[name] - 1e-3 * parameter.grad)


def test_the_kernels_compute_with_them_too():
    """Packed weights are made of the quantized values, after every update anew."""
    model, fake_quant, _ = started("q4_0", head_dim=64)
    fused = Fused(model, kernels_for_test("avx2"))
    for step in (1, 2):
        model.zero_grad()
        loss = fused.loss_and_gradients(IDS, IDS.roll(-1, 1))
        found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        assert loss == pytest.approx(model.loss(IDS, IDS.roll(-1, 1)).item(), rel=1e-5)
        for name, gradient in update(model, fake_quant, step, size=0.1).items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())
        fused.forget_weights()


def test_types_that_search_long_take_turns():
    """Each row gets its turn; the others keep their blocks, so that a step stays short."""
    model, fake_quant, _ = started("q4_k")
    name = "model.layers.0.mlp.gate_proj.weight"
    assert fake_quant.types[name] == "q4_k"
    seen = torch.zeros(512, dtype=torch.bool)
    for step in range(16):
        old = model.state_dict()[name].clone()
        update(model, fake_quant, step, size=1.0)
        changed = (model.state_dict()[name] != old).any(dim=1)
        assert changed.sum() <= 32
        seen |= changed
    assert seen.float().mean() > 0.9


@pytest.mark.parametrize(("kind", "compensated"), [("q4_0", False), ("q4_0", True), ("q4_k", False), ("q4_k", True)])
def test_a_checkpoint_brings_back_masters_and_blocks(kind, compensated):
    model, fake_quant, _ = started(kind)
    if compensated:
        fake_quant.end()
        fake_quant.begin(correlated(model), steps_left=30)
    for step in (1, 2, 3):
        update(model, fake_quant, step, size=0.3)
    with fake_quant.masters():
        saved, more, _ = fake_quant.checkpoint(model.state_dict())
        state = {key: value.clone() for key, value in more.items()}
        masters = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    again = LanguageModel(model.config)
    again.load_state_dict(saved)
    other = FakeQuant(again, kind, 0.25, 1)
    other.load(state)
    other.resume()
    assert other.on
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    with other.masters():
        assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in masters.items())
    for step in (4, 5, 6):
        update(model, fake_quant, step, size=0.3)
        update(again, other, step, size=0.3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    other.end()
    assert not other.on


def test_it_mends_what_ternary_weights_cost():
    """A model that knows its text by heart forgets it as ternary weights, and learns it again with them."""
    model = LanguageModel(tiny.config(n_layers=1))
    tiny.randomize(model)
    fake_quant = FakeQuant(model, "tq2_0", 0.5, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer.register_step_pre_hook(lambda *_: fake_quant.show_masters())

    def train(steps: int) -> float:
        for step in range(steps):
            optimizer.zero_grad()
            model.loss(IDS, IDS.roll(-1, 1)).backward()
            optimizer.step()
            fake_quant.after_update(step)
        return model.loss(IDS, IDS.roll(-1, 1)).item()

    learned = train(40)
    fake_quant.begin()
    plain = train(0)
    trained = train(40)
    assert learned < plain
    assert trained < 0.7 * plain


def test_without_a_type_it_never_begins():
    model = LanguageModel(tiny.config(n_layers=1))
    fake_quant = FakeQuant(model)
    assert not fake_quant.due(1.0)
    fake_quant.show_masters()
    fake_quant.after_update(1)
    assert not fake_quant.on
