"""The record of a run, read from its files."""

from tests.helpers.run_files import training, validation, write_run


def test_validations_that_go_back_are_kept_from_there(tmp_path):
    run = write_run(
        tmp_path / "back",
        [training(1), validation(2), validation(4), training(3), validation(3)],
    )
    assert [each.step for each in run.validations] == [2, 3]
