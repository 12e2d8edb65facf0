"""Samples are read by the steps of the validations."""

from slm.train.report import sections
from slm.train.report.html import render
from tests.helpers.run_files import ParsedPage, training, validation, write_run


def test_a_sample_that_looks_like_a_heading_is_text(tmp_path):
    samples = "## step 2\n\nfirst\n\n## step 77\nmore\n\n## step 4\n\nsecond\n\n"
    run = write_run(tmp_path / "x", [training(1), validation(2), validation(4)], samples)
    assert [(sample.step, sample.text) for sample in run.samples] == [
        (2, "first\n\n## step 77\nmore"),
        (4, "second"),
    ]
    groups = sections.sample_groups(run)
    assert [group["texts"][0]["rest"] for group in groups] == ["first\n\n## step 77\nmore", "second"]


def test_a_long_sample_is_folded(tmp_path):
    """The beginning is read at once, the rest on demand; nothing is lost, and a short text stays whole."""
    words = " ".join(f"word{n}" for n in range(400))
    short = "s" * 900
    samples = f"## step 2\n\nOnce {words}\n\n## step 4\n\nOnce {short}\n\n## step 6\n\nOnce {'x' * 9000}\n\n"
    config = "train: {max_steps: 100, sample_prompts: [Once]}\n"
    run = write_run(tmp_path / "x", [training(1), *map(validation, (2, 4, 6))], samples, config)
    long, whole, endless = (group["texts"][0] for group in sections.sample_groups(run))
    assert (whole["rest"], whole["folded"]) == (f" {short}", "")
    assert 350 < len(long["rest"]) <= 700
    assert long["rest"].endswith(" "), "cut within a word"
    assert long["prompt"] + long["rest"] + long["folded"] == f"Once {words}"
    assert (len(endless["rest"]), len(endless["folded"])) == (700, 3301)
    page = ParsedPage(render([run], ["finished"]))
    assert page.tags.count("blockquote") == 3
    assert "3,301 more characters" in page.text
    assert words.split()[-1] in page.text
