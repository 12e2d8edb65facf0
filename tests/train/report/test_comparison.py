"""Several runs on one page."""

import re

from tests.helpers.run_files import ParsedPage


def test_several_runs_are_compared_by_what_can_be_compared(three_runs, report, tmp_path):
    out = report(f"runs=[{three_runs[0]},{three_runs[1]}]")
    assert f"written: {tmp_path / 'compare.html'}" in out
    text = (tmp_path / "compare.html").read_text()
    seen = ParsedPage(text)
    assert "losses per token may be compared, too" in seen.text
    assert "different text" not in seen.text
    assert seen.data["x"] == "tokens"
    assert [run["name"] for run in seen.data["runs"]] == ["a", "b"]
    assert re.findall(r'<td class="number best">([\d.,]+)', text) == ["0.5000", "0.5000", "1.0000"]
    differences = text[text.index("What was set differently") :]
    assert "optim.lr" in differences
    assert "train.max_steps" not in differences
    assert "facts.n" not in differences
    report(f"runs=[{three_runs[0]},{three_runs[2]}]", f"out={tmp_path / 'other.html'}")
    seen = ParsedPage((tmp_path / "other.html").read_text())
    assert seen.data["comparable"] is False
    assert "Bits per byte do not" in seen.text
    assert "validated on different text" in seen.text
