"""Lengths of time as people type them."""

import pytest

from slm.data.errors import UserError
from slm.durations import seconds_of


def test_numbers_with_units():
    assert [seconds_of(text) for text in ("90s", "30m", "8h", "3d", "1h30m", "1.5m", "2d12h")] == [
        *(90, 1800, 28800, 259200, 5400, 90, 216000)
    ]


@pytest.mark.parametrize("text", ["", "8", "h", "8 h", "-1h", "0s", "1e3s", "30m1h", "1h1h", "5w", "8H", "1h 30m"])
def test_anything_else_is_one_clear_line(text):
    with pytest.raises(UserError, match="give a number and a unit, as in 90s, 30m, 8h, 1h30m or 3d") as caught:
        seconds_of(text, "budget")
    assert "\n" not in str(caught.value)
