"""Each architecture computes what transformers' class does, forward and backward, and goes both ways on the disk."""

import itertools

import gguf
import pytest
import torch
import torch.nn.functional as F

from slm.data.errors import UserError
from slm.model.architectures import OLMO3, TRAITS, known_classes
from slm.model.checkpoint import load_model, save_model
from slm.model.config import ModelConfig
from slm.model.generate import continue_many, generate
from slm.model.transformer import LanguageModel, local_starts

SMALL = dict(
    vocab_size=96, n_layers=3, d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, ffn_dim=96, seq_len=64, eos_id=0
)
GEMMA = dict(arch="gemma3", n_kv_heads=1, head_dim=24, rope_theta=1e6, norm_eps=1e-6)
GEMMA2 = dict(arch="gemma2", head_dim=24, sliding_window=8, norm_eps=1e-6)
MULTIPLIED = dict(embedding_multiplier=12.0, attention_multiplier=0.1, residual_multiplier=0.22, logits_scaling=8.0)
LLAMA3 = dict(
    rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LONG_ROPE = dict(
    rope_type="longrope", short_factor=[1.0, 1.02, 1.1, 1.3, 1.8, 2.5], long_factor=[1.0, 1.5, 4.0, 11.0, 30.0, 60.0]
)
MODELS = {
    "llama": dict(arch="llama", tie_embeddings=False),
    "qwen2": dict(arch="qwen2", tie_embeddings=False, rope_theta=1e6),
    "qwen2-tied": dict(arch="qwen2", tie_embeddings=True, n_kv_heads=4, head_dim=24),
    "qwen3": dict(arch="qwen3", tie_embeddings=True),
    "gemma3": dict(**GEMMA, sliding_window=8, local_layers=(True, False, True)),
    "gemma3-local": dict(**GEMMA, sliding_window=5, query_scalar=40),  # the default layers: of three, all local
    "gemma3-global": dict(**GEMMA, tie_embeddings=False),
    "gemma2": dict(**GEMMA2, n_heads=8, query_scalar=144, attention_cap=2.0, logit_cap=1.5),  # caps that bend all
    "gemma2-usual": dict(**GEMMA2),  # caps, layers and the root of head_dim as in the published ones
    "gemma2-local": dict(**GEMMA2, local_layers=(True, True, False), rope_theta=5e4),
    "gemma2-uncapped": dict(**GEMMA2, attention_cap=0.0, logit_cap=0.0),
    "lfm2": dict(arch="lfm2", rope_theta=1e6),
    "smollm3": dict(arch="smollm3", n_layers=5, rope_theta=2e6, norm_eps=1e-6),
    "smollm3-others": dict(arch="smollm3", rope_layers=(False, True, True), tie_embeddings=False),
    "granite": dict(arch="granite", **MULTIPLIED, tie_embeddings=False),
    "granite-plain": dict(arch="granite", head_dim=16),
    "exaone4": dict(arch="exaone4", rope_theta=1e6, rope_scaling=LLAMA3),
    "olmo2": dict(arch="olmo2", rope_theta=5e5, tie_embeddings=False),
    "olmo3": dict(arch="olmo2", n_layers=5, rope_theta=5e5, sliding_window=8, rope_scaling=YARN, tie_embeddings=False),
    "olmo3-others": dict(arch="olmo2", rope_theta=1e4, sliding_window=5, local_layers=(False, True, True)),
    "phi3": dict(arch="phi3", tie_embeddings=False),
    "phi3-part": dict(arch="phi3", rotary_dim=12),
    # Texts of 32 tokens in these tests: within the original context, and beyond it.
    "phi3-short": dict(arch="phi3", rotary_dim=12, rope_scaling=LONG_ROPE | dict(original_max_position_embeddings=32)),
    "phi3-long": dict(arch="phi3", rotary_dim=12, rope_scaling=LONG_ROPE | dict(original_max_position_embeddings=31)),
    "phi3-grown": dict(
        arch="phi3", rotary_dim=12, rope_scaling=LONG_ROPE | dict(original_max_position_embeddings=16, factor=9.0)
    ),
    "lfm2-untied": dict(arch="lfm2", conv_layers=(False, True, True), conv_width=4, tie_embeddings=False),
}


def random_model(name: str) -> LanguageModel:
    """A model with no weight near its resting value, so that every term shows in the logits."""
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(**{**SMALL, **MODELS[name]})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def ids(rows: int = 2, length: int = 33) -> torch.Tensor:
    return torch.randint(0, SMALL["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(1))


def test_the_names_are_those_of_transformers_and_llama_cpp():
    import transformers

    for arch, traits in TRAITS.items():
        assert arch in gguf.MODEL_ARCH_NAMES.values()
        assert getattr(transformers, traits.hf_class).config_class.model_type == traits.hf_type
        assert traits.hf_class in known_classes()


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_transformers_and_the_checkpoint_goes_both_ways(name, tmp_path):
    from transformers import AutoModelForCausalLM

    model, tokens = random_model(name), ids()
    (tmp_path / "ours").mkdir()
    save_model(tmp_path / "ours", model)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    traits = model.config.traits
    assert type(theirs).__name__ == (OLMO3 if name.startswith("olmo3") else traits.hf_class)
    assert sum(p.numel() for p in theirs.parameters()) == model.config.n_params
    logits = theirs(tokens[:, :-1]).logits
    assert (model(tokens[:, :-1]) - logits).abs().max().item() < 1e-4

    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    expected = dict(theirs.named_parameters())
    assert expected.keys() == dict(model.named_parameters()).keys()
    for each, parameter in model.named_parameters():
        apart = (parameter.grad - expected[each].grad).norm().item()
        assert apart < 1e-4 * expected[each].grad.norm().item() + 1e-6, each

    theirs.save_pretrained(tmp_path / "theirs")
    again = load_model(tmp_path / "theirs")
    assert again.config == model.config
    for each, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[each], tensor), each


@pytest.mark.parametrize(
    "name", ["qwen2", "gemma2", "gemma3", "lfm2", "lfm2-untied", "smollm3", "granite", "olmo2", "olmo3", "phi3-part"]
)
def test_generation_with_a_cache_gives_the_logits_of_the_whole_sequence(name):
    model, tokens = random_model(name), ids(1, 20)
    with torch.no_grad():
        whole = model(tokens)
        cache = model.new_cache()
        ends = [0, 3, 7, 8, 9, 19, 20]  # up to the window of 8, across it, one at a time and many beyond it
        pieces = [model(tokens[:, a:b], cache) for a, b in itertools.pairwise(ends)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_a_long_rope_text_is_rotated_by_the_factors_of_the_length_that_it_may_come_to_have():
    model, tokens = random_model("phi3-long"), ids(1, 40)
    with torch.no_grad():
        whole = model(tokens)
        cache = model.new_cache(40)
        pieces = [model(tokens[:, a:b], cache) for a, b in itertools.pairwise([0, 3, 31, 32, 33, 39, 40])]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(model(tokens[:, :31]), whole[:, :31], atol=1e-2)
        cache = model.new_cache()
        torch.testing.assert_close(model(tokens[:, :31], cache), model(tokens[:, :31]))
        with pytest.raises(UserError, match="a text has grown beyond 31 tokens, where a LongRoPE model"):
            model(tokens[:, 31:32], cache)
    # Generation tells its cache the length, so that it takes the long factors from the first token on.
    assert len(generate(model, tokens[0, :20].tolist(), max_tokens=20, temperature=0)) == 20
    assert len(continue_many(model, [tokens[0, :20].tolist()], [20])[0]) == 20


@pytest.mark.parametrize(("name", "blockwise"), [("gemma3", False), ("gemma3", True), ("gemma2", False)])
def test_documents_and_sliding_windows_hide_what_each_of_them_hides(name, blockwise):
    """A packed row gives each document the logits that it has alone: windows end at a document's beginning."""
    model, tokens = random_model(name), ids(2, 33)
    for layer in model.model.layer_list():
        layer.self_attn.blockwise = blockwise  # the attention of a compiled model
    starts = torch.zeros(2, 33, dtype=torch.int32)
    starts[0, 20:], starts[1, 4:], starts[1, 31:] = 20, 4, 31
    with torch.no_grad():
        packed = model(tokens, starts_BT=starts)
        for row, begin, end in ((0, 0, 20), (0, 20, 33), (1, 0, 4), (1, 4, 31), (1, 31, 33)):
            alone = model(tokens[row : row + 1, begin:end])
            torch.testing.assert_close(packed[row : row + 1, begin:end], alone, atol=1e-4, rtol=1e-4)


def test_a_local_layer_sees_its_window_and_no_more():
    config = ModelConfig(**{**SMALL, **MODELS["gemma3-local"], "n_layers": 1})
    torch.manual_seed(0)
    model, tokens = LanguageModel(config).eval(), ids(1, 20)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 96
    with torch.no_grad():
        differs = (model(tokens) != model(changed)).any(-1)[0]
    assert differs.nonzero().flatten().tolist() == [7, 8, 9, 10, 11]  # itself and four after it
    assert local_starts(config, torch.Size((2, 5))) is None
    assert local_starts(config, torch.Size((1, 8))).tolist() == [[0, 0, 0, 0, 0, 1, 2, 3]]


def test_recomputing_a_layer_changes_no_gradient():
    model, tokens = random_model("gemma3").train(), ids()
    gradients = []
    for recompute in (False, True):
        model.gradient_checkpointing = recompute
        model.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_new_models_begin_with_gains_of_one_and_no_bias():
    for name in ("qwen2", "gemma3"):
        model = LanguageModel(ModelConfig(**{**SMALL, **MODELS[name]}))
        layer = model.model.layer_list()[0]
        assert layer.feedforward_norm.gain.tolist() == [1.0] * 64
        if name == "qwen2":
            assert layer.self_attn.k_proj.bias.tolist() == [0.0] * 32
        else:
            assert layer.self_attn.q_norm.weight.tolist() == [0.0] * 24
