"""A part of the soak of tests/soak/kill.py, which takes minutes whole."""

import pytest

from tests.soak.kill import soak


@pytest.mark.slow
def test_killed_again_and_again_it_comes_out_the_same_to_the_bit(tmp_path):
    tally = soak(tmp_path, kills=5, inside=3, seed=4, seconds=240)
    assert tally.runs >= 1
    assert tally.kills >= 4
    assert tally.inside >= 1
    assert tally.resumes >= 2
