"""What the words of a command line mean: by what is in the folder, and by the command."""

import shlex

import pytest

from slm.command.grammar import read
from slm.command.table import COMMANDS
from slm.data.errors import UserError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A run ``mine`` (the newest), text, conversations, a GGUF file, and a folder called like a data set."""
    for name in ("runs/mine/checkpoints", "notes", "tales", "mine2"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("notes/a.txt", "chats.csv", "a,b.txt", "model.gguf", "it's.txt", "mix.yaml"):
        (tmp_path / name).write_text("x")
    (tmp_path / "runs/latest").symlink_to("mine")
    monkeypatch.chdir(tmp_path)


def words(line: str) -> str:
    name, *given = shlex.split(line)
    return " ".join(read(name, given))


MEANT = {
    "train notes/ budget=1h": "data=local data.files=['notes/'] budget=1h",
    "train 10m notes chats.csv": "data=local data.files=['notes','chats.csv'] preset=10m",
    "train notes,chats.csv": "data=local data.files=['notes','chats.csv']",
    "train 'notes/*.txt'": "data=local data.files=['notes/*.txt']",
    "train a,b.txt": "data=local data.files=['a,b.txt']",
    'train "it\'s.txt"': "data=local data.files=['it\\'s.txt']",
    "train tinystories": "data=tinystories",
    "train model=mine notes": "init_from='mine' data=local data.files=['notes']",
    "train mine notes": "init_from='mine' data=local data.files=['notes']",
    "train org/name notes": "init_from='org/name' data=local data.files=['notes']",
    "train model=10m model.n_layers=2": "model=10m model.n_layers=2",
    "train model=/tmp/real": "init_from='/tmp/real'",
    "train data=notes": "data=local data.files=['notes']",
    "train data=tales": "data=tales",
    "train data=mix.yaml": "data='mix.yaml'",
    "tune mine mix.yaml": "base=mine data='mix.yaml'",
    "train data=local data.files=[notes]": "data=local data.files=[notes]",
    "train data=chat chats.csv": "data.files=['chats.csv'] data=chat",
    "sweep data=tales,tinystories optim.lr=0.1,0.2": "data=tales,tinystories optim.lr=0.1,0.2",
    "sweep model=tiny,10m": "model=tiny,10m",
    "tune mine chats.csv": "base=mine data=chat data.files=['chats.csv']",
    "tune model.gguf chats.csv": "base=model.gguf data=chat data.files=['chats.csv']",
    "tune init_from=mine story_chat": "base=mine data=story_chat",
    "tune model=tiny": "base=tiny",
    "qat runs/mine q4_0": "base=runs/mine train.qat=q4_0",
    "export runs/mine q4_k_m,Q8_0 auto:4.5": "run=runs/mine quant=q4_k_m,Q8_0,auto:4.5",
    "export RUN=mine": "run=mine",
    "export run=runs/latest run=mine": "run=mine",
    "export runs/gone": "run=runs/gone",
    "export gone.gguf": "run=gone.gguf",
    "serve mine model.gguf": "model=mine serve.models=['model.gguf']",
    "serve run=mine port=1": "model=mine port=1",
    "chat mine 'Once upon a time'": "model=mine prompt=Once upon a time",
    "watch mine": "run=mine",
    "report mine latest": "runs=['mine','latest']",
    "report model=mine,latest": "runs=['mine','latest']",
    "publish mine org/name": "run=mine to=org/name",
    "publish org/name": "to=org/name",
    "eval mine notes/a.txt": "run=mine eval.text='notes/a.txt'",
    "eval mine wikitext": "run=mine eval.text=wikitext",
    "exam mine chats.csv": "run=mine data=['chats.csv']",
    "exam mine data=gone.csv": "run=mine data=gone.csv",
    "data-stats notes": "data=local data.files=['notes']",
    "prepare 10m notes out=corpus": "data=local data.files=['notes'] preset=10m out=corpus",
    "plan 125m tokens_per_s=800": "preset=125m tokens_per_s=800",
    "bench-quant mine q8_0": "run=mine quant=q8_0",
    "train ~train.seed": "~train.seed",
}


@pytest.mark.parametrize("line", MEANT)
def test_words_mean_what_is_there(line):
    assert words(line) == MEANT[line]


REFUSED = {
    "train nots/": "'nots/' means nothing to slm train: .*did you mean 'notes'?",
    "train 8h": "write budget=8h",
    "train data=chat.csv": "there is no file or folder chat.csv; did you mean 'chats.csv'",
    "train 'data=notes/*.md'": r"no file fits notes/\*.md",
    "train notes data.files=[chats.csv]": "the text is named twice",
    "export min": "means nothing to slm export: .* did you mean 'mine",
    "export qqq": "no such run, model or quantization type here; runs here: latest, mine",
    "export mine runs/latest": "takes one model, and the words name 2: mine and runs/latest",
    "export mine run=runs/latest": "takes one model",
    "qat mine q4_0,q8_0": "trains for one type, not 2",
    "doctor mine": "options are written key=value",
    "export --quant=q8_0": "without dashes, as quant=q8_0",
    "export --quant q8_0": "without dashes, as quant=VALUE",
    "exam mine gone.csv": "'gone.csv' means nothing to slm exam",
    "tune chats.csv": "needs a model .* these words are taken as text: chats.csv; runs here: latest, mine",
    "tune notes chats.csv": "taken as text: notes, chats.csv; runs here: latest, mine",
    "qat q4_0": "slm qat needs a model to begin with, as in slm qat RUN TEXT; runs here: latest, mine",
    "data-stats org/xyz": "no such preset, file, folder or data set here; files and folders here: a,b.txt, chats.csv",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_word_that_means_nothing_is_refused_in_one_line(line):
    with pytest.raises(UserError, match=REFUSED[line]) as refused:
        words(line)
    assert "\n" not in str(refused.value)


def test_a_data_set_wins_over_a_folder_of_its_name_and_says_so(capsys):
    assert words("train tales") == "data=tales"
    assert "what is here is ./tales" in capsys.readouterr().out
    assert words("train tales/") == "data=local data.files=['tales/']"


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.model_key])
def test_every_command_that_has_a_model_takes_it_by_every_name(name):
    found = {words(f"{name} {key}=runs/mine") for key in ("model", "run", "base", "init_from", "MODEL", "RUN")}
    assert len(found) == 1
    assert "runs/mine" in found.pop()
    if COMMANDS[name].bare:
        assert words(f"{name} mine") == words(f"{name} model=mine")
