"""Samples are read by the steps of the validations."""

from tests.helpers.run_files import training, validation, write_run
from train.report import sections


def test_a_sample_that_looks_like_a_heading_is_text(tmp_path):
    samples = "## step 2\n\nfirst\n\n## step 77\nmore\n\n## step 4\n\nsecond\n\n"
    run = write_run(tmp_path / "x", [training(1), validation(2), validation(4)], samples)
    assert [(sample.step, sample.text) for sample in run.samples] == [
        (2, "first\n\n## step 77\nmore"),
        (4, "second"),
    ]
    groups = sections.sample_groups(run)
    assert [group["texts"][0]["rest"] for group in groups] == ["first\n\n## step 77\nmore", "second"]
