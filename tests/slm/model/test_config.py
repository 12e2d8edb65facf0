"""The shapes that a model may have, and the way to Hugging Face's config.json and back."""

import pytest

from data.errors import UserError
from slm.model.config import ModelConfig

SMALL = dict(
    vocab_size=96, n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, ffn_dim=96, seq_len=64, eos_id=0
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(n_kv_heads=3), "does not divide n_heads=4; use one of [1, 2, 4]"),
        (dict(head_dim=15), "must be even"),
        (dict(n_layers=0), "must be at least 1"),
        (dict(arch="llamma"), "not known"),
    ],
)
def test_impossible_shapes_are_refused(change, says):
    with pytest.raises(UserError) as caught:
        ModelConfig(**{**SMALL, **change})
    assert says in str(caught.value)


def test_a_width_of_700_is_refused_with_the_nearest_that_work():
    config = ModelConfig(**{**SMALL, "d_model": 700})
    with pytest.raises(UserError, match=r"d_model=700 is not a multiple of 256.*use 512 or 768"):
        config.check_widths()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            dict(architectures=["GPT2LMHeadModel"]),
            "know LlamaForCausalLM and Qwen3ForCausalLM. For others, llama.cpp's convert_hf_to_gguf.py may",
        ),
        (dict(attention_bias=True), "attention_bias=true"),
        (dict(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "'yarn' is not supported"),
    ],
)
def test_models_that_compute_something_else_are_refused(change, says):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_hf({**ModelConfig(**SMALL).to_hf(), **change})
    assert says in str(caught.value)


def test_config_survives_the_trip_through_hugging_face_form():
    config = ModelConfig(**{**SMALL, "arch": "qwen3", "rope_theta": 1e6, "bos_id": 1})
    assert ModelConfig.from_hf(config.to_hf()) == config
