"""The traced decoder computes what the model does, prompt and decode steps, padded and not, of every architecture with
attention in all layers. Nothing is traced here."""

import numpy as np
import pytest
import torch

from slm.export.interchange import make
from slm.export.interchange.decoder import CachedDecoder
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from tests.helpers import tiny_checkpoint
from tests.slm.model.test_architectures import LONG_ROPE, MODELS, SMALL

ATTENTION = {name: shape for name, shape in MODELS.items() if shape["arch"] != "lfm2"}


def model_of(**shape) -> LanguageModel:
    model = LanguageModel(ModelConfig(**{**SMALL, **shape})).eval()
    tiny_checkpoint.randomize(model)
    return model


def program(model: LanguageModel) -> make.Run:
    """The decoder without tracing, with inputs and outputs as a file has them."""
    decoder = CachedDecoder(model)

    def run(inputs):
        ids, mask, positions, *caches = map(torch.from_numpy, inputs)
        with torch.no_grad():
            logits, present = decoder(ids, mask, positions, list(zip(caches[::2], caches[1::2], strict=True)))
        return [each.numpy() for each in (logits, *(part for pair in present for part in pair))]

    return run


@pytest.mark.parametrize("name", [each for each in ATTENTION if "rope_scaling" not in MODELS[each] or each == "olmo3"])
def test_it_computes_what_the_model_does(name):
    model = model_of(**MODELS[name])
    ids_BT = np.random.default_rng(3).integers(0, 96, (2, 40))
    found = make.compare(model, program(model), ids_BT)
    assert found["max_abs"] <= found["allowed"]
    assert found["same_top"] == 1


def test_a_changed_window_or_cap_is_seen():
    """What the comparison would miss, it would not prove."""
    ids_BT = np.random.default_rng(3).integers(0, 96, (2, 40))
    shape = MODELS["gemma2"]
    for changed in (dict(sliding_window=9), dict(attention_cap=2.1), dict(logit_cap=1.6), dict(query_scalar=150)):
        found = make.compare(model_of(**shape), program(model_of(**{**shape, **changed})), ids_BT)
        assert found["max_abs"] > found["allowed"]


@pytest.mark.parametrize("original", [16, 40])
def test_long_rope_has_the_factors_of_the_texts_length(original):
    model = model_of(
        arch="phi3", rotary_dim=12, rope_scaling=LONG_ROPE | {"original_max_position_embeddings": original}
    )
    ids_BT = np.random.default_rng(3).integers(0, 96, (2, 24))
    empty = np.zeros((2, 2, 0, 16), np.float32)
    positions_BT = np.arange(24)[None].repeat(2, 0)
    logits, *_ = program(model)([ids_BT, np.ones_like(ids_BT), positions_BT, *[empty] * 6])
    with torch.no_grad():
        assert np.abs(logits - model(torch.from_numpy(ids_BT)).numpy()).max() < 1e-4
