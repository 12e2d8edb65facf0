"""Runs, their checkpoints and model directories from elsewhere are found by what a person names."""

import json
import os

import pytest

from slm.data.errors import UserError
from slm.runs import best_checkpoint, list_checkpoints, point_best, point_latest, resolve, saved_config


def save(directory, state=None):
    """As much of a checkpoint as tells what it is."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "trainer_state.json").write_text(json.dumps(state or {}))


def test_runs_are_found_by_directory_checkpoint_and_latest(tmp_path):
    run = tmp_path / "runs" / "mine"
    for step in (5, 100):
        save(run / "checkpoints" / f"step-{step:08d}")
    (run / "checkpoints" / ".step-00000200.77.tmp").mkdir()
    point_latest(run)
    assert [path.name for path in list_checkpoints(run)] == ["step-00000005", "step-00000100"]
    assert resolve(tmp_path / "runs" / "latest").root == run
    assert resolve(run).checkpoint().name == "step-00000100"
    assert resolve(run / "checkpoints" / "step-00000005").checkpoint().name == "step-00000005"
    elsewhere = resolve(run / "checkpoints" / "step-00000100").pinned
    assert elsewhere.name == "step-00000100"
    copied = tmp_path / "downloaded"
    (run / "checkpoints" / "step-00000100").rename(copied)
    assert resolve(copied).is_hf
    assert resolve(copied).checkpoint() == copied


def test_the_best_is_the_lowest_loss_measured_at_the_checkpoints_own_step(tmp_path):
    run = tmp_path / "runs" / "mine"
    assert best_checkpoint(run) is None
    measured = {10: (10, 3.0), 20: (20, 2.5), 30: (20, 2.5), 40: (40, 2.8), 50: (50, None)}
    for step, (at, loss) in measured.items():
        save(run / "checkpoints" / f"step-{step:08d}", state={"validation": {"step": at, "val_loss": loss}})
    best = best_checkpoint(run)
    assert best.name == "step-00000020"
    point_best(run, best)
    assert os.readlink(run / "best") == "checkpoints/step-00000020"
    assert resolve(run / "best").checkpoint() == best
    assert resolve(run / "best").root == run
    # The newest has no loss that would say whether it is worse.
    assert (resolve(run).checkpoint().name, resolve(run).choice_line()) == ("step-00000050", None)
    (run / "checkpoints" / "step-00000050").rename(tmp_path / "away")
    assert resolve(run).checkpoint() == best
    assert resolve(run).choice_line() == (
        "step-00000020 of mine is used: its validation loss is lower than that of the newest, "
        "checkpoints/step-00000040, which can be named, too"
    )
    assert resolve(run / "checkpoints" / "step-00000040").choice_line() is None
    (best / "trainer_state.json").write_text("{")
    assert best_checkpoint(run).name == "step-00000040"


def test_the_best_of_a_quantized_run_is_a_quantized_checkpoint(tmp_path):
    for step, loss, kind in ((10, 2.0, None), (20, 2.4, "q4_0"), (30, 2.5, "q4_0")):
        state = {"validation": {"step": step, "val_loss": loss}} | ({"qat": {"file_type": kind}} if kind else {})
        save(tmp_path / "checkpoints" / f"step-{step:08d}", state=state)
    assert best_checkpoint(tmp_path).name == resolve(tmp_path).checkpoint().name == "step-00000020"


def test_a_runs_options_are_read_in_one_way(tmp_path):
    assert saved_config(tmp_path) == {}
    (tmp_path / "config.yaml").write_text("optim:\n  lr: 1.0e-05\ndata: {files: ['${x}']}\n")
    assert saved_config(tmp_path) == {"optim": {"lr": 1e-5}, "data": {"files": ["${x}"]}}
    for broken in ("optim: {lr: 1", "- a list\n", ""):
        (tmp_path / "config.yaml").write_text(broken)
        with pytest.raises(UserError, match=r"config\.yaml cannot be read .*trainer_state\.json of each checkpoint"):
            saved_config(tmp_path)
    (tmp_path / "config.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(UserError, match=r"cannot be read \('utf-8' codec"):
        saved_config(tmp_path)


def test_a_wrong_run_names_the_near_ones(tmp_path):
    (tmp_path / "runs" / "stories").mkdir(parents=True)
    with pytest.raises(UserError, match="did you mean 'stories'"):
        resolve(tmp_path / "runs" / "storys")
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=r"model.gguf is a GGUF file, and a run or .* give the run that"):
        resolve(tmp_path / "model.gguf")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="is a LoRA adapter without its model: give the run that trained it"):
        resolve(tmp_path / "adapter")
    with pytest.raises(UserError, match="stories is an empty folder"):
        resolve(tmp_path / "runs" / "stories")
    (tmp_path / "runs" / "stories" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="neither a run"):
        resolve(tmp_path / "runs" / "stories")
    with pytest.raises(UserError, match="no run yet"):
        resolve(tmp_path / "nothing" / "latest")


def test_a_path_that_is_not_there_names_the_runs_that_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="a/b/c does not exist; train a run first"):
        resolve("a/b/c")
    (tmp_path / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    for path, says in (("a/b/c", "does not exist; runs here: mine"), ("texts", r"\(runs here: mine\)$")):
        with pytest.raises(UserError, match=says):
            resolve(path)


def test_a_folder_around_a_model_names_it_or_stands_for_it(tmp_path):
    save(tmp_path / "around" / "inner")
    with pytest.raises(UserError, match=r"holds a model in a folder further down: give .*around/inner"):
        resolve(tmp_path / "around")
    cached = tmp_path / "models--org--name"
    save(cached / "snapshots" / "0123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    assert resolve(cached).checkpoint() == cached / "snapshots" / "0123"
    files = tmp_path / "files"
    files.mkdir()
    for name in ("mmproj-f16.gguf", "m-Q4_0-00002-of-00002.gguf", "m-Q4_0-00001-of-00002.gguf"):
        (files / name).write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"is a folder with m-Q4_0-00001-of-00002\.gguf: name the file, .*00001"):
        resolve(files)
    (files / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"00001-of-00002\.gguf \(and 1 more\): name the file"):
        resolve(files)
