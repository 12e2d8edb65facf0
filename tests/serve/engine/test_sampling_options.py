import pytest

from slm.data.errors import UserError
from slm.serve.engine.protocol import SamplingDefaults, SamplingParams
from slm.serve.engine.sampling_options import SamplingOptions


def test_the_options_count_first_then_the_file_then_our_own():
    file = {"general.sampling.temp": "0.600000", "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.1}
    found = SamplingOptions(top_k=5).over(file)
    assert found == SamplingDefaults(temperature=0.6, top_k=5, repeat_penalty=1.1)
    assert SamplingOptions().over({}) == SamplingDefaults(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
    assert found.params(temperature=None, top_p=1.0, seed=3) == SamplingParams(
        temperature=0.6, top_k=5, top_p=1.0, min_p=0.05, repeat_penalty=1.1, repeat_last_n=64, seed=3
    )


def test_values_of_a_file_that_make_no_sense_count_as_none():
    for value in (-1, "x", None, float("nan"), 1e9, "inf"):
        assert SamplingOptions().over({"general.sampling.temp": value}).temperature == 0.8
    # As 32-bit floats are read.
    assert SamplingOptions().over({"general.sampling.top_p": 0.8999999761581421}).top_p == 0.9


def test_a_seed_for_all_requests():
    # A file has none.
    assert SamplingOptions().over({"general.sampling.seed": 3}).seed is None
    defaults = SamplingOptions(seed=3).over({})
    assert (defaults.params().seed, defaults.params(seed=4).seed, defaults.params(seed=None).seed) == (3, 4, 3)
    with pytest.raises(UserError, match=r"serve.sampling.seed is -1"):
        SamplingOptions(seed=-1)


def test_options_out_of_range():
    with pytest.raises(UserError, match=r"serve.sampling.top_p is 2; it must be between 0 and 1"):
        SamplingOptions(top_p=2)
