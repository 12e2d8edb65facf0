"""The dense Granite 4: transformers' models with joined matrices are read as the ones that compute the same, trained,
and exported as llama.cpp's converter exports them."""

import json

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from slm.data.errors import UserError
from slm.model.checkpoint import load_model, save_model
from slm.model.config import ModelConfig
from slm.model.held.held_model import load_as_stored
from tests.helpers import converter
from tests.helpers import tiny_checkpoint as tiny

SHAPE = dict(
    vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, pad_token_id=None, eos_token_id=0, bos_token_id=0,
)  # fmt: skip
DENSE = dict(
    num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=96, position_embedding_type="rope",
    layer_types=["attention"] * 2, embedding_multiplier=12.0, attention_multiplier=0.0625, residual_multiplier=0.22,
    logits_scaling=8.0, mamba_n_heads=4,
)  # fmt: skip
KINDS = ("granite4", "granite4-tied")


def theirs(kind: str):
    """transformers' model with random weights, none near its resting value."""
    import transformers

    torch.manual_seed(3)
    options = SHAPE | DENSE | {"tie_word_embeddings": kind.endswith("-tied")}
    model = transformers.GraniteMoeHybridForCausalLM(transformers.GraniteMoeHybridConfig(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(kind, tmp_path, capsys):
    model = theirs(kind)
    model.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.config.arch == "granite"
    assert "its matrices that are joined are read as their parts" in capsys.readouterr().out
    assert ours.config.n_params == sum(each.numel() for each in model.parameters())
    tokens = torch.randint(0, 384, (2, 33), generator=torch.Generator().manual_seed(1))
    logits = model(tokens[:, :-1]).logits
    assert (ours(tokens[:, :-1]) - logits).abs().max().item() < 1e-4
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    ours.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    mine = {name: each.grad for name, each in ours.named_parameters()}
    for name, each in model.named_parameters():
        if name.endswith("input_linear.weight"):
            stem = name.rpartition(".shared_mlp.")[0]
            grad = torch.cat([mine[f"{stem}.mlp.{part}_proj.weight"] for part in ("gate", "up")])
        else:
            grad = mine[name.replace("shared_mlp.output_linear", "mlp.down_proj")]
        assert (grad - each.grad).norm() < 1e-4 * each.grad.norm() + 1e-6, name


@pytest.mark.parametrize("kind", KINDS)
def test_its_checkpoint_is_the_plain_models(kind, tmp_path):
    from transformers import AutoModelForCausalLM

    theirs(kind).save_pretrained(tmp_path / "theirs")
    ours = load_as_stored(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    save_model(tmp_path / "ours", ours)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert type(again).__name__ == "GraniteForCausalLM"
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert (again(tokens).logits - ours(tokens)).abs().max().item() < 1e-4


def test_a_dense_granite_4_is_exported_as_by_llama_cpps_converter(tmp_path):
    folder = tmp_path / "granite4"
    theirs("granite4").save_pretrained(folder)
    tiny.tokenizer().save(folder)
    settings = json.loads((folder / "config.json").read_text())  # as the published ones name their layers
    (folder / "config.json").write_text(json.dumps(settings | {"layer_types": ["attention"] * 2}))
    mine = tiny.write(tmp_path / "ours.gguf", folder)
    converter.convert({folder: tmp_path / "theirs.gguf"}, tmp_path, pre={folder: "gpt-2"})
    ours, reference = (gguf.GGUFReader(each) for each in (mine, tmp_path / "theirs.gguf"))
    assert reference.fields["general.architecture"].contents() == "granite"
    values = {each.name: each for each in ours.tensors}
    assert values.keys() == {each.name for each in reference.tensors}
    for each in reference.tensors:
        assert values[each.name].tensor_type == each.tensor_type
        assert np.array_equal(values[each.name].data, each.data), each.name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(num_local_experts=4), "num_local_experts=4 in config.json is not supported: of Granite 4 only the dense"),
        (dict(num_local_experts="4"), "num_local_experts=4"),
        (dict(layer_types=["mamba", "attention"]), "layers of the kind 'mamba' in config.json are not supported"),
        (dict(layer_types=None), "layers of the kind 'mamba'"),
        (dict(position_embedding_type=None), "position_embedding_type=None in config.json is not supported"),
    ],
)
def test_other_granites_of_the_family_are_refused(change, says):
    config = {"architectures": ["GraniteMoeHybridForCausalLM"], **SHAPE, **DENSE}
    assert ModelConfig.from_hf(config).ffn_dim == 96
    with pytest.raises(UserError, match=says):
        ModelConfig.from_hf(config | change)
