"""The command ``slm``: every sub-command is there, explains itself quickly, and is what it hands over to."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slm.command import help, main
from slm.command.table import COMMANDS
from slm.configuration import CONFIG_DIR
from slm.data.errors import UserError
from tests.helpers import REPOSITORY


def slm(*words: str, cwd=REPOSITORY, status: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "slm", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_row_names_a_module_and_options_that_exist(name):
    command = COMMANDS[name]
    spec = importlib.util.find_spec(command.module)
    assert spec is not None
    text = (CONFIG_DIR / f"{command.config}.yaml").read_text(encoding="utf-8")
    for word in command.defaults:
        assert re.search(rf"^{word.partition('=')[0]}:", text, re.MULTILINE), word
    assert command.examples


def test_every_target_of_make_that_is_a_stage_is_a_command_and_every_command_a_target():
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+): ready .*##", makefile, re.MULTILINE)) - {"setup", "wheels", "docs"}
    assert targets == set(COMMANDS)
    assert set(re.findall(r"\$\(SLM\) ([a-z-]+)", makefile)) == set(COMMANDS)


@pytest.mark.parametrize("module", ["train", "export", "serve", "train.tune"])
def test_a_stage_is_run_by_its_folders_name_too_in_a_checkout(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, "key=value" in done.stdout) == (0, True), done.stderr


def test_help_lists_every_command_and_loads_no_library():
    code = (
        "import sys\nfrom slm.command.main import main\nmain(['--help'])\n"
        "for name in ('train', 'serve', 'plan', 'demo'): main([name, '--help'])\n"
        "heavy = {'torch', 'hydra', 'numpy', 'yaml', 'slm.train', 'slm.export', 'slm.serve'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^  ([a-z-]+)  +\S", done.stdout.split("usage: slm train")[0], re.MULTILINE)
    assert listed[: len(COMMANDS) + 1] == [*COMMANDS, "completion"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_examples_and_all_its_options(name, capsys):
    help.print_command(name)
    out = capsys.readouterr().out
    assert out.startswith(f"usage: slm {name} ")
    for words, about in COMMANDS[name].examples:
        assert f"slm {name} {words}".rstrip() in out
        assert about in " ".join(out.split())
    assert f"configs/{COMMANDS[name].config}.yaml" in out


def test_help_shows_the_groups_that_a_command_has(capsys):
    help.print_command("plan")
    out = capsys.readouterr().out
    assert "tokens_per_s" in out
    assert "max_steps" in out  # train's, which plan adds to
    assert "one of: 10m, 125m, 350m, 50m, tiny" in out
    help.print_command("serve")
    assert "preset" not in capsys.readouterr().out


def test_the_sub_command_does_the_work_in_any_folder(tmp_path):
    """With a folder that has modules and packages of our names: an installed command does not take those."""
    for name in ("train.py", "slm.py", "data.py"):
        (tmp_path / name).write_text("raise SystemExit('this is not slm')\n")
    out = slm("plan", "preset=10m", "tokens_per_s=1000", cwd=tmp_path, PYTHONSAFEPATH="1")
    assert '"n_params": 13636608' in out.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_the_words_and_the_status_are_those_of_the_sub_command():
    assert "there is no preset '11m'; did you mean '10m'" in slm("plan", "preset=11m", status=2)


def test_a_mistyped_command_gets_the_nearest():
    assert slm("trian", status=2) == "error: there is no command 'trian'; did you mean 'train'?\n"
    assert "did you mean 'bench-serve'" in main.unknown("benchserve")
    assert "slm --help lists them" in main.unknown("qqqq")
    assert "slm train preset=10m" in slm("preset=10m", status=2)


def test_version_and_help_in_all_their_spellings(capsys):
    for words in (["--version"], ["version"]):
        assert main.main(words) == 0
        assert re.fullmatch(r"slm \d+\.\d+\.\d+\n", capsys.readouterr().out)
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main.main(words) == 0
        assert "usage: slm COMMAND" in capsys.readouterr().out
    for words in (["help", "export"], ["export", "--help"], ["export", "run=x", "-h"]):
        assert main.main(words) == 0
        assert capsys.readouterr().out.startswith("usage: slm export")
    with pytest.raises(UserError, match="did you mean 'export'"):
        main.main(["help", "exprot"])


def test_training_in_several_processes_goes_to_the_launcher():
    assert main.target("train", ["preset=10m"]) == ("slm.train", ["preset=10m"])
    assert main.target("train", ["nproc=1", "nnodes=1", "name=x"]) == ("slm.train", ["name=x"])
    assert main.target("train", ["nproc=2", "name=x"]) == (main.LAUNCHER, ["nproc=2", "name=x"])
    assert main.target("train", ["nnodes=2", "main=a:1"]) == (main.LAUNCHER, ["nnodes=2", "main=a:1"])
    assert "nproc must be a whole number" in slm("train", "nproc=two", status=2)


def test_the_newest_run_is_the_default_model():
    assert main.target("serve", ["port=1"])[1] == ["model=runs/latest", "port=1"]
    assert main.target("chat", ["model=a.gguf"])[1] == ["model=a.gguf"]


def test_the_installed_command_hides_the_current_folder_from_child_processes(monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # noted as unset, so that it is unset again afterwards
    del os.environ["PYTHONSAFEPATH"]
    monkeypatch.setattr(sys, "argv", ["slm", "--version"])
    with pytest.raises(SystemExit) as ended:
        main.script()
    assert ended.value.code == 0
    assert os.environ["PYTHONSAFEPATH"] == "1"
    del os.environ["PYTHONSAFEPATH"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_module_of_every_command_runs_when_it_is_run(name):
    """A module without its last two lines would do nothing, and end with 0."""
    module = COMMANDS[name].module
    spec = importlib.util.find_spec(module)
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
    last = ast.parse(Path(spec.origin).read_text()).body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    assert "main" in ast.unparse(last.body)


WITHOUT_LLAMA_CPP = """
import sys
from importlib import import_module

sys.modules["llama_cpp"] = None
from slm.command.main import WITHOUT_LLAMA, main
from slm.command.table import COMMANDS

for name in WITHOUT_LLAMA:
    import_module(COMMANDS[name].module + (".__main__" if name == "studio" else ""))
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code == 0, (line, end.code)
"""


@pytest.mark.slow
def test_what_a_person_types_first_does_not_wait_for_llama_cpp(tmp_path):
    """It is still being compiled then (training: tests/train/test_main.py)."""
    (tmp_path / "a.txt").write_text("The cat sat on the mat and saw a dog. " * 200)
    text = "tiny a.txt tokenizer.vocab_size=300"
    lines = ["--help", "train --help", "plan 10m tokens_per_s=800", f"data-stats {text}", f"prepare {text} out=b"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLAMA_CPP, *lines],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b" / "report.md").is_file()
