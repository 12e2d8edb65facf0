import pytest

from slm.export.bench.front import fronts, on_front, recommendation
from slm.export.bench.page import draw, write_page
from slm.machine.record import machine_record
from slm.report import perplexity_text


def row(label: str, size: float, kl: float, decode: float | None = None, prefill: float | None = None) -> dict:
    return {
        "label": label, "type": label, "size_mib": size, "kl": kl, "decode_tok_s": decode, "prefill_tok_s": prefill,
    }  # fmt: skip


ROWS = [
    row("f32", 100, 0.0, 50, 90),
    row("q8_0", 27, 1e-4, 120, 99),
    row("q4_k_m", 16, 4e-3, 160, 80),
    row("q4_0", 15.5, 8e-3, 163, 95),
    row("worse", 17, 9e-3, 150, 70),
    row("q2_k", 10, 0.2, 210, 60),
]


def test_the_front_is_what_no_other_row_beats():
    assert on_front(ROWS, "size") == [True, True, True, True, False, True]
    assert on_front(ROWS, "prefill") == [True, True, False, False, False, False]
    assert fronts(ROWS)[1] == "size, decode, prefill"
    assert fronts(ROWS)[4] == ""
    assert fronts([row("f32", 9, 0.0), row("q8_0", 3, 1e-3)]) == ["size", "size"]


def test_the_recommendation_is_one_sentence_with_its_reason():
    # q4_0 decodes 2 % faster than q4_k_m, which is no difference, and loses twice as much.
    assert recommendation(ROWS).startswith("Take q4_k_m: of the types within 1 %")
    assert "160 tokens/s, 3.2 times the reference's, at 16% of its size and a KL of 0.004." in recommendation(ROWS)
    untimed = [each | {"decode_tok_s": None} for each in ROWS]
    assert recommendation(untimed).startswith("Take q4_0: it is the smallest file within 1 %")
    assert recommendation([ROWS[0], ROWS[5]]).startswith("Take q2_k: no type stays within 1 %")
    assert "no type but the reference" in recommendation(ROWS[:1])
    assert all(recommendation(rows).count(". ") == 0 for rows in (ROWS, untimed, [ROWS[0], ROWS[5]], ROWS[:1]))


def test_the_page_escapes_what_comes_from_a_run_and_needs_no_other_file(tmp_path):
    record = {"files": ROWS, "machine": machine_record(), "threads": 2, "recommendation": recommendation(ROWS)}
    write_page(tmp_path / "p.html", "a <b>", ["type", "x"], [["<i>", "1"]], "one\ntwo", record)
    page = (tmp_path / "p.html").read_text()
    assert "<title>a &lt;b&gt;</title>" in page
    assert "<td>&lt;i&gt;</td>" in page
    assert "one<br>two" in page
    assert "<script" not in page
    assert 'src="' not in page
    assert "<svg" in page


def test_plots_have_every_point_and_only_the_axes_that_were_measured():
    full, sizes = draw(ROWS), draw([each | {"decode_tok_s": None, "prefill_tok_s": None} for each in ROWS])
    assert full.count("<!-- q4_k_m -->") == 3
    assert sizes.count("<!-- q4_k_m -->") == 1
    assert draw(ROWS[:1]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.75184, "1.7518"), (99.98761, "99.9876"), (123.456, "123.5"), (1234.5, "1,230"), (45_678.9, "45,700"),
     (9.87654e8, "9.88e+08"), (float("inf"), "inf"), (float("nan"), "nan")],
)  # fmt: skip
def test_large_perplexities_have_three_figures(value, text):
    assert perplexity_text(value) == text
