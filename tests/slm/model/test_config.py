"""The shapes that a model may have, and the way to Hugging Face's config.json and back."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.model.architectures import LEFT_OUT
from slm.model.config import ModelConfig
from slm.model.rope import attention_factor, rope_frequencies

LONG_ROPE = {
    "type": "longrope", "original_max_position_embeddings": 32, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6,
}  # fmt: skip
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
        (dict(arch="qwen3", conv_layers=(True, False)), "a qwen3 model has no short convolutions"),
        (dict(arch="lfm2", conv_layers=(True, False, True)), "names 3 layers, the model has 2"),
        (dict(arch="lfm2", conv_layers=(True, True)), "leaves no layer with attention"),
        (dict(arch="lfm2", conv_width=1), "conv_width must be at least 2"),
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
            "Olmo3ForCausalLM and Phi3ForCausalLM. For others, llama.cpp's",
        ),
        (dict(architectures=["Gemma3ForConditionalGeneration"]), "Gemma3ForConditionalGeneration is not supported"),
        (dict(use_sliding_window=True), "use_sliding_window=true"),
        (dict(hidden_act="gelu"), "hidden_act=gelu in config.json is not supported: only silu is"),
        (dict(attention_bias=True), "attention_bias=true"),
        (dict(conv_bias=True), "conv_bias=true"),
        (dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4}), "'dynamic' is not supported"),
        (dict(rope_scaling=LONG_ROPE, rope_parameters=None), "'longrope' in a llama model is not supported; of type"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor=0.5 in config.json is not supported"),
        (dict(vocab_size="many"), "vocab_size='many' in config.json is no number"),
        (dict(num_hidden_layers="2.5"), "num_hidden_layers='2.5' in config.json is no whole number"),
        (
            dict(max_position_embeddings=1e30),
            "max_position_embeddings=1e+30 in config.json is more than a GGUF file can",
        ),
        (dict(quantization={"group_size": 64, "bits": 4}), "the checkpoint is quantized by MLX"),
        (dict(hidden_size=[64]), "hidden_size=[64] in config.json is no number"),
        (dict(quantization_config={"quant_method": "awq"}), "the checkpoint is quantized by awq"),
        (dict(quantization_config="awq"), "the checkpoint is quantized by awq"),
        (dict(rope_parameters=[1, 2]), "rope_parameters in config.json is a list and no object"),
        (dict(rope_parameters=None, rope_scaling="linear"), "rope_scaling in config.json is a text and no object"),
        (dict(rope_parameters={"rope_type": ["linear"]}), "rope scaling of type ['linear'] is not supported"),
        (dict(rope_parameters=None, rope_theta=-5.0), "rope_theta=-5.0 in config.json must be above 0"),
        (dict(rope_parameters=None, rope_theta=float("inf")), "rope_theta=inf in config.json is no number"),
        (dict(rms_norm_eps=-1e-5), "rms_norm_eps=-1e-05 in config.json must be above 0"),
        (dict(num_attention_heads=0, head_dim=None), "num_attention_heads=0 in config.json must be above 0"),
        (dict(tie_word_embeddings="perhaps"), "tie_word_embeddings='perhaps' in config.json is neither true nor false"),
        (dict(attention_bias="true"), "attention_bias=true"),
        (dict(eos_token_id=["</s>"]), "eos_token_id='</s>' in config.json is no number"),
        (dict(architectures={"a": 1}), "architecture None is not supported"),
    ],
)
def test_models_that_compute_something_else_are_refused(change, says):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_hf({**ModelConfig(**SMALL).to_hf(), **change})
    assert says in str(caught.value)


def test_numbers_as_text_are_numbers():
    config = ModelConfig(**SMALL)
    text = {key: str(value) for key, value in config.to_hf().items() if type(value) in (int, float)}
    assert ModelConfig.from_hf(config.to_hf() | text) == config


@pytest.mark.parametrize("held", [[], "text", 3, None])
def test_a_config_that_is_no_object_is_refused(held):
    with pytest.raises(UserError, match=r"config\.json holds .* and no object with a model's shape"):
        ModelConfig.from_hf(held)


@pytest.mark.parametrize("key", ["num_attention_heads", "max_position_embeddings", "hidden_size", "vocab_size"])
def test_a_null_is_as_if_the_key_were_not_there(key):
    with pytest.raises(KeyError, match=key):  # which loading names, with the file
        ModelConfig.from_hf(ModelConfig(**SMALL).to_hf() | {key: None})


def test_other_ways_to_write_the_same():
    config = ModelConfig(**SMALL, tie_embeddings=False)
    same = {
        "tie_word_embeddings": "False",
        "attention_bias": "false",
        "mlp_bias": 0,
        "architectures": "LlamaForCausalLM",
    }
    assert ModelConfig.from_hf(config.to_hf() | same | {"eos_token_id": ["0", 7]}) == config
    assert ModelConfig.from_hf(config.to_hf() | {"tie_word_embeddings": None, "eos_token_id": 0.0}) == config
    assert ModelConfig.from_hf(config.to_hf() | {"eos_token_id": []}).eos_id is None


def test_a_mistral_is_a_llama_as_far_as_its_window():
    config = ModelConfig(**SMALL)
    mistral = config.to_hf() | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    assert ModelConfig.from_hf(mistral | {"sliding_window": None}) == config
    assert ModelConfig.from_hf(mistral | {"sliding_window": 16}) == replace(config, seq_len=16)
    assert ModelConfig.from_hf(mistral | {"sliding_window": 1 << 20}) == config


@pytest.mark.parametrize(
    "change",
    [
        dict(arch="qwen3", rope_theta=1e6, bos_id=1),
        dict(arch="qwen2", tie_embeddings=False),
        dict(arch="gemma3", sliding_window=16, local_layers=(False, True), local_rope_theta=5e3, query_scalar=24.0),
        dict(arch="gemma3", sliding_window=16),
        dict(arch="lfm2", conv_width=4),
        dict(arch="lfm2", conv_layers=(False, True), tie_embeddings=False),
        dict(arch="gemma3", query_scalar=16.0),
        dict(arch="phi3"),
        dict(arch="phi3", rotary_dim=12, tie_embeddings=False),
        dict(arch="phi3", rotary_dim=12, rope_scaling=LONG_ROPE),
        dict(arch="phi3", rotary_dim=12, rope_scaling=LONG_ROPE | {"factor": 32.0}),
        dict(arch="olmo2", rope_theta=5e5),
        dict(arch="olmo2", sliding_window=16, local_layers=(False, True), rope_theta=5e5),
        dict(arch="olmo2", n_layers=5, sliding_window=16, rope_scaling=dict(rope_type="yarn", factor=4.0)),
        dict(arch="gemma2"),
        dict(arch="gemma2", sliding_window=16, query_scalar=24.0, rope_theta=5e4),
        dict(arch="gemma2", local_layers=(False, True), sliding_window=16, attention_cap=20.0, logit_cap=10.0),
        dict(arch="gemma2", attention_cap=0.0, logit_cap=0.0),
    ],
)
def test_config_survives_the_trip_through_hugging_face_form(change):
    config = ModelConfig(**{**SMALL, **change})
    assert ModelConfig.from_hf(config.to_hf()) == config


GEMMA_270M = {
    "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
    "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": [1, 106], "final_logit_softcapping": None,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 18,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512, "use_bidirectional_attention": False,
    "vocab_size": 262144,
}  # fmt: skip


def test_a_gemma_config_as_transformers_4_wrote_it():
    config = ModelConfig.from_hf(GEMMA_270M)
    assert config.tie_embeddings  # which the file leaves to the class
    assert (config.rope_theta, config.local_rope_theta, config.sliding_window) == (1e6, 1e4, 512)
    assert [layer for layer in range(18) if not config.is_local(layer)] == [5, 11, 17]
    assert config.query_scalar is None  # it is head_dim
    assert config.n_params == 268_098_176
    # 15 layers see 512 positions, or 256 on average of the first 512, and 3 all of them.
    assert config.flops_per_token(512) - 6 * config.n_matmul_params == 6 * 18 * 512 * 1024
    assert config.flops_per_token(2048) - 6 * config.n_matmul_params == 6 * (3 * 2048 + 15 * 896) * 1024
    # The head, too, counts only what is computed of it.
    left_out = 6 * (config.vocab_size - 2048) * config.d_model
    assert config.flops_per_token(512, 2048) == config.flops_per_token(512) - left_out
    assert config.flops_per_token(512, 1 << 20) == config.flops_per_token(512)


OLMO3_7B = {
    "architectures": ["Olmo3ForCausalLM"], "attention_bias": False, "bos_token_id": 100257, "eos_token_id": 100265,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8, "max_position_embeddings": 65536,
    "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "rms_norm_eps": 1e-06, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False,
    "rope_scaling": {
        "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
        "original_max_position_embeddings": 8192, "rope_type": "yarn",
    },
    "vocab_size": 100278,
}  # fmt: skip


def test_an_olmo_3_config_as_transformers_4_wrote_it():
    config = ModelConfig.from_hf(OLMO3_7B)
    assert (config.arch, config.sliding_window, config.rope_theta) == ("olmo2", 4096, 5e5)
    assert config.rope_scaling == {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert [layer for layer in range(8) if not config.is_local(layer)] == [3, 7]
    assert rope_frequencies(config, local=True)[-1] > 4 * rope_frequencies(config)[-1]  # local layers are not scaled
    without = {key: each for key, each in OLMO3_7B.items() if key != "layer_types"}
    assert ModelConfig.from_hf(without) == config
    two = ModelConfig.from_hf(OLMO3_7B | {"architectures": ["Olmo2ForCausalLM"]})  # whatever windows the file names
    assert (two.sliding_window, two.to_hf()["architectures"]) == (None, ["Olmo2ForCausalLM"])
    bases = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(UserError, match=r"rope_theta=10000\.0 in local layers and 500000 in the others is not"):
        ModelConfig.from_hf(OLMO3_7B | {"rope_parameters": bases})


PHI4_MINI = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 199999,
    "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
    "interpolate_factor": 1, "intermediate_size": 8192, "lm_head_bias": False, "max_position_embeddings": 131072,
    "mlp_bias": False, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "long_factor": [1 + each for each in range(48)], "short_factor": [1.0] * 48, "type": "longrope",
    },
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
}  # fmt: skip


def test_a_phi_4_mini_config_as_published():
    config = ModelConfig.from_hf(PHI4_MINI)
    assert (config.arch, config.head_dim, config.rotated, config.seq_len) == ("phi3", 128, 96, 131_072)
    assert round(config.n_params / 1e6) == 3836
    assert config.tie_embeddings
    scaling = config.rope_scaling
    assert (scaling["factor"], scaling["original_max_position_embeddings"]) == (32.0, 4096)
    assert attention_factor(scaling) == pytest.approx(1.1902380714)
    short, long = (rope_frequencies(config, length=length) for length in (4096, 4097))
    assert short[0] == long[0] == 1
    assert short[47] / long[47] == pytest.approx(48)
    config.check_runs_in_llama_cpp()
    # transformers 4 takes a LongRoPE of three keys alone.
    assert set(config.to_hf()["rope_scaling"]) == {"type", "short_factor", "long_factor"}


def test_a_phi_3_reads_as_far_as_its_window():
    shape = ModelConfig(**SMALL, arch="phi3").to_hf()
    assert ModelConfig.from_hf(shape | {"sliding_window": 40}).seq_len == 40
    assert ModelConfig.from_hf({key: each for key, each in shape.items() if key != "rms_norm_eps"}).norm_eps == 1e-5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            dict(rope_scaling={"type": "linear", "factor": 2.0}),
            "'linear' in a phi3 model is not supported; of type 'lo",
        ),
        (dict(partial_rotary_factor=1.0), "short_factor of the rope scaling in config.json has 48 numbers, and a head"),
        (dict(partial_rotary_factor=0.0), "model.rotary_dim=0 must be even, and between 2 and head_dim=128"),
    ],
)
def test_phis_with_other_positions_are_refused(change, says):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_hf(PHI4_MINI | change)
    assert says in str(caught.value)


GEMMA_2_2B = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip


def test_a_gemma_2_config_as_transformers_4_wrote_it():
    config = ModelConfig.from_hf(GEMMA_2_2B)
    assert config.tie_embeddings
    assert (config.attention_cap, config.logit_cap) == (50.0, 30.0)
    assert (config.rope_theta, config.local_rope_theta, config.sliding_window) == (1e4, 1e4, 4096)
    assert [config.is_local(layer) for layer in range(26)] == [True, False] * 13
    assert config.n_params == 2_614_341_888
    assert config.query_scalar is None
    config.check_runs_in_llama_cpp()
    less = {key: value for key, value in GEMMA_2_2B.items() if "softcapping" not in key}
    assert ModelConfig.from_hf(less) == config  # the class has them
    none = dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"))
    uncapped = ModelConfig.from_hf(GEMMA_2_2B | none)
    assert (uncapped.attention_cap, uncapped.logit_cap) == (0.0, 0.0)
    with pytest.raises(UserError, match=r"without soft-caps does not run in llama\.cpp"):
        uncapped.check_runs_in_llama_cpp()


def test_llama_cpp_divides_the_logits_of_a_gemma_2_by_what_its_layers_say():
    small = {**SMALL, "arch": "gemma2", "head_dim": 8}
    ModelConfig(**small).check_runs_in_llama_cpp()
    with pytest.raises(UserError, match=r"query_pre_attn_scalar=16 cannot be exported.*head_dim=8"):
        ModelConfig(**small, query_scalar=16.0).check_runs_in_llama_cpp()
    large = small | {"n_layers": 46}  # as the one of 27B, with d_model / n_heads
    ModelConfig(**large, query_scalar=16.0).check_runs_in_llama_cpp()
    with pytest.raises(UserError, match=r"query_pre_attn_scalar=8 cannot be exported.*46 layers\)=16"):
        ModelConfig(**large).check_runs_in_llama_cpp()


def test_shapes_that_llama_cpp_does_not_run_are_refused():
    ModelConfig(**{**SMALL, "arch": "gemma3", "query_scalar": 16.0}).check_runs_in_llama_cpp()  # the root of head_dim
    ModelConfig(**{**SMALL, "arch": "qwen2"}).check_runs_in_llama_cpp()
    with pytest.raises(UserError, match=r"query_pre_attn_scalar=8 cannot be exported.*head_dim=16"):
        ModelConfig(**{**SMALL, "arch": "gemma3", "query_scalar": 8.0}).check_runs_in_llama_cpp()
    with pytest.raises(UserError, match=r"n_heads\*head_dim=32, which is not its d_model=64"):
        ModelConfig(**{**SMALL, "arch": "qwen2", "head_dim": 8}).check_runs_in_llama_cpp()
    for changes in (dict(arch="olmo2"), dict(arch="granite", head_dim=8), dict(arch="smollm3", n_layers=4)):
        good = dict(olmo2=dict(tie_embeddings=False), granite=dict(head_dim=16), smollm3={})[changes["arch"]]
        ModelConfig(**{**SMALL, **changes, **good}).check_runs_in_llama_cpp()
        bad = dict(rope_layers=(False, True, True, True)) if changes["arch"] == "smollm3" else {}
        with pytest.raises(UserError, match=r"does not\s+run in llama\.cpp"):
            ModelConfig(**{**SMALL, **changes, **bad}).check_runs_in_llama_cpp()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(hidden_activation="gelu"), "hidden_activation=gelu in config.json is not supported"),
        (dict(final_logit_softcapping=30.0), "final_logit_softcapping=30.0"),
        (
            dict(rope_scaling={"rope_type": "yarn", "factor": 8.0}),
            "in a gemma3 model only rope scaling of type 'linear' is supported",
        ),
        (dict(layer_types=["sliding_attention"]), "names 1 layers, the model has 18"),
    ],
)
def test_gemmas_that_compute_something_else_are_refused(change, says):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_hf({**GEMMA_270M, **change})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(tie_word_embeddings=False), "a gemma2 model has no separate head"),
        (dict(attn_logit_softcapping=-1), "attn_logit_softcapping=-1 in config.json must be above 0"),
        (dict(rope_scaling={"rope_type": "linear", "factor": 8.0}), "rope scaling in a gemma2 model is not supported"),
        (dict(use_bidirectional_attention=True), "use_bidirectional_attention=True"),
        (dict(hidden_activation="gelu"), "hidden_activation=gelu in config.json is not supported"),
    ],
)
def test_gemma_2s_that_compute_something_else_are_refused(change, says):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_hf({**GEMMA_2_2B, **change})
    assert says in str(caught.value)


def test_soft_caps_are_gemma_2s():
    with pytest.raises(UserError, match="a gemma3 model has no logit_cap"):
        ModelConfig(**SMALL, arch="gemma3", logit_cap=30.0)
    with pytest.raises(UserError, match="attention_cap must be at least 0"):
        ModelConfig(**SMALL, arch="gemma2", attention_cap=-1.0)
    with pytest.raises(UserError, match="a gemma2 model has one rope_theta"):
        ModelConfig(**SMALL, arch="gemma2", local_rope_theta=5e4)


def test_new_lfm2_models_have_attention_in_every_other_layer_and_in_a_single_one():
    layers = {n: ModelConfig(**{**SMALL, "arch": "lfm2", "n_layers": n}).conv_layers for n in (1, 2, 5)}
    assert layers == {1: (False,), 2: (True, False), 5: (True, False, True, False, True)}


def test_an_older_lfm2_names_its_layers_with_attention_and_a_width_that_is_cut_to_two_thirds():
    """As LiquidAI's first files have it: LFM2-1.2B's feed-forward is 8,192 wide."""
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        **dict(vocab_size=65_536, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32),
        **dict(num_key_value_heads=8, max_position_embeddings=128_000, norm_eps=1e-5, rope_theta=1e6),
        **dict(block_ff_dim=12_288, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=256),
        **dict(full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3, conv_bias=False, tie_embedding=True),
    }
    shape = ModelConfig.from_hf(config)
    assert (shape.ffn_dim, shape.head_dim, shape.rope_theta, shape.tie_embeddings) == (8192, 64, 1e6, True)
    assert [layer for layer in range(16) if not shape.is_conv(layer)] == [2, 5, 8, 10, 12, 14]
    assert round(shape.n_params / 1e6) == 1170


def test_why_a_known_small_model_is_left_out_is_said():
    folder = Path(find_spec("transformers").origin).parent / "models" / "auto"
    named = "".join(path.read_text() for path in folder.glob("*.py"))
    for name, reason in LEFT_OUT.items():
        assert f'"{name}"' in named
        with pytest.raises(UserError, match=re.escape(f"architecture {name} is not supported ({reason}): training")):
            ModelConfig.from_hf({"architectures": [name]})
