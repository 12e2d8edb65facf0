"""Numbers and lists as a report shows them."""

import math

from slm.train.report.formatting import count_text, fact_text, number_text, rounded, thin_out


def test_numbers_as_text():
    assert (number_text(None), number_text(1.23456), number_text(1.23456, 2)) == ("–", "1.2346", "1.23")
    assert [count_text(n) for n in (None, 0, 512_000, 2_886_144, 3e9, 1.5e12)] == [
        "–",
        "0",
        "512,000",
        "2.886M",
        "3B",
        "1.5T",
    ]
    assert (fact_text(1.23456789), fact_text(7), fact_text("x")) == ("1.2346", "7", "x")


def test_numbers_for_a_page_are_short_and_finite():
    assert rounded([1.23456789, 2.0, math.nan, math.inf, None], 3) == [1.23, 2, None, None, None]


def test_a_long_list_keeps_its_ends():
    assert thin_out([1, 2, 3], 3) == [1, 2, 3]
    assert thin_out(list(range(101)), 3) == [0, 50, 100]
    assert len(thin_out(list(range(999)), 200)) == 200
