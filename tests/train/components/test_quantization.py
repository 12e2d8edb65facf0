"""How long rounding at the end of a run will take, which a budget must leave time for."""

from types import SimpleNamespace

import pytest
import torch

from slm.model.transformer import LanguageModel
from slm.runs import CALIBRATION
from slm.train.components.quantization import Quantization, QuantizationOptions
from slm.train.config import TrainConfig
from tests.helpers import tiny_checkpoint as tiny


def quantization(folder, options: QuantizationOptions | None = None, **train) -> Quantization:
    """Of a run of 100 steps, a tenth of which are done."""
    model = LanguageModel(tiny.config(n_layers=1))
    tiny.randomize(model)
    (folder / CALIBRATION).write_text("The cat sat on the mat, and the dog ran up the hill. " * 200)
    run = SimpleNamespace(model=model, tokenizer=tiny.tokenizer(), root=folder)
    run.environment = SimpleNamespace(threads=1, kernels=None)
    run.state = SimpleNamespace(tokens=320, step=10)
    run.steps_left, run.fraction_done = lambda: 90.0, lambda: 0.1
    made = Quantization(TrainConfig(max_steps=100, seq_len=32, micro_batch=1, **train), options)
    made.attach(run)
    return made


def test_rounding_at_the_end_is_in_the_closing_time_and_changes_nothing_before(tmp_path):
    made = quantization(tmp_path, qat="q4_0")
    before = {name: tensor.clone() for name, tensor in made.run.model.state_dict().items()}
    seconds = made.closing_seconds()
    assert seconds > 0
    assert made.closing_seconds() == seconds  # measured once
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.run.model.state_dict().items())
    made.run.fraction_done = lambda: 1.0
    assert made.closing_seconds() == 0  # it is over, and must not seem to have time left


@pytest.mark.parametrize(("kind", "least"), [("q4_0", 5), ("tq2_0", 50)])
def test_weights_that_training_goes_on_with_take_none(tmp_path, kind, least):
    assert quantization(tmp_path, QuantizationOptions(least_steps=least), qat=kind).closing_seconds() == 0
