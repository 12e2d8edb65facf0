"""Scalings of RoPE: as transformers computes them, and refused by what is missing. llama.cpp's side is in
tests/slm/from_gguf/test_convert.py."""

import pytest
import torch

from slm.data.errors import UserError
from slm.model.checkpoint import load_model
from slm.model.rope import read_scaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG_ROPE = {"type": "longrope", "original_max_position_embeddings": 4096} | {
    "short_factor": [1.0, 1.5], "long_factor": [1.0, 9.0],
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "scaling", [LLAMA3, {"rope_type": "linear", "factor": 2.5}, YARN], ids=lambda s: s["rope_type"]
)
def test_logits_are_transformers(scaling, tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={**scaling, "rope_theta": 10_000.0},
        initializer_range=0.3,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.config.rope_scaling == scaling
    long = torch.randint(96, (1, 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (ours(long) - theirs(long).logits).abs().max().item() < 1e-4


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        (
            {"rope_type": "llama3", "factor": 8.0},
            "without low_freq_factor, high_freq_factor, original_max_position_embeddings: add them",
        ),
        ({"type": "linear"}, "of type 'linear' without factor: add it"),
        (
            {"rope_type": "dynamic", "factor": 2.0},
            "'dynamic' is not supported; plain RoPE, 'llama3', 'linear', 'yarn' and 'longrope'",
        ),
        ({"type": "su"}, "of type 'longrope' without a list short_factor in config.json"),
        (LONG_ROPE | {"long_factor": [1.0, "x"]}, "long_factor='x' in config.json is no number"),
        (LONG_ROPE | {"long_factor": [1.0, 0.0]}, "of type 'longrope' with 0.0 in long_factor: all must be above 0"),
        (LONG_ROPE | {"original_max_position_embeddings": 1}, "original_max_position_embeddings=1 is not valid"),
        (LONG_ROPE | {"attention_factor": 1.2}, "'longrope' with attention_factor=1.2 is not supported"),
        (LONG_ROPE | {"short_mscale": 1.2}, "'longrope' with short_mscale=1.2 is not supported"),
        ({"rope_type": "linear", "factor": "two"}, "factor='two' in config.json is no number"),
        ({"rope_type": "linear", "factor": 0}, "with factor=0 in config.json: it must be above 0"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor=nan in config.json is no number"),
        (
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
            | {"low_freq_factor": 4.0, "high_freq_factor": 1.0},
            "high_freq_factor=1.0 in config.json: it must be above low_freq_factor=4.0",
        ),
        (YARN | {"beta_fast": 16}, "'yarn' with beta_fast=16 is not supported"),
        (YARN | {"attention_factor": 1.0}, "'yarn' with attention_factor=1.0 is not supported"),
    ],
)
def test_what_is_not_computed_is_named(rope, says):
    with pytest.raises(UserError) as caught:
        read_scaling(rope, 4096)
    assert says in str(caught.value)


def test_other_spellings():
    assert read_scaling({"rope_type": "default", "rope_theta": 1e4}, 4096) is None
    assert read_scaling({}, 4096) is None
    assert read_scaling({"type": "linear", "factor": "4"}, 4096) == {"rope_type": "linear", "factor": 4}
    long = read_scaling(LONG_ROPE | {"attention_factor": 1.190238}, 131_072)
    assert long == {"rope_type": "longrope", "factor": 32.0} | {k: v for k, v in LONG_ROPE.items() if k != "type"}
    yarn = {"type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.1386294}
    assert read_scaling(yarn, 4096) == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
