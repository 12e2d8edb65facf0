"""``slm checkpoint``: a GGUF file and a folder, as one types them."""

import json

import pytest

from slm.cli import spelled
from slm.command.checkpoint import main
from slm.command.grammar import read
from slm.data.errors import UserError
from slm.model.checkpoint import load_config
from tests.helpers import tiny_checkpoint as tiny


def test_a_file_and_a_folder_are_enough(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tiny.gguf_file(tmp_path / "m.gguf", n_layers=1)
    words = read("checkpoint", ["m.gguf", "out"])
    assert words == ["model=m.gguf", "out=out"]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-3:-1] == ["wrote out", f"next: {spelled('tune', model='out')}"]
    assert json.loads(said[-1])["proof"]["same_top"] == 1
    assert load_config("out") == load_config(path.with_suffix(".checkpoint"))
    with pytest.raises(UserError, match="out is there already: name a new folder"):
        main(words)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("checkpoint", ["ollama:smollm2:135m", "out"]) == ["model=ollama:smollm2:135m", "out=out"]
    assert read("tune", ["ollama:smollm2:135m"]) == ["base=ollama:smollm2:135m"]
    with pytest.raises(UserError, match="name a GGUF file and a folder to write"):
        main(["model=m.gguf"])
    with pytest.raises(UserError, match="runs/mine is no GGUF file"):
        main(["model=runs/mine", "out=out"])
