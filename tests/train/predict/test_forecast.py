"""The end of a run, foreseen from curves whose end is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from slm.configuration import build, load_config
from slm.train.config import RunConfig
from slm.train.optim.schedule import learning_rate
from slm.train.predict import records
from slm.train.predict.forecast import UNDECAYED, Forecast, make_forecast
from slm.train.predict.law import fit

TOKENS, N = 2_000_000, 2_359_296
LAW = fit(records.load())
OPTIM = build(RunConfig, load_config("train", ["preset=tiny"])).optim


def loss(tokens: float, share: float, level: float, steepness: float) -> float:
    """Nats per token of a run that obeys the forecast's own assumption."""
    expected = LAW.predict(N, tokens * 3.5) * (1 + UNDECAYED * share)
    return level * expected**steepness


def curve(forecast: Forecast, until: float, level: float, steepness: float, noise: float = 0.0, n: int = 200) -> None:
    chance = np.random.default_rng(3)
    for tokens in np.linspace(TOKENS / n, until * TOKENS, max(2, int(n * until))):
        share = learning_rate(OPTIM, 1, tokens / TOKENS) / OPTIM.lr
        forecast.training(tokens, share, loss(tokens, share, level, steepness) * (1 + noise * chance.standard_normal()))


@pytest.mark.parametrize(("level", "steepness"), [(2.4, 1.0), (1.5, 1.0), (1.2, 2.0)])
def test_a_curve_of_any_level_and_steepness_is_continued(level, steepness):
    end = loss(TOKENS, 0.0, level, steepness)
    before = math.inf
    for until in (0.3, 0.6, 0.95):
        forecast = Forecast(LAW, N)
        curve(forecast, until, level, steepness, noise=0.01)
        outlook = forecast.at_end(TOKENS)
        assert outlook is not None
        assert outlook.unit == "nats per token"
        assert outlook.value == pytest.approx(end, rel=0.05)
        assert outlook.low < end * 1.01
        assert outlook.high > end * 0.99
        assert (outlook.high - outlook.low) / outlook.value < before
        before = (outlook.high - outlook.low) / outlook.value


def test_the_size_is_that_of_the_models_own_layers():
    def size(*words):
        forecast = make_forecast(build(RunConfig, load_config("train", ["preset=tiny", "model.n_layers=2", *words])))
        assert isinstance(forecast, Forecast)
        return forecast._n

    width = build(RunConfig, load_config("train", ["preset=tiny"])).model.d_model
    plain = size()
    # A convolution has four matrices of width x width where these heads' attention has three.
    assert size("model.arch=lfm2") == plain + width**2


def test_a_validation_makes_it_bits_per_byte():
    forecast = Forecast(LAW, N)
    curve(forecast, 0.5, 2.4, 1.0)
    nats = loss(0.5 * TOKENS, learning_rate(OPTIM, 1, 0.5) / OPTIM.lr, 2.4, 1.0)
    forecast.validation(0.5 * TOKENS, nats, nats / math.log(2) / 3.5)
    outlook = forecast.at_end(TOKENS)
    assert outlook is not None
    assert outlook.unit == "bits per byte"
    assert outlook.value == pytest.approx(loss(TOKENS, 0.0, 2.4, 1.0) / math.log(2) / 3.5, rel=0.01)
    assert set(outlook.record()) == {f"forecast_bits_per_byte{end}" for end in ("", "_low", "_high")}
    assert "bits per byte" in outlook.text()


def test_a_validation_that_was_not_finite_is_passed_over():
    """It stands as null in the metrics, which a start that resumes reads again."""
    forecast = Forecast(LAW, N)
    curve(forecast, 0.5, 2.4, 1.0)
    forecast.validation(0.5 * TOKENS, None, None)
    outlook = forecast.at_end(TOKENS)
    assert outlook is not None
    assert outlook.unit == "nats per token"


def test_too_short_a_curve_gives_none_and_a_rewound_run_forgets():
    forecast = Forecast(LAW, N)
    curve(forecast, 0.1, 2.4, 1.0)
    assert forecast.at_end(TOKENS) is None
    curve(forecast, 0.4, 2.4, 1.0)
    first = forecast.at_end(TOKENS)
    forecast.training(0.3 * TOKENS, 1.0, loss(0.3 * TOKENS, 1.0, 2.4, 1.0))
    assert len(forecast._training) == 60
    assert forecast.at_end(TOKENS) is not None
    assert first is not None


def test_runs_that_the_law_does_not_know_have_none():
    config = build(RunConfig, load_config("train", ["preset=tiny"]))
    assert make_forecast(config) is not None
    assert make_forecast(replace(config, init_from="model")) is None
    assert make_forecast(replace(config, optim=replace(config.optim, min_lr_ratio=0.5))) is None


def test_what_the_end_of_a_run_still_gains_is_in_its_forecast():
    plain, calibrated = Forecast(LAW, N), Forecast(LAW, N, closing=0.99)
    for forecast in (plain, calibrated):
        curve(forecast, 0.5, 2.4, 1.0)
    before, after = plain.at_end(TOKENS), calibrated.at_end(TOKENS)
    assert before is not None
    assert after is not None
    assert (after.value, after.low) == (pytest.approx(0.99 * before.value), pytest.approx(0.99 * before.low))

    config = build(RunConfig, load_config("train", ["preset=tiny", "tokenizer.vocab_size=49152"]))
    config = replace(config, facts={"predicted": {"epochs": 5.0, "tokens": TOKENS}})
    assert config.calibrates_head
    of_run, without = (
        make_forecast(config),
        make_forecast(replace(config, train=replace(config.train, calibrate_head=False))),
    )
    assert isinstance(of_run, Forecast)
    assert isinstance(without, Forecast)
    assert of_run._closing < without._closing == 1.0
