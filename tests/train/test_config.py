"""Options of a training run are checked where they are made, and saved ones are read again."""

import pytest
from omegaconf import OmegaConf

from slm.configuration import build, load_config, to_yaml
from slm.data.errors import UserError
from slm.train import autobatch
from slm.train.config import RunConfig, TrainConfig
from slm.train.resolve import resolve


def test_a_step_is_divided_evenly_or_not_at_all():
    config = TrainConfig(max_steps=1, seq_len=8, micro_batch=12, grad_accum=6)
    config.check_processes(3)
    with pytest.raises(UserError, match=r"use train\.micro_batch=6 train\.grad_accum=12 \(the same batch\)"):
        config.check_processes(4)
    with pytest.raises(UserError, match=r"use train\.grad_accum=8"):
        TrainConfig(max_steps=1, seq_len=8, micro_batch=1, grad_accum=6).check_processes(4)


def test_a_config_that_was_saved_is_read_again():
    config = resolve(["preset=tiny", "data=local", "data.files=[a.txt]"], autobatch.choose_micro_batch)
    saved = OmegaConf.to_container(OmegaConf.create(to_yaml(config)))
    assert build(RunConfig, saved) == config
    composed = load_config("train", ["preset=tiny", "data=local", "data.files=[a.txt]"])
    assert saved | {"name": None} == {
        key: value | composed[key] if isinstance(value, dict) else composed[key] for key, value in saved.items()
    }, "the composed keys and values, and defaults of others"


@pytest.mark.parametrize(
    ("words", "bits"),
    [
        ([], 8),
        (["init_from=somewhere"], 16),
        (["train.qat=q4_0"], 16),
        (["train.precision=f32"], 32),
        (["init_from=somewhere", "train.precision=f32"], 32),
    ],
)
def test_new_models_alone_train_with_products_of_8_bit_integers(words, bits):
    words = ["preset=tiny", "data=local", "data.files=[a.txt]", *words]
    assert build(RunConfig, load_config("train", words)).kernel_bits == bits
