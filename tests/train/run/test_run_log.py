"""Lines of a run in a terminal. Whole runs: tests/train/test_main.py, tests/train/test_reliability.py."""

from train.run.run_log import ProgressLine


def test_a_sample_does_nothing_to_the_terminal(capsys):
    progress = ProgressLine(10, 0)
    progress.print("  Once \x1b]0;title\x07\x1b[2J upon\n  a time 🦊")
    progress.close()
    assert capsys.readouterr().out == "  Once �]0;title��[2J upon\n  a time 🦊\n"
