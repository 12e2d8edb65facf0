"""A text that is not there is told before anything is measured or trained (``check_files``)."""

import pytest

from slm.data.errors import UserError
from slm.train.budget import choose
from slm.train.sweep.sweep import main as sweep
from slm.train.tools import bench, plan, preset_plan

COMMANDS = {
    "menu": (plan.main, ["budget=1h"]),
    "plan": (plan.main, ["preset=tiny"]),
    "bench": (bench.main, ["preset=tiny"]),
    "sweep": (sweep, ["preset=tiny", "optim.lr=0.01,0.02"]),
    "budget": (lambda words: choose.choose(words, 3600.0), ["name=mine"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_or_missing_folder_is_told_before_anything_is_measured(command, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("measured")

    for module in (choose, preset_plan):
        monkeypatch.setattr(module, "measured", never)
    monkeypatch.setattr(bench, "in_fresh_process", never)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    run, words = COMMANDS[command]
    for folder, said in (("empty", "holds no file of text"), ("absent", "there is no file absent")):
        with pytest.raises(UserError, match=said):
            run([*words, "data=local", f"data.files=[{folder}]", f"runs_dir={tmp_path}/runs"])
    assert not (tmp_path / "runs").exists()
