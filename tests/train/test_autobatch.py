"""``train.micro_batch=auto`` measures once, keeps the size of a step, and leaves started runs alone."""

import json

import pytest

from data.errors import UserError
from slm.configuration import load_config
from train import autobatch

SMALL = ["preset=tiny", "train.micro_batch=auto", "train.seq_len=64", "train.kernels=false", "train.compile=false"]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_numbers_stay_as_they_are():
    resolved = load_config("train", ["preset=tiny"])
    before = json.dumps(resolved)
    autobatch.resolve(resolved, ["preset=tiny"])
    assert json.dumps(resolved) == before


@pytest.mark.slow
def test_it_is_measured_once_and_the_step_keeps_its_size(tmp_path, monkeypatch, capsys):
    argv = [*SMALL, f"runs_dir={tmp_path}"]
    base = load_config("train", [word for word in argv if "micro_batch" not in word])["train"]
    monkeypatch.setattr(autobatch, "CANDIDATES", (1, 2))
    resolved = load_config("train", argv)
    autobatch.resolve(resolved, argv)
    train = resolved["train"]
    assert train["micro_batch"] in (1, 2)
    assert train["micro_batch"] * train["grad_accum"] == base["micro_batch"] * base["grad_accum"]
    assert "tokens/s" in capsys.readouterr().out
    again = load_config("train", argv)
    autobatch.resolve(again, argv)
    assert again["train"] == train
    assert "tokens/s" not in capsys.readouterr().out


def test_a_run_that_exists_keeps_its_numbers(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("train:\n  micro_batch: 3\n  grad_accum: 5\n")
    argv = [*SMALL, f"runs_dir={tmp_path}", "name=mine"]
    resolved = load_config("train", argv)
    autobatch.resolve(resolved, argv)
    assert (resolved["train"]["micro_batch"], resolved["train"]["grad_accum"]) == (3, 5)


def test_several_processes_need_a_number(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="give a number"):
        autobatch.resolve(load_config("train", SMALL), SMALL)
