"""The command line becomes one frozen configuration."""

import dataclasses
import subprocess
import sys

import pytest

from slm.configuration import to_yaml
from slm.data.errors import UserError
from slm.train.config import RunConfig
from slm.train.resolve import resolve
from tests.helpers import REPOSITORY


def no_choice(config: RunConfig) -> RunConfig:
    raise AssertionError("nothing is to be measured")


def test_the_configuration_is_complete_and_frozen():
    config = resolve(["preset=10m", "optim.betas=[0.8,0.9]"], no_choice)
    assert (config.name, str(config.root)) == ("10m", "runs/10m")
    assert config.optim.betas == (0.8, 0.9)
    for part in (config, config.model, config.optim, config.train):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)


def test_a_checkpoint_names_its_run_unless_a_name_is_given():
    named = resolve(["resume=/data/runs/mine/checkpoints/step-00000003"], no_choice)
    assert str(named.root) == "/data/runs/mine"
    assert named.resume == "/data/runs/mine/checkpoints/step-00000003"
    other = resolve(["resume=/data/runs/mine/checkpoints/step-00000003", "name=other"], no_choice)
    assert str(other.root) == "runs/other"


def test_a_downloaded_model_is_trained_with_adamw_unless_another_optimizer_is_named():
    assert resolve(["preset=10m", "optim=muon"], no_choice).optim.name == "muon"
    tuned = resolve(["preset=10m", "init_from=smollm2", "optim.lr=1e-4"], no_choice).optim
    assert (tuned.name, tuned.lr, tuned.schedule) == ("adamw", 1e-4, "cosine")
    assert resolve(["preset=10m", "init_from=smollm2", "optim=muon"], no_choice).optim.name == "muon"


def test_adamw_has_the_presets_learning_rate():
    adamw = resolve(["preset=50m", "optim=adamw"], no_choice).optim
    assert (adamw.lr, adamw.warmup_steps, adamw.schedule) == (1.5e-3, 300, "cosine")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("optim=classic", "no optim 'classic' any more: give optim=adamw"),
        ("optim.schedule=wsd", "any more: give optim.schedule=linear"),
        ("train.kernels=avxvnniint8", "any more: give train.kernels=avx2 train.precision=int8"),
        ("train.qat_share=0.2", r"any more: give \+components.quantization.share"),
        ("optim.head_lr=0.1", "any more: optim.other_lr_scale multiplies"),
        ("logger.project=mine", "any more: WANDB_PROJECT"),
    ],
)
def test_what_is_gone_says_what_takes_its_place(word, says):
    with pytest.raises(UserError, match=says):
        resolve(["preset=tiny", word], no_choice)


def test_auto_is_given_the_presets_own_numbers():
    seen = []

    def choose(config: RunConfig) -> RunConfig:
        seen.append(config)
        return dataclasses.replace(config, train=dataclasses.replace(config.train, micro_batch=1))

    config = resolve(["preset=tiny", "train.micro_batch=auto"], choose)
    assert (seen[0].train.micro_batch, config.train.micro_batch) == (12, 1)
    resolve(["preset=tiny", "train.micro_batch=6", "train.micro_batch=auto"], choose)  # as after a budget's choice
    assert seen[1].train.micro_batch == 6


def test_mistakes_are_found_before_torch_is_imported():
    program = (
        "import sys\nfrom slm.data.errors import UserError\nfrom slm.train.__main__ import main\n"
        "try: main(['model.d_model=700'])\nexcept UserError as error: print(error)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "use 512 or 768" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_a_run_is_continued_by_its_name_with_its_own_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = resolve(["preset=10m", "name=mine", "optim.lr=0.003", "train.seq_len=64", "train.max_steps=7"], no_choice)
    (tmp_path / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").write_text(to_yaml(begun))
    assert resolve(["resume=mine"], no_choice) == begun
    assert resolve(["resume='runs/mine'", "preset=10m"], no_choice) == begun
    more = resolve(["resume=mine", "budget=1h", "train.keep_last=5"], no_choice)
    assert (more.train.max_minutes, more.train.keep_last, more.optim.lr) == (60, 5, 0.003)
    assert more.train.max_steps > 100_000
    longer = resolve(["resume=mine", "train.max_steps=9"], no_choice)
    assert (longer.train.max_steps, longer.train.max_minutes, longer.model) == (9, None, begun.model)


@pytest.mark.parametrize(
    ("name", "config", "words", "why"),
    [
        ("bare", None, [], "bare has no config.yaml"),
        ("torn", "- 1", [], "torn/config.yaml cannot be read"),
        ("mine", "preset: 10m", ["preset=50m"], "leave preset=50m out"),
        ("mine", "preset: 10m", ["train.max_step=9"], "train.max_step"),
    ],
)
def test_why_a_run_is_not_continued_is_one_line(tmp_path, monkeypatch, name, config, words, why):
    monkeypatch.delenv("SLM_MAKE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
    if config:
        (tmp_path / "runs" / name / "config.yaml").write_text(config)
    with pytest.raises(UserError, match=why):
        resolve([f"resume={name}", *words], no_choice)
