"""What each preset states about itself is what its model has."""

import pytest
import torch

from slm.configuration import build, choices, load_config
from slm.model.transformer import LanguageModel
from slm.train.config import RunConfig

GPT2_IDS = 50257


def preset(name: str) -> tuple[RunConfig, object]:
    config = build(RunConfig, load_config("train", [f"preset={name}"]))
    ids = config.tokenizer.vocab_size if config.tokenizer.kind == "bpe" else GPT2_IDS
    return config, config.model.model_config(vocab_size=ids, seq_len=config.train.seq_len, eos_id=0)


@pytest.mark.parametrize("name", choices("preset"))
def test_stated_parameters_flops_and_memory_are_the_models(name):
    config, shape = preset(name)
    with torch.device("meta"):
        model = LanguageModel(shape)
    assert config.facts["n_params"] == sum(p.numel() for p in model.parameters())
    assert config.facts["training_state_bytes"] == 16 * config.facts["n_params"]
    assert config.facts["flops_per_token"] == shape.flops_per_token()


@pytest.mark.parametrize("name", ["tiny", "10m"])
def test_the_flops_formula_counts_what_torch_counts(name):
    """Torch's own counter over a real step. It counts attention's whole square, the formula its causal half."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    _, shape = preset(name)
    model = LanguageModel(shape)
    tokens = 128
    ids = torch.randint(0, shape.vocab_size, (1, tokens + 1))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the flash kernel is not counted
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
    products = 6 * shape.n_matmul_params
    attention = shape.flops_per_token(tokens) - products
    assert counter.get_total_flops() / tokens == products + 2 * attention


def test_the_sizes_are_what_the_names_say():
    sizes = {name: preset(name)[0].facts["n_params"] / 1e6 for name in choices("preset")}
    for name, expected in {"tiny": 3.4, "10m": 13.6, "50m": 50, "125m": 125, "350m": 355}.items():
        assert abs(sizes[name] / expected - 1) < 0.08, (name, sizes[name])


def test_the_largest_recomputes_its_layers():
    assert preset("350m")[0].train.gradient_checkpointing
