"""How every command ends: its exit status, and one line for a person's mistake."""

import subprocess
import sys

import pytest

from data.errors import UserError
from slm import cli


def status(main, argv=()) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.run(main, list(argv))
    return caught.value.code


def test_success_is_zero_and_a_commands_own_status_is_kept():
    given = []
    assert status(given.append, ["a=1"]) == 0
    assert given == [["a=1"]]
    assert status(lambda _: 3) == 3


def test_a_persons_mistake_is_one_line(capsys, monkeypatch):
    monkeypatch.delenv("SLM_DEBUG", raising=False)

    def main(_):
        raise UserError("there is no such run:\n   name another")

    assert status(main) == 2
    assert capsys.readouterr().err == "error: there is no such run: name another\n"
    monkeypatch.setenv("SLM_DEBUG", "1")
    with pytest.raises(UserError):
        cli.run(main, [])


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        cli.run(lambda _: 1 // 0, [])


def test_ctrl_c_is_told_and_has_the_shells_status(capsys):
    def main(_):
        raise KeyboardInterrupt

    assert status(main) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_goes_away_is_no_error(repository):
    code = "from slm import cli; cli.run(lambda _: [print('x' * 1000) for _ in range(1000)] and None, [])"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == b""
