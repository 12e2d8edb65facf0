"""The model computes what transformers computes, and a checkpoint goes both ways."""

import dataclasses
import functools

import pytest
import torch

from slm.data.errors import UserError
from slm.model.checkpoint import load_config, load_model, save_model
from slm.model.config import InitConfig, ModelConfig
from slm.model.transformer import LanguageModel

SMALL = dict(
    vocab_size=96, n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, ffn_dim=96, seq_len=64, eos_id=0
)
VARIANTS = [
    pytest.param(
        dict(arch=arch, n_kv_heads=kv, tie_embeddings=tied), id=f"{arch}-kv{kv}-{'tied' if tied else 'untied'}"
    )
    for arch in ("llama", "qwen3")
    for kv in (1, 2, 4)
    for tied in (True, False)
]


def random_model(**changes) -> LanguageModel:
    """A model with no weight near its resting value, so that every term shows in the logits."""
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def ids(rows: int = 2, length: int = 33) -> torch.Tensor:
    return torch.randint(0, SMALL["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("changes", VARIANTS)
def test_transformers_loads_our_checkpoint_and_computes_the_same(changes, tmp_path):
    from transformers import AutoModelForCausalLM

    model = random_model(**changes)
    save_model(tmp_path, model)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        difference = (model(ids()) - theirs(ids()).logits).abs().max().item()
    assert difference < 1e-4
    assert sum(p.numel() for p in theirs.parameters()) == model.config.n_params


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_directory_saved_by_transformers_loads_here(arch, tied, tmp_path):
    import transformers

    torch.manual_seed(2)
    kind = {"llama": "Llama", "qwen3": "Qwen3"}[arch]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=128,
        rope_theta=50_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    with torch.no_grad():
        assert (ours(ids()) - theirs(ids()).logits).abs().max().item() < 1e-4
    assert ours.config.n_params == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_generation_with_a_cache_gives_the_logits_of_the_whole_sequence(arch):
    model, tokens = random_model(arch=arch), ids(1, 20)
    with torch.no_grad():
        whole = model(tokens)
        cache = model.new_cache()
        pieces = [model(tokens[:, :7], cache), model(tokens[:, 7:8], cache), model(tokens[:, 8:], cache)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_no_position_sees_a_later_one():
    model, tokens = random_model(), ids(1, 20)
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % SMALL["vocab_size"]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :12], model(changed)[:, :12], atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_changes_memory_not_gradients():
    model, tokens = random_model().train(), ids()
    gradients = []
    for recompute in (False, True):
        model.gradient_checkpointing = recompute
        model.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_the_loss_is_the_mean_over_scored_targets():
    model, tokens = random_model(), ids()
    targets = tokens[:, 1:].clone()
    targets[:, ::2] = -100
    log_probs = model(tokens[:, :-1]).log_softmax(-1)
    scored = targets != -100
    expected = -log_probs[scored].gather(-1, targets[scored][:, None]).mean()
    torch.testing.assert_close(model.loss(tokens[:, :-1], targets), expected)


def test_a_truncated_file_and_a_missing_config_are_told(tmp_path):
    save_model(tmp_path, random_model())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="not a model directory"):
        load_config(tmp_path / "nowhere")


def test_new_weights_have_the_deviations_that_are_asked_for():
    shape = ModelConfig(
        arch="qwen3",
        vocab_size=512,
        n_layers=2,
        d_model=256,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        ffn_dim=512,
        seq_len=32,
        tie_embeddings=False,
    )

    def deviations(init: InitConfig) -> dict[str, float]:
        torch.manual_seed(1)
        return {name: p.std().item() for name, p in LanguageModel(shape, init).named_parameters() if p.ndim == 2}

    near = functools.partial(pytest.approx, rel=0.03)
    classic, layer = deviations(InitConfig()), "model.layers.1."
    for name in ("model.embed_tokens.weight", "lm_head.weight", f"{layer}mlp.gate_proj.weight"):
        assert classic[name] == near(0.02)
    for name in (f"{layer}mlp.down_proj.weight", f"{layer}self_attn.o_proj.weight"):
        assert classic[name] == near(0.01)
    init = InitConfig(embed_std=0.8, head_std=0.001, matrix_std=0.0, output_gain=0.0, qk_gain=1.2)
    muon = deviations(init)
    assert muon["model.embed_tokens.weight"] == near(0.8)
    assert muon["lm_head.weight"] == near(0.001)
    assert muon[f"{layer}mlp.up_proj.weight"] == near(0.7 / 16)
    assert muon[f"{layer}mlp.down_proj.weight"] == muon[f"{layer}self_attn.o_proj.weight"] == 0
    gains = LanguageModel(shape, init).model.layers[0]
    assert gains.self_attn.q_norm.weight.tolist() == pytest.approx([1.2] * 64)
    assert gains.input_layernorm.weight.tolist() == [1.0] * 256
    tied = LanguageModel(dataclasses.replace(shape, tie_embeddings=True), InitConfig(embed_std=0.8, tied_std=0.03))
    assert tied.model.embed_tokens.weight.std().item() == near(0.03)
