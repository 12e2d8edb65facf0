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
    assert re.findall(r'<td class="number best">([\d.,]+)', text) == ["2,000", "0.5000", "0.5000", "1.0000"]
    differences = text[text.index("Options that differ") :]
    assert "optim.lr" in differences
    assert "train.max_steps" not in differences
    assert "facts.n" not in differences
    report(f"runs=[{three_runs[0]},{three_runs[2]}]", f"out={tmp_path / 'other.html'}")
    seen = ParsedPage((tmp_path / "other.html").read_text())
    assert seen.data["comparable"] is False
    assert "The runs have 2 different tokenizers (a; c)." in seen.text
    assert "Losses per token and tokens per second cannot be compared between tokenizers." in seen.text
    best = re.findall(r'<td class="number best">([\d.,]+)', (tmp_path / "other.html").read_text())
    assert best == ["1.0000", "1.0000"], "a figure per token is marked as the best of runs with different tokenizers"
    assert "validated on different text" in seen.text


def test_a_run_whose_tokenizer_is_missing_is_named(three_runs, report, tmp_path):
    (three_runs[1] / "tokenizer" / "tokenizer.json").unlink()
    report(f"runs=[{','.join(map(str, three_runs))}]", f"out={tmp_path / 'all.html'}")
    seen = ParsedPage((tmp_path / "all.html").read_text())
    assert "The tokenizer of b is not known." in seen.text
    assert seen.data["comparable"] is False


def test_losses_of_pairs_and_of_text_are_not_compared(three_runs, report, tmp_path):
    config = three_runs[1] / "config.yaml"
    config.write_text(config.read_text() + "preference: {loss: dpo}\n")
    report(f"runs=[{three_runs[0]},{three_runs[1]}]")
    seen = ParsedPage((tmp_path / "compare.html").read_text())
    assert (seen.data["unit"], seen.data["comparable"]) == ("nats per pair or nats per token", False)
    assert "Losses of pairs of answers and of text are different figures." in seen.text
    assert "nats per pair or nats per token" in seen.text
    report(f"runs=[{three_runs[1]}]", f"out={tmp_path / 'one.html'}")
    assert ParsedPage((tmp_path / "one.html").read_text()).data["unit"] == "nats per pair"


def test_which_runs_share_a_tokenizer(three_runs, report, tmp_path):
    report(f"runs=[{','.join(map(str, three_runs))}]", f"out={tmp_path / 'all.html'}")
    assert "2 different tokenizers (a and b; c)" in ParsedPage((tmp_path / "all.html").read_text()).text
