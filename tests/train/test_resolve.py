"""The command line becomes one frozen configuration; configurations that older versions saved are still understood."""

import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from data.errors import UserError
from slm.configuration import build, load_config
from tests.helpers import REPOSITORY
from train.config import RunConfig
from train.resolve import resolve
from train.run import run_dir


def no_choice(config: RunConfig) -> RunConfig:
    raise AssertionError("nothing is to be measured")


def test_the_configuration_is_complete_and_frozen():
    config = resolve(["preset=10m", "optim.betas=[0.8,0.9]"], no_choice)
    assert (config.name, str(config.root)) == ("10m", "runs/10m")
    assert config.optim.betas == (0.8, 0.9)
    for part in (config, config.model, config.optim, config.train, config.logger):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)


def test_a_checkpoint_names_its_run_unless_a_name_is_given():
    named = resolve(["resume=/data/runs/mine/checkpoints/step-00000003"], no_choice)
    assert str(named.root) == "/data/runs/mine"
    assert named.resume == "/data/runs/mine/checkpoints/step-00000003"
    other = resolve(["resume=/data/runs/mine/checkpoints/step-00000003", "name=other"], no_choice)
    assert str(other.root) == "runs/other"


def test_auto_is_given_the_presets_own_numbers():
    seen = []

    def choose(config: RunConfig) -> RunConfig:
        seen.append(config)
        return dataclasses.replace(config, train=dataclasses.replace(config.train, micro_batch=1))

    config = resolve(["preset=tiny", "train.micro_batch=auto"], choose)
    assert (seen[0].train.micro_batch, config.train.micro_batch) == (12, 1)


def test_mistakes_are_found_before_torch_is_imported():
    program = (
        "import sys\nfrom data.errors import UserError\nfrom train.__main__ import main\n"
        "try: main(['model.d_model=700'])\nexcept UserError as error: print(error)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "use 512 or 768" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_a_config_that_was_saved_is_read_again(tmp_path):
    config = resolve(["preset=tiny", "data=local", "data.files=[a.txt]"], no_choice)
    run_dir.write_config(config, tmp_path)
    saved = OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"))
    assert build(RunConfig, saved) == config
    run_dir.check_same(saved, config, tmp_path)
    composed = load_config("train", ["preset=tiny", "data=local", "data.files=[a.txt]"])
    assert saved | {"name": None} == {
        key: value | composed[key] if isinstance(value, dict) else composed[key] for key, value in saved.items()
    }, "the composed keys and values, and defaults of others"


def test_a_run_that_an_older_version_saved_may_go_on(tmp_path):
    """Those saved what Hydra had composed: no defaults of other keys, ``name`` as it was given."""
    words = ["preset=tiny", "data=local", "data.files=[a.txt]", "train.max_steps=5"]
    older = load_config("train", words)
    for key in ("mask_documents", "reshard", "kernels"):  # options that did not exist then
        del older["train"][key]
    assert older["name"] is None
    assert "subset" not in older["data"]
    run_dir.check_same(older, resolve([*words, "train.max_steps=9"], no_choice), tmp_path)
    with pytest.raises(UserError, match=r"train\.seq_len was 320, now 64"):
        run_dir.check_same(older, resolve([*words, "train.seq_len=64"], no_choice), tmp_path)
