"""The Makefile: its variables arrive as the options of ``slm``, whatever characters they have, and set-up starts when
it must. ``make -n`` prints what would be run."""

import os
import re
import shutil
import subprocess

import pytest

from tests.helpers import REPOSITORY


@pytest.fixture
def checkout(tmp_path):
    """A folder with blanks in its name, set up as far as make can see."""
    folder = tmp_path / "a b" / "it's"
    (folder / ".venv").mkdir(parents=True)
    shutil.copy(REPOSITORY / "Makefile", folder)
    (folder / "pyproject.toml").write_text("")
    (folder / ".venv/.ready").write_text(str(folder))
    return folder


def make(folder, *words: str) -> subprocess.CompletedProcess:
    """make as a person starts it: under ``make test`` it would take itself for a part of that, and say where it is."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(["make", *words], cwd=folder, env=environment, capture_output=True, text=True)


def commands(folder, *words: str) -> list[str]:
    """The lines that make would run."""
    done = make(folder, "-n", *words)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


def words(folder, *given: str) -> list[str]:
    """The words of the command that a target runs, as the shell splits them."""
    (line,) = commands(folder, *given)
    printed = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    first, *rest = printed.stdout.splitlines()
    assert (first, rest[:2]) == (".venv/bin/python", ["-m", "slm"])
    return rest[2:]


def test_names_with_blanks_and_quotes_stay_one_word(checkout):
    assert words(checkout, "export", "RUN=a b/it's", "QUANT=q8_0,q4_0") == ["export", "run=a b/it's", "quant=q8_0,q4_0"]
    assert words(checkout, "exam", "RUN=a b/x", "DATA=my q.jsonl") == ["exam", "run=a b/x", "data=my q.jsonl"]
    assert words(checkout, "exam") == ["exam", "run=runs/latest"]
    assert words(checkout, "serve", "RUN=a b/x", "PORT=1") == ["serve", "model=a b/x", "port=1"]
    assert words(checkout, "chat", 'MODEL=my "best" $$x.gguf') == ["chat", 'model=my "best" $x.gguf']
    for target in ("watch", "verify", "eval", "bench-quant"):
        assert words(checkout, target, "RUN=a b/x") == [target, "run=a b/x"]


SETS = {"SIZE": "BUDGET CONFIG", "TEXT": "DATA", "TIME": "BUDGET", "START": "MODEL", "PROCESSES": "NPROC NNODES MAIN"}
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs/results").glob("*.md")]
PAGES += (REPOSITORY / "examples").rglob("*.md")


def test_a_target_uses_every_variable_that_a_page_gives_it():
    """``make tune BUDGET=10m`` was on a page, and the target left the budget out."""
    text = (REPOSITORY / "Makefile").read_text()
    recipes = dict(re.findall(r"^([a-z-]+):(?!=).*\n((?:\t.*\n)+)", text, re.MULTILINE))
    n = 0
    for page in PAGES:
        for target, given in re.findall(r"make ([a-z-]+)((?: +[A-Z]+=(?:\"[^\"]*\"|\S*))+)", page.read_text()):
            recipe = recipes.get(target, "")
            uses = set(re.findall(r"\b[A-Z]+\b", recipe)) | {"PYTHON", "CHECK", "TORCH_INDEX", "CMAKE_ARGS"}
            uses |= {name for each in uses & set(SETS) for name in SETS[each].split()}
            uses |= {"RUN"} if "MODEL" in uses else set()
            for name in re.findall(r"(?:^| )([A-Z]+)=", re.sub(r'"[^"]*"', "", given)):
                assert name in uses, f"{page.name}: make {target} {name}="
                n += 1
    assert n > 100


def test_the_runs_of_a_report(checkout):
    assert words(checkout, "report") == ["report", "runs=['runs/latest']"]
    assert words(checkout, "report", "RUN=a, b/it's") == ["report", "runs=['a, b/it's']"]
    assert words(checkout, "report", "RUNS= a  b ") == ["report", "runs=[a,b]"]
    assert words(checkout, "report", "RUNS=a b/x,c") == ["report", "runs=[a b/x,c]"]


def test_training_and_its_processes(checkout):
    assert words(checkout, "train", 'ARGS=name=x "data.files=[a b.txt]"') == [
        *("train", "preset=tiny", "name=x", "data.files=[a b.txt]")
    ]
    assert words(checkout, "train", "CONFIG=10m", "NPROC=2") == ["train", "nproc=2", "nnodes=1", "preset=10m"]
    assert words(checkout, "train", "NNODES=2", "MAIN=h:1") == [
        *("train", "nproc=1", "nnodes=2", "main=h:1", "preset=tiny")
    ]


def test_tuning_and_its_processes(checkout):
    for target in ("tune", "qat"):
        assert words(checkout, target, "MODEL=a b", "NPROC=2") == [target, "nproc=2", "nnodes=1", "base=a b"]
        assert words(checkout, target, "MODEL=x", "ARGS=tune.lora=16") == [target, "base=x", "tune.lora=16"]


def test_text_and_the_model_to_start_from(checkout):
    assert words(checkout, "train", "DATA=my notes/", "BUDGET=1h", "MODEL=mine") == [
        *("train", "budget=1h", "preset=auto", "model=mine", "data=my notes/")
    ]
    assert words(checkout, "tune", "MODEL=mine", "DATA=chats.csv") == ["tune", "base=mine", "data=chats.csv"]
    given = ("MODEL=mine", "DATA=chats.csv", "BUDGET=10m")
    assert words(checkout, "tune", *given) == ["tune", "base=mine", "budget=10m", "data=chats.csv"]
    assert words(checkout, "qat", "DATA=a.txt") == ["qat", "base=runs/latest", "data=a.txt"]
    assert words(checkout, "export", "MODEL=mine", "QUANT=q8_0") == ["export", "run=mine", "quant=q8_0"]
    (checkout / ".venv/.dev").write_text("")
    for target in ("sweep", "plan", "data-stats", "bench-train", "bench-recipe"):
        assert words(checkout, target, "DATA=a.txt,b c.txt") == [target, "preset=tiny", "data=a.txt,b c.txt"]
    prepared = words(checkout, "prepare", "CONFIG=10m", "DATA=a.txt", "OUT=my corpus")
    assert prepared == ["prepare", "preset=10m", "data=a.txt", "out=my corpus"]


def test_a_budget_chooses_the_size_unless_a_preset_is_named(checkout):
    for target in ("train", "plan"):
        assert words(checkout, target, "BUDGET=8h") == [target, "budget=8h", "preset=auto"]
        assert words(checkout, target, "BUDGET=8h", "CONFIG=10m") == [target, "budget=8h", "preset=10m"]
        assert words(checkout, target, "CONFIG=auto") == [target, "preset=auto"]


def test_set_up_starts_where_the_environment_is_not_of_this_folder(checkout):
    assert len(commands(checkout, "doctor")) == 1
    assert any("-m slm.setup" in line for line in commands(checkout, "setup", "CHECK=only"))
    (checkout / ".venv/.ready").write_text("/elsewhere/slm")
    lines = commands(checkout, "doctor")
    assert any("-m slm.setup" in line for line in lines)
    assert lines[-1].endswith("-m slm doctor")


def test_set_up_starts_when_the_requirements_change(checkout):
    (checkout / ".venv/.ready").unlink()
    assert any("-m slm.setup" in line for line in commands(checkout, "doctor"))


def test_a_python_that_is_missing_is_one_line(checkout):
    (checkout / ".venv/.ready").unlink()
    done = make(checkout, "setup", "PYTHON=no such python")
    assert done.returncode == 2
    first, *_ = done.stderr.splitlines()
    assert first.startswith("error: there is no no such python: install Python 3.11 to 3.13")
