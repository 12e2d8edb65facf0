"""How every command ends: its exit status, and one line for a person's mistake."""

import os
import signal
import subprocess
import sys
import time

import pytest

from slm import cli
from slm.data.errors import UserError


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


SENDS_CTRL_C = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT_OF"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["-m", "slm", "--help"], "slm.cli"),
        (["-m", "slm", "--help"], "slm.command"),
        (["-m", "slm.train"], "slm.machine.hardware"),
        (["-m", "slm.train.tune"], "slm.cli"),
        (["-m", "slm.export"], "slm.cli"),
        (["-m", "slm.serve.terminal"], "slm.serve.config"),
        (["{slm}", "train"], "slm.command.main"),
        (["{slm}", "train"], "slm.machine.hardware"),
    ],
)
def test_ctrl_c_while_a_command_is_imported_is_no_traceback(repository, tmp_path, words, module):
    (tmp_path / "sitecustomize.py").write_text(SENDS_CTRL_C)
    script = tmp_path / "slm"  # as pip writes it
    script.write_text("import sys\nfrom slm.command.main import script\nsys.exit(script())\n")
    done = subprocess.run(
        [sys.executable, *(word.format(slm=script) for word in words)],
        cwd=repository,
        env={**os.environ, "AT_IMPORT_OF": module, "PYTHONPATH": f"{tmp_path}:{repository}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 130
    assert done.stderr in ("", "interrupted\n")


def test_ctrl_c_is_left_alone_where_slm_is_a_library(repository):
    code = (
        "import signal; before = signal.getsignal(2); import slm.train, slm.serve; assert signal.getsignal(2) is before"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True)


def test_a_reader_that_goes_away_is_no_error(repository):
    code = "from slm import cli; cli.run(lambda _: [print('x' * 1000) for _ in range(1000)] and None, [])"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == b""


def test_json_is_a_word_of_every_command(monkeypatch):
    monkeypatch.setenv("SLM_JSON", "")  # put back at the end
    given: list[str] = []
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda words: given.extend(words), ["a=1", "json=true", "b"])
    assert (ended.value.code, given, os.environ["SLM_JSON"]) == (0, ["a=1", "b"], "true")
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda words: None, ["json=yes"])
    assert ended.value.code == 2


def test_a_command_is_spelled_as_one_types_it(monkeypatch):
    monkeypatch.delenv("SLM_MAKE", raising=False)
    assert cli.spelled("export", run="runs/a b", quant="q8_0") == "slm export 'runs/a b' q8_0"
    assert cli.spelled("train", name="x", data="my/") == "slm train my/ name=x"
    assert cli.spelled("serve", model="a=b.gguf") == "slm serve model=a=b.gguf"
    monkeypatch.setenv("SLM_MAKE", "1")
    assert cli.spelled("train", data="my/", name="x") == 'make train DATA=my/ ARGS="name=x"'
    assert cli.spelled("tune", base="runs/a") == "make tune MODEL=runs/a"


@pytest.mark.skipif(sys.platform == "win32", reason="no locale of POSIX")
@pytest.mark.parametrize("mode", ["0", ""])
def test_a_command_reads_and_writes_utf8_whatever_the_locale_says(mode):
    code = "import sys; from slm import cli; cli.run(lambda argv: print(sys.flags.utf8_mode, argv, chr(233)))"
    own = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": mode}
    done = subprocess.run([sys.executable, "-c", code, "a b"], capture_output=True, env=own)
    assert done.stdout.decode() == "1 ['a b'] é\n", done.stderr


def test_ctrl_c_in_a_forked_process_is_its_own():
    """``slm.machine.crash_guard`` forks; the signal of the child ended the parent."""
    source = """
import os, signal, time
from slm import cli, late_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
late_interrupt.TOLD_SECONDS = late_interrupt.END_SECONDS = 0.1
def main(words):
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    time.sleep(1)
    print("done")
cli.run(main)
"""
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "done\n", "interrupted\n")


def test_ctrl_c_during_native_code_is_answered_and_ends_the_command():
    """Python raises KeyboardInterrupt only when the call returns, in a minute here."""
    source = """
import hashlib, signal
from slm import cli, late_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # the test's own process may ignore it
late_interrupt.END_SECONDS = 0.5
def main(words):
    print("computing", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
cli.run(main)
"""
    command = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert command.stdout.readline() == "computing\n"
        time.sleep(1)  # until it has entered the call
        command.send_signal(signal.SIGINT)
        assert command.communicate(timeout=20) == ("", "interrupted: ending what is being computed\n")
        assert command.returncode == 130
    finally:
        command.kill()
