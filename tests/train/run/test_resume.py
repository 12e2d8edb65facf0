"""Options that define a run may not change when it is resumed; those that an older version saved are understood.

Damaged checkpoints: tests/slm/model/test_checkpoint.py. Whole runs: tests/train/test_resume.py.
"""

import json
from pathlib import Path

import pytest

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.removed_options import without_removed
from slm.runs import list_checkpoints
from slm.train import autobatch
from slm.train.config import RunConfig
from slm.train.resolve import resolve
from slm.train.run.resume import (
    back_up_later_checkpoints,
    check_unchanged,
    named_checkpoint,
    remove_rolled_back,
    set_aside_rolled_back,
)


def test_a_run_that_an_older_version_saved_may_go_on(tmp_path):
    """Those saved what Hydra had composed: no defaults of other keys, ``name`` as it was given."""
    words = ["preset=tiny", "data=local", "data.files=[a.txt]", "train.max_steps=5"]
    older = load_config("train", words)
    for key in ("mask_documents", "sampled_softmax", "kernels"):  # options that did not exist then
        del older["train"][key]
    assert older["name"] is None
    assert "subset" not in older["data"]
    check_unchanged(older, resolve([*words, "train.max_steps=9"], autobatch.choose_micro_batch), tmp_path)
    with pytest.raises(UserError, match=r"train\.seq_len was 320, now 64"):
        check_unchanged(older, resolve([*words, "train.seq_len=64"], autobatch.choose_micro_batch), tmp_path)


def test_a_run_with_options_that_are_gone_goes_on(tmp_path):
    words = ["preset=tiny", "data=local", "data.files=[a.txt]", "train.max_steps=5"]
    older = load_config("train", words)
    older["train"] |= {"kernels": "avx512int8", "qat_share": 0.1, "background_save": True, "pin": True}
    older["optim"] |= {"head_lr": 0.007, "eps": 1e-10, "init_embed_std": 0.8, "schedule": "wsd"}
    older["model"] |= {"norm_eps": 1e-5, "conv_width": 3, "vocab_multiple": 64}
    older["logger"] = {"name": "none", "project": "slm"}
    kept = json.dumps(older)
    check_unchanged(older, resolve(words, autobatch.choose_micro_batch), tmp_path)
    assert json.dumps(older) == kept, "what was saved is not changed"
    renamed = without_removed(older)
    assert (renamed["train"]["kernels"], renamed["train"]["precision"]) == ("avx512", "int8")
    assert renamed["optim"]["schedule"] == "linear"
    assert build(RunConfig, {**renamed, "name": "any"}).logger == "none"


def test_only_checkpoints_after_the_start_are_renamed(tmp_path):
    folders = [tmp_path / "checkpoints" / f"step-{step:08d}" for step in (1, 2, 3)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert back_up_later_checkpoints(tmp_path, folders[1], 2) == ["step-00000003"]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000001", "step-00000002", "step-00000003.1"]


@pytest.mark.parametrize("spelling", ["step-00000001", "runs/mine/best", "{absolute}"])
def test_a_checkpoint_is_the_same_however_it_is_spelled(spelling, tmp_path, monkeypatch):
    """Else the later ones would not be set aside, and the run's new checkpoints not be saved over them."""
    monkeypatch.chdir(tmp_path)
    root = Path("runs/mine")
    folders = [root / "checkpoints" / f"step-{step:08d}" for step in (1, 2)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (root / "best").symlink_to("checkpoints/step-00000001")
    start = named_checkpoint(spelling.format(absolute=folders[0].absolute()), root)
    assert back_up_later_checkpoints(root, start, 1) == ["step-00000002"]


def test_what_a_rollback_renamed_goes_when_the_run_has_passed_it(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (10, 20, 25, 30):
        (folder / f"step-{step:08d}").mkdir(parents=True)
        (folder / f"step-{step:08d}" / "config.json").write_text("{}")
    set_aside_rolled_back(tmp_path, folder / "step-00000020")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010", "step-00000020"]
    (folder / "step-00000030.1").mkdir()  # kept aside by a person's resume=: not ours to remove
    remove_rolled_back(tmp_path)
    assert (folder / "step-00000025.rolled-back").is_dir()  # the run has not come so far again
    (folder / "step-00000026").mkdir()
    (folder / "step-00000026" / "config.json").write_text("{}")
    remove_rolled_back(tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        *("step-00000010", "step-00000020", "step-00000026", "step-00000030.1", "step-00000030.rolled-back"),
    ]
    set_aside_rolled_back(tmp_path, folder / "step-00000020")
    assert (folder / "step-00000026.rolled-back").is_dir()


def test_a_checkpoint_from_elsewhere_sets_aside_the_runs_own_from_its_step_on(tmp_path):
    """They would be taken for those of the new training, which would then not be saved."""
    for folder, steps in (("mine", (1, 2, 3)), ("other", (2,))):
        for step in steps:
            path = tmp_path / folder / "checkpoints" / f"step-{step:08d}"
            path.mkdir(parents=True)
            (path / "config.json").write_text("{}")
    start = tmp_path / "other/checkpoints/step-00000002"
    assert back_up_later_checkpoints(tmp_path / "mine", start, 2) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("spelled", ["runs/mine/best", "runs/latest/checkpoints/step-00000001"])
def test_a_link_to_a_checkpoint_names_its_run(spelled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("runs/mine/checkpoints/step-00000001")
    path.mkdir(parents=True)
    Path("runs/mine/best").symlink_to("checkpoints/step-00000001")
    Path("runs/latest").symlink_to("mine")
    config = resolve(["preset=tiny", f"resume={spelled}"], autobatch.choose_micro_batch)
    assert config.root.resolve() == (tmp_path / "runs/mine").resolve()
