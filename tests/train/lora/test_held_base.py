"""A base that stays quantized in memory: the same numbers as its values in f32 give, and when it is chosen."""

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slm.configuration import build
from slm.configuration import load_config as load_options
from slm.data.errors import UserError
from slm.kernels.fused import Fused
from slm.llama.blocks.held import HeldBlocks
from slm.model import checkpoint, lora
from slm.model.fingerprint import fingerprint
from slm.model.generate import generate
from slm.model.layers.held import Values, held_of
from slm.model.transformer import LanguageModel
from slm.runs import list_checkpoints
from slm.train.config import LoraConfig, RunConfig
from slm.train.lora import held_base
from slm.train.lora.adapter import AdapterParameters
from slm.train.lora.base import BASE
from slm.train.memory import adapted_bytes, step_bytes
from tests.helpers.kernels import kernels_for_test
from tests.helpers.small_run import differences
from tests.slm.kernels.test_fused import SHAPES, batch, new_model
from tests.train.lora.test_lora_run import base, run, words  # noqa: F401 - fixtures


def adapted(model: LanguageModel) -> AdapterParameters:
    torch.manual_seed(4)
    adapter = AdapterParameters(model, LoraConfig(rank=4), "base")
    with torch.no_grad():
        for _, b_OR in adapter.pairs.values():
            b_OR.normal_(0, 0.1)
    return adapter


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_blocks_are_found_again_in_their_values(kind):
    weights = np.random.default_rng(1).normal(0, 0.05, (700, 96)).astype(np.float32)
    weights[3] = 0
    held = HeldBlocks(kind, weights)
    values = held.rows(slice(None))
    assert 0.0005 < np.abs(values - weights).mean() / weights.std() < 0.1
    assert np.array_equal(HeldBlocks(kind, values).rows(slice(None)), values)
    some = np.array([5, 699, 3])
    assert np.array_equal(held.rows(some), values[some])
    assert np.array_equal(held.rows(slice(600, 650)), values[600:650])
    assert held.nbytes == {"q8_0": 34, "q4_0": 18}[kind] * 700 * 3


@pytest.mark.parametrize("shape", ["grouped", "qk-norm", "biases", "gemma2", "gemma3", "lfm2", "phi3"])
@pytest.mark.parametrize(("kernels", "bits"), [("avx2", 8), ("avx2int16", 4)])
def test_losses_gradients_and_texts_are_those_of_the_values_in_f32(shape, kernels, bits, tmp_path):
    """To the bit; the embedding has more rows than are unpacked at a time."""
    checkpoint.save_model(tmp_path, new_model(**SHAPES[shape], vocab_size=1120))
    shape_of = checkpoint.load_config(tmp_path)
    held, plain = held_base.load(tmp_path, shape_of, bits), LanguageModel(shape_of)
    checkpoint.load_into(plain, dict(Values(held)), "the values")
    assert held_of(held.head) is not None
    assert sum(held_of(each) is None for each in held.parameters() if each.ndim == 2) == 0
    adapters = [adapted(model) for model in (held, plain)]
    assert adapters[0].base_fingerprint == adapters[1].base_fingerprint == fingerprint(plain.state_dict())
    ids, targets = batch(2, 33)
    losses = [
        Fused(model, kernels_for_test(kernels), keep_packed=False).loss_and_gradients(ids, targets)
        for model in (held, plain)
    ]
    assert losses[0] == losses[1]
    for mine, wanted in zip(*(each.parameters() for each in adapters), strict=True):
        assert torch.equal(mine.grad, wanted.grad)
    with torch.no_grad():
        assert torch.equal(held(ids), plain(ids))
    texts = [generate(model.eval(), [5, 9], max_tokens=6, temperature=0) for model in (held, plain)]
    assert texts[0] == texts[1]
    merged = [each.merged() for each in adapters]
    for name, each in merged[1].items():
        assert np.array_equal(merged[0][name].rows(slice(None)), each.rows(slice(None)))


def test_new_rows_are_those_of_a_base_in_f32(tmp_path):
    from slm.model import resize

    checkpoint.save_model(tmp_path, new_model(**SHAPES["grouped"]))
    grown = resize.with_vocabulary(checkpoint.load_config(tmp_path), 322, bos_id=0, eos_id=0)
    plain = resize.load_model(tmp_path, grown, spread=range(320, 322))
    held = held_base.load(tmp_path, grown, 4, spread=range(320, 322))
    for name, weight in plain.state_dict().items():
        found = Values(held)[name]
        assert found.shape == weight.shape
        assert (found - weight).norm() < (0.02 if "embed" in name else 0.15) * weight.norm()


def test_a_file_that_does_not_fit_its_configuration_is_one_line(tmp_path):
    model = new_model(**SHAPES["grouped"])
    checkpoint.save_model(tmp_path, model)
    shape = checkpoint.load_config(tmp_path)
    weights = load_file(tmp_path / checkpoint.WEIGHTS)
    from safetensors.torch import save_file

    left = {name: each for name, each in weights.items() if "layers.1.mlp.up_proj" not in name}
    save_file(left, tmp_path / checkpoint.WEIGHTS)
    with pytest.raises(UserError, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        held_base.load(tmp_path, shape, 8)
    save_file(weights | {"model.layers.7.x.weight": torch.zeros(2)}, tmp_path / checkpoint.WEIGHTS)
    with pytest.raises(UserError, match=r"holds the tensor model\.layers\.7\.x\.weight"):
        held_base.load(tmp_path, shape, 8)


def config_of(bits: int | None, **changes) -> SimpleNamespace:
    train = SimpleNamespace(micro_batch=1, seq_len=8, recompute="none")
    options = {"preference": SimpleNamespace(loss=None), "distill": SimpleNamespace(teacher=None)}
    return SimpleNamespace(lora=LoraConfig(rank=4, base_bits=bits), train=train, **(options | changes))


def test_blocks_are_chosen_where_f32_does_not_fit(monkeypatch):
    shape = new_model(**SHAPES["grouped"]).config
    environment = SimpleNamespace(kernels=kernels_for_test("avx2"), precision="f32")
    step = step_bytes(shape, config_of(None).train, value_bytes=4)

    def chosen(room: int, **changes) -> held_base.BaseBits:
        monkeypatch.setattr(held_base, "available_bytes", lambda: room)
        return held_base.choose(config_of(None, **changes), shape, environment, processes=1)

    needed = {bits: adapted_bytes(shape, 4, bits) + step for bits in (32, 8, 4)}
    assert needed[4] < needed[8] < needed[32]
    assert chosen(needed[32]) == held_base.BaseBits(32)
    assert chosen(needed[32] - 1).bits == 8
    assert chosen(needed[8] - 1).bits == 4
    assert "the base stays Q4_0 in memory (lora.base_bits=4)" in chosen(needed[8] - 1).line
    assert chosen(0, preference=SimpleNamespace(loss="dpo")).bits == 32  # the check of memory says what is missing


def test_what_cannot_be_held_is_one_line():
    shape = new_model(**SHAPES["grouped"]).config
    here = SimpleNamespace(kernels=kernels_for_test("avx2"), precision="f32")
    without = SimpleNamespace(kernels=None, precision="f32")
    dpo = config_of(8, preference=SimpleNamespace(loss="dpo"))
    for config, environment, processes, message in (
        (config_of(8), without, 1, "needs the training kernels"),
        (config_of(4), here, 2, "works with one process, not with 2"),
        (dpo, here, 1, "leaves no copy of the base"),
    ):
        with pytest.raises(UserError, match=rf"lora.base_bits=\d {message}"):
            held_base.choose(config, shape, environment, processes=processes)
    with pytest.raises(UserError, match="must be 4, 8 or 32"):
        LoraConfig(rank=4, base_bits=16)
    without_rank = SimpleNamespace(lora=LoraConfig(base_bits=8))
    with pytest.raises(UserError, match="give its rank"):
        held_base.choose(without_rank, shape, here, processes=1)


def test_a_run_keeps_the_base_that_it_computes_with_and_goes_on_to_the_bit(words):  # noqa: F811 - the fixture
    import shutil

    options = ("lora.base_bits=4", "train.kernels=avx2")
    out = run(words, "name=held", *options)
    assert "the base stays Q4_0 in memory" in out
    root = Path(words[1].removeprefix("runs_dir=")) / "held"
    (*_, last) = list_checkpoints(root)
    frozen, merged, adapter = (
        load_file(root / BASE / checkpoint.WEIGHTS),
        load_file(last / checkpoint.WEIGHTS),
        lora.read(last / lora.FOLDER),
    )
    assert adapter.base_fingerprint == fingerprint(frozen)
    for name, weight in merged.items():
        expected = frozen[name]
        if name in adapter.pairs:
            a_RI, b_OR = adapter.pairs[name]
            expected = expected + adapter.scale * b_OR @ a_RI
            assert np.array_equal(HeldBlocks("q4_0", frozen[name].numpy()).rows(slice(None)), frozen[name])
        torch.testing.assert_close(weight, expected)
    parts = copy.copy(root).with_name("held-parts")
    shutil.copytree(root, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000006")
    assert "step-00000003" in run(words, "name=held-parts", *options)
    assert differences(*(each / "checkpoints" / "step-00000006" for each in (root, parts))) == []


def test_whether_a_base_will_be_held_is_known_before_the_kernels(tmp_path, monkeypatch):
    checkpoint.save_model(tmp_path, new_model(**SHAPES["grouped"], vocab_size=1120))
    shape = checkpoint.load_config(tmp_path)

    def is_held(*more: str) -> bool:
        options = load_options("train", [*more, "optim=adamw", f"init_from={tmp_path}", "train.seq_len=64"])
        return held_base.is_held(build(RunConfig, options))

    assert [is_held("lora.rank=4", f"lora.base_bits={bits}") for bits in (4, 8, 32)] == [True, True, False]
    assert not is_held("lora.rank=4")
    assert not is_held()
    monkeypatch.setattr(held_base, "available_bytes", lambda: adapted_bytes(shape, 4))
    assert is_held("lora.rank=4")
    assert not is_held()
