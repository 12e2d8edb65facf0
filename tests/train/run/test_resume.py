"""Options that define a run may not change when it is resumed; those that an older version saved are understood.

Damaged checkpoints: tests/slm/model/test_checkpoint.py. Whole runs: tests/train/test_resume.py.
"""

import pytest

from data.errors import UserError
from slm.configuration import load_config
from train import autobatch
from train.resolve import resolve
from train.run.resume import back_up_later_checkpoints, check_unchanged


def test_a_run_that_an_older_version_saved_may_go_on(tmp_path):
    """Those saved what Hydra had composed: no defaults of other keys, ``name`` as it was given."""
    words = ["preset=tiny", "data=local", "data.files=[a.txt]", "train.max_steps=5"]
    older = load_config("train", words)
    for key in ("mask_documents", "reshard", "kernels"):  # options that did not exist then
        del older["train"][key]
    assert older["name"] is None
    assert "subset" not in older["data"]
    check_unchanged(older, resolve([*words, "train.max_steps=9"], autobatch.choose_micro_batch), tmp_path)
    with pytest.raises(UserError, match=r"train\.seq_len was 320, now 64"):
        check_unchanged(older, resolve([*words, "train.seq_len=64"], autobatch.choose_micro_batch), tmp_path)


def test_only_checkpoints_after_the_start_are_renamed(tmp_path):
    folders = [tmp_path / "checkpoints" / f"step-{step:08d}" for step in (1, 2, 3)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert back_up_later_checkpoints(tmp_path, folders[1]) == ["step-00000003"]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000001", "step-00000002", "step-00000003.1"]
