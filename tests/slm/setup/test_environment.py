"""The virtual environment: real ones, moved, linked, without pip, with a Python that is gone."""

import os
import shutil
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.setup import environment


def make(path, *options: str):
    subprocess.run([sys.executable, "-m", "venv", *options, str(path)], check=True)
    return path


def ready(venv) -> environment.State:
    environment.make_ready(venv, environment.inspect(venv), uv=None)
    return environment.inspect(venv)


def add_script(venv, name: str) -> None:
    """As pip writes it."""
    python = os.path.join(os.path.realpath(venv), "bin", "python")
    head = f"#!{python}\n" if " " not in python else f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    (venv / "bin" / name).write_text(f"{head}import sys\nprint(sys.prefix)\n")
    (venv / "bin" / name).chmod(0o755)


@pytest.mark.parametrize("quote", ['"', "'", ""])
def test_the_interpreter_in_the_second_line_as_pip_and_uv_write_it(tmp_path, quote):
    script = tmp_path / "tool"
    script.write_text(f"#!/bin/sh\n'''exec' {quote}/a b/.venv/bin/python{quote} \"$0\" \"$@\"\n' '''\nimport sys\n")
    assert environment.interpreter(script) == "/a b/.venv/bin/python"
    script.write_text("#!/bin/sh\necho other\n")
    assert environment.interpreter(script) == "/bin/sh"


def test_none_is_made_with_pip(tmp_path):
    venv = tmp_path / "a b" / ".venv"
    assert environment.inspect(venv) == environment.State(missing=True)
    assert ready(venv) == environment.State()
    assert subprocess.run([venv / "bin/pip", "--version"], capture_output=True).returncode == 0


def test_one_without_pip_whose_python_has_no_ensurepip(tmp_path, monkeypatch):
    venv = make(tmp_path / ".venv", "--without-pip")
    assert environment.inspect(venv).no_pip
    # Its Python finds another module of that name first.
    site = next((venv / "lib").glob("python3.*")) / "site-packages"
    (site / "no_ensurepip.pth").write_text("import sys; sys.modules['ensurepip'] = None\n")
    with pytest.raises(UserError, match=r"has no pip, and it could not be installed; rm -rf .* make it anew"):
        ready(venv)


@pytest.mark.parametrize(("old", "new"), [("old", "new"), ("old", "n e w"), ("o l d", "new")])
def test_one_that_was_moved_is_corrected(tmp_path, capsys, old, new):
    venv = make(tmp_path / old / ".venv", "--without-pip")
    add_script(venv, "tool")
    (venv / "bin/other").write_text("#!/bin/sh\necho other\n")
    (tmp_path / old).rename(tmp_path / new)
    venv = tmp_path / new / ".venv"
    state = environment.inspect(venv)
    assert [path.name for path in state.stale] == ["tool"]
    assert state.old_home == str(tmp_path / old / ".venv")
    environment.make_ready(venv, environment.State(stale=state.stale, old_home=state.old_home), uv=None)
    assert "was moved from" in capsys.readouterr().out
    assert environment.inspect(venv).stale == []
    done = subprocess.run([venv / "bin/tool"], capture_output=True, text=True)
    assert done.stdout.strip() == str(venv), done.stderr
    assert f"{tmp_path / old}/" not in (venv / "bin/activate").read_text()
    shown = subprocess.run(
        ["bash", "-c", '. "$1" && echo "$VIRTUAL_ENV"', "-", venv / "bin/activate"], capture_output=True, text=True
    )
    assert shown.stdout.strip() == str(venv)
    assert (venv / "bin/other").read_text() == "#!/bin/sh\necho other\n"


def test_a_python_that_is_gone_is_replaced_by_one_of_its_version_and_pip_is_installed(tmp_path, capsys):
    venv = make(tmp_path / ".venv", "--without-pip")
    site = next((venv / "lib").glob("python3.*")) / "site-packages"
    (site / "kept.py").write_text("")
    for path in (venv / "bin").glob("python*"):
        path.unlink()
    (venv / "bin/python").symlink_to("/nowhere/python3")
    assert environment.inspect(venv).no_python
    assert ready(venv) == environment.State()
    out = capsys.readouterr().out
    assert "its Python is gone" in out
    assert "has no pip: it is installed again" in out
    assert (site / "kept.py").exists()


def test_a_python_of_another_version_that_is_gone_is_refused(tmp_path):
    venv = make(tmp_path / ".venv", "--without-pip")
    (library,) = (venv / "lib").glob("python3.*")
    library.rename(library.with_name("python3.9"))
    for path in (venv / "bin").glob("python*"):
        path.unlink()
    with pytest.raises(UserError, match=r"was made with Python 3\.9, which does not start any more: remove it"):
        environment.inspect(venv)


def test_what_is_somebody_elses_is_refused(tmp_path):
    make(tmp_path / "theirs", "--without-pip")
    (tmp_path / ".venv").symlink_to("theirs")
    with pytest.raises(UserError, match="is a link to theirs: set-up would change that environment"):
        environment.inspect(tmp_path / ".venv")
    (tmp_path / "folder").mkdir()
    assert environment.inspect(tmp_path / "folder").missing
    (tmp_path / "folder/notes.txt").write_text("x")
    with pytest.raises(UserError, match="is no virtual environment"):
        environment.inspect(tmp_path / "folder")


@pytest.mark.skipif(not shutil.which("uv"), reason="there is no uv")
def test_uv_makes_one_with_pip(tmp_path):
    venv = tmp_path / "a b" / ".venv"
    environment.make_ready(venv, environment.State(missing=True), uv=shutil.which("uv"))
    assert environment.inspect(venv) == environment.State()
