"""Samples from a checkpoint: repeatable, within the context, and without effect on training."""

from dataclasses import replace

import pytest
import torch

from slm.model.config import ModelConfig
from slm.model.generate import continue_many, generate, generate_many
from slm.model.transformer import LanguageModel

SHAPE = ModelConfig(vocab_size=64, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=16)


@pytest.fixture
def model():
    torch.manual_seed(3)
    model = LanguageModel(SHAPE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_temperature_zero_takes_the_likeliest_token(model):
    found = generate(model, [5], max_tokens=6, temperature=0)
    ids = [5]
    for _ in range(6):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert found == ids[1:]


def test_a_seed_gives_the_same_text_and_leaves_the_training_random_state_alone(model):
    state = torch.get_rng_state()
    one = generate(model, [5, 6], max_tokens=10, seed=1)
    assert generate(model, [5, 6], max_tokens=10, seed=1) == one
    assert generate(model, [5, 6], max_tokens=10, seed=2) != one
    assert torch.equal(torch.get_rng_state(), state)


def test_it_ends_with_a_stop_token_or_the_context(model):
    free = generate(model, [5], max_tokens=8, temperature=0)
    stop = free[3]
    assert generate(model, [5], max_tokens=8, temperature=0, stop_ids=(stop,)) == free[: free.index(stop)]
    assert len(generate(model, list(range(40)), max_tokens=99)) == 1
    assert len(generate(model, list(range(10)), max_tokens=99)) == 6


def test_there_must_be_a_token_to_start_from(model):
    with pytest.raises(ValueError, match="a token to start from"):
        generate(model, [], max_tokens=1)


def test_many_texts_at_once_are_as_likely_as_one_by_one(model):
    many = generate_many(model, 5, 400, max_tokens=2, top_k=64, temperature=1.0, seed=1)
    assert generate_many(model, 5, 400, max_tokens=2, top_k=64, temperature=1.0, seed=1) == many
    with torch.no_grad():
        likely_V = model(torch.tensor([[5]]))[0, -1].softmax(-1)
        first = [text[0] for text in many]
        after_V = model(torch.tensor([[5, first[0]]]))[0, -1].softmax(-1)
    counts_V = torch.bincount(torch.tensor(first), minlength=64) / len(many)
    assert (counts_V - likely_V).abs().max() < 0.08
    assert after_V[many[0][1]] > 0  # the second token follows the first one's cache
    stopped = generate_many(model, 5, 50, max_tokens=15, temperature=1.0, stop_id=first[0])
    assert all(first[0] not in text for text in stopped)
    assert min(map(len, stopped)) < 15
    assert len(generate_many(model, 5, 1, max_tokens=99)[0]) == SHAPE.seq_len - 1


SHAPES = {
    "llama": {},
    "sliding window": {"arch": "gemma3", "sliding_window": 3, "n_layers": 6},
    "soft-caps": {"arch": "gemma2", "sliding_window": 3, "attention_cap": 4.0, "logit_cap": 9.0},
    "short convolution": {"arch": "lfm2", "conv_layers": (True, False, True), "n_layers": 3},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_several_prompts_are_continued_together_as_one_by_one(kind):
    model = random_model(kind)
    chance = torch.Generator().manual_seed(5)
    prompts = [torch.randint(64, (length,), generator=chance).tolist() for length in (1, 2, 7, 12, 4)]
    alone = [generate(model, each, max_tokens=9, temperature=0) for each in prompts]
    assert continue_many(model, prompts, [9] * 5) == alone  # the fourth ends with the context, of 16
    assert [len(each) for each in alone] == [9, 9, 9, 4, 9]
    stop = alone[2][3]
    cut = [each[: each.index(stop) + 1] if stop in each else each for each in alone]
    assert continue_many(model, prompts, [9] * 5, stop_ids={stop}) == cut
    same = [ids for ids in prompts if len(ids) == 7] * 2  # no padding
    assert continue_many(model, same, [9, 4]) == [alone[2], alone[2][:4]]
    assert continue_many(model, prompts, [0, 1, 2, 3, 4]) == [each[:n] for n, each in enumerate(alone)]


def random_model(kind: str) -> LanguageModel:
    torch.manual_seed(3)
    model = LanguageModel(replace(SHAPE, **SHAPES[kind])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model
