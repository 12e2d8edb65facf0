"""Completion: which words are offered, and that real shells take the scripts."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from slm.command.completion import candidates, shell_script
from slm.command.table import COMMANDS
from tests.helpers import REPOSITORY


def test_commands_come_first():
    assert set(COMMANDS) < set(candidates([], ""))
    assert candidates([], "tr") == ["train"]
    assert candidates([], "bench-") == ["bench-train", "bench-recipe", "bench-serve", "bench-quant"]
    assert candidates(["help"], "ex") == ["export", "exam"]
    assert candidates(["completion"], "") == ["bash", "zsh", "fish"]
    assert candidates(["trian"], "") == []


def test_options_and_choices():
    assert candidates(["train"], "prese") == ["preset="]
    assert candidates(["train"], "np") == ["nproc="]
    assert candidates(["train"], "train.checkpoint_e") == ["train.checkpoint_every="]
    assert candidates(["train"], "preset=1") == ["preset=10m", "preset=125m"]
    assert candidates(["train"], "data=wiki") == ["data=wikipedia_stories", "data=wikitext"]
    assert candidates(["train"], "train.calibrate_head=") == ["train.calibrate_head=true", "train.calibrate_head=false"]
    assert candidates(["train"], "data.file") == []
    assert candidates(["train", "data=local"], "data.file") == ["data.files="]
    assert candidates(["serve"], "serve.slots") == ["serve.slots="]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("runs/mine", "runs/my other", "books"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("books/a.txt", "books/b.txt", ".hidden"):
        (tmp_path / name).write_text("x")
    # A command `slm` like the installed one.
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/slm"
    script.write_text(f"#!/bin/sh\nPYTHONPATH='{REPOSITORY}' PYTHONSAFEPATH=1 exec '{sys.executable}' -m slm \"$@\"\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_file_names(folder):
    assert candidates(["export"], "run=runs/m") == ["run=runs/mine/", "run=runs/my other/"]
    assert candidates(["export"], "run=") == ["run=bin/", "run=books/", "run=runs/"]
    assert candidates(["train", "data=local"], "data.files=[books/a.txt,books/b") == [
        "data.files=[books/a.txt,books/b.txt"
    ]
    assert candidates(["export"], "run=.h") == ["run=.hidden"]
    # configs/model has presets of that name; a server's model is a file.
    assert candidates(["serve"], "model=ru") == ["model=runs/"]
    assert candidates(["train"], "model=t") == ["model=tiny"]


def shell(command: list[str], text: str, folder) -> list[str]:
    done = subprocess.run(
        command, input=text, cwd=folder, env=os.environ | {"HOME": str(folder)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def in_bash(line: str, folder) -> list[str]:
    text = f"""source <(slm completion bash)
    compopt() {{ :; }}
    COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
    _slm
    printf '%s\\n' "${{COMPREPLY[@]}}"
    complete -p slm"""
    *found, registered = shell(["bash", "--norc"], text, folder)
    assert "-F _slm" in registered
    return found


def test_bash(folder):
    assert in_bash("slm tr", folder) == ["train"]
    assert in_bash("slm train prese", folder) == ["preset="]
    assert in_bash("slm train name=x preset=1", folder) == ["10m", "125m"]
    assert in_bash("slm export ", folder)[:2] == ["--help", "run="]
    assert in_bash("slm export run=runs/m", folder) == ["runs/mine/", "runs/my\\ other/"]
    assert in_bash("slm export run=runs/my\\ o", folder) == ["runs/my\\ other/"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh")
def test_zsh(folder):
    text = """autoload -Uz compinit; compinit -u -D
    source <(slm completion zsh)
    compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@" }
    try() { words=("$@"); CURRENT=$#; PREFIX=$words[CURRENT]; _slm }
    try slm tr; try slm train preset=1; try slm export run=runs/m
    print -- ${_comps[slm]}"""
    assert shell(["zsh", "-f"], text, folder) == [
        *("train", "preset=10m", "preset=125m", "run=runs/mine/", "run=runs/my other/", "_slm")
    ]


@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish")
def test_fish(folder):
    text = "slm completion fish | source\n" + "".join(
        f"complete -C '{line}'\n" for line in ("slm tr", "slm train preset=1", "slm export run=runs/mi")
    )
    assert shell(["fish", "--no-config"], text, folder) == ["train", "preset=10m", "preset=125m", "run=runs/mine/"]


def test_the_scripts_name_themselves():
    for name in ("bash", "zsh", "fish"):
        assert f"slm completion {name}" in shell_script(name).splitlines()[0 if name != "zsh" else 1]
