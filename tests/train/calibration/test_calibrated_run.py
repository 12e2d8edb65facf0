"""A run whose head is calibrated at its end: what is validated and saved, and from where it goes on."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from slm.configuration import build, load_config
from slm.runs import list_checkpoints
from slm.train.calibration.end_of_run import COUNTS, HEAD
from slm.train.config import RunConfig
from slm.train.optim.average import TRAINED
from tests.helpers.small_run import SmallRun, differences, records

WORDS = (
    "optim=muon",
    "model.tie_embeddings=false",
    "train.eval_blocks=24",
    "train.max_steps=40",
    "train.checkpoint_every=20",
    "train.eval_every=20",
    "train.keep_last=9",
)
LAST = "step-00000040"


def test_the_calibrated_head_is_what_is_validated_and_saved(whole, runs, words):
    plain = SmallRun(runs, "name=plain", "train.calibrate_head=false", *words).finish()
    assert "step 40: the head is calibrated (train.calibrate_head): " in whole.out
    assert "calibrated" not in plain.out
    ours, theirs = ([each for each in records(run.root) if "val_loss" in each] for run in (whole, plain))
    assert [each["step"] for each in ours] == [20, 40]
    assert ours[0]["val_loss"] == theirs[0]["val_loss"]
    assert ours[1]["val_loss"] < theirs[1]["val_loss"]
    saved, other = (load_file(run.root / "checkpoints" / LAST / "model.safetensors") for run in (whole, plain))
    assert {name for name in saved if not saved[name].equal(other[name])} == {HEAD}
    state = load_file(whole.root / "checkpoints" / LAST / "optimizer.safetensors")
    assert state[f"{HEAD}.{TRAINED}"].equal(other[HEAD])
    assert state[COUNTS].sum() == 40 * 4 * 32
    never = state[COUNTS] == 0
    assert 100 < never.sum() < 290
    # They have the same row: nothing tells one word that never came from another.
    assert torch.equal(saved[HEAD][: len(never)][never], saved[HEAD][never.nonzero()[0]].expand(int(never.sum()), -1))


def test_it_goes_on_where_it_was_stopped_to_the_bit(whole, runs, words):
    parts = runs / "parts"
    shutil.copytree(whole.root, parts)
    shutil.rmtree(parts / "checkpoints" / LAST)
    SmallRun(runs, "name=parts", *words).finish()
    assert not differences(parts / "checkpoints" / LAST, whole.root / "checkpoints" / LAST)


def test_a_longer_run_goes_on_from_what_was_trained(whole, runs, words):
    longer = runs / "longer"
    shutil.copytree(whole.root, longer)
    run = SmallRun(runs, "name=longer", *words, "train.max_steps=60").finish()
    assert "step 60: the head is calibrated" in run.out
    assert list_checkpoints(longer)[-1].name == "step-00000060"
    state = load_file(longer / "checkpoints" / "step-00000060" / "optimizer.safetensors")
    assert state[COUNTS].sum() == 60 * 4 * 32
    # Another schedule, so that nothing is equal to a run of 60 steps; but the rows of words that never came were
    # pushed on from where training had left them.
    never = (state[COUNTS] == 0).nonzero()[:, 0]
    trained = state[f"{HEAD}.{TRAINED}"][never]
    assert trained.std(0).max() > 1e-4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.tie_embeddings=false"], True),
        (["model.tie_embeddings=false", "train.calibrate_head=false"], False),
        (["model.tie_embeddings=true"], False),
        (["model.tie_embeddings=false", "train.qat=q4_0"], False),
        (["model.tie_embeddings=false", "init_from=model"], False),
    ],
)
def test_which_runs_are_calibrated(words, expected):
    assert build(RunConfig, load_config("train", ["preset=tiny", *words])).calibrates_head is expected
