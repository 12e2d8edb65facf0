"""What a run's directory holds of its configuration, and how earlier runs and checkpoints are kept.

Tokenizer, texts and whole runs: tests/train/test_main.py.
"""

from omegaconf import OmegaConf

from slm.configuration import build, load_config, to_yaml
from train import autobatch
from train.config import RunConfig
from train.resolve import resolve
from train.run.run_dir import back_up, back_up_later_checkpoints


def test_a_config_that_was_saved_is_read_again(tmp_path):
    config = resolve(["preset=tiny", "data=local", "data.files=[a.txt]"], autobatch.choose_micro_batch)
    saved = OmegaConf.to_container(OmegaConf.create(to_yaml(config)))
    assert build(RunConfig, saved) == config
    composed = load_config("train", ["preset=tiny", "data=local", "data.files=[a.txt]"])
    assert saved | {"name": None} == {
        key: value | composed[key] if isinstance(value, dict) else composed[key] for key, value in saved.items()
    }, "the composed keys and values, and defaults of others"


def test_nothing_is_overwritten_by_a_backup(tmp_path):
    root = tmp_path / "mine"
    assert back_up(root) is None
    for n in (1, 2):
        root.mkdir()
        (root / "text").write_text(str(n))
        assert back_up(root) == tmp_path / f"mine.{n}"
    assert [(tmp_path / f"mine.{n}" / "text").read_text() for n in (1, 2)] == ["1", "2"]


def test_only_checkpoints_after_the_start_are_renamed(tmp_path):
    folders = [tmp_path / "checkpoints" / f"step-{step:08d}" for step in (1, 2, 3)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert back_up_later_checkpoints(tmp_path, folders[1]) == ["step-00000003"]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000001", "step-00000002", "step-00000003.1"]
