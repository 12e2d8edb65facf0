"""A run that is born again: two parts, a teacher that is the first one's end, resumed to the bit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.runs import list_checkpoints
from slm.train.components.born_again import TEACHER
from slm.train.config import RunConfig
from tests.helpers.small_run import SmallRun, differences, records

WORDS = (
    "optim=muon",
    "optim.init_bigrams=2000",
    "model.tie_embeddings=false",
    "distill.born_again=0.5",
    "distill.alpha=0.5",
    "train.phases=[{bags:4,until:0.25},{seq_len:16,until:0.5}]",
    "train.max_steps=8",
    "train.checkpoint_every=2",
    "train.keep_last=9",
)


def test_the_second_part_is_another_model_that_learns_from_the_first(whole):
    kept = [each for each in records(whole.root) if "lr" in each]
    assert "step 4: the model so far becomes the teacher of a new one" in whole.out
    assert [each["step"] for each in records(whole.root) if each.get("event") == "born_again"] == [4]
    assert [each["step"] for each in kept if "teacher_kl" in each] == [5, 6, 7, 8]
    assert [each["step"] for each in kept if "bag" in each] == [1]  # a quarter of the first part, and of no other
    assert [each["lr"] for each in kept[:4]] == [each["lr"] for each in kept[4:]]  # each part has a whole schedule
    assert whole.out.count("sequences of 16 tokens for the first 50% of this part") == 2
    assert [each["step"] for each in records(whole.root) if "val_loss" in each] == [4, 8]
    # What was validated is the teacher.
    taught = load_file(whole.root / TEACHER / "model.safetensors")
    last = load_file(whole.root / "checkpoints" / "step-00000004" / "model.safetensors")
    assert taught.keys() == last.keys()
    assert all(taught[name].equal(last[name]) for name in taught)
    new = load_file(whole.root / "checkpoints" / "step-00000006" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.nn.functional.cosine_similarity(new[name].flatten(), last[name].flatten(), dim=0) < 0.2


@pytest.mark.parametrize("step", [2, 4, 6])
def test_it_goes_on_where_it_was_stopped_to_the_bit(whole, runs, words, step):
    """Within the first part, where the second begins, and within that."""
    parts = runs / f"parts{step}"
    shutil.copytree(whole.root, parts)
    for later in range(step + 2, 9, 2):
        shutil.rmtree(parts / "checkpoints" / f"step-{later:08}")
    if step < 6:
        shutil.rmtree(parts / TEACHER)
    resumed = SmallRun(runs, f"name=parts{step}", *words).finish()
    assert ("becomes the teacher" in resumed.out) == (step <= 4)
    assert differences(*(each / "checkpoints" / "step-00000008" for each in (whole.root, parts))) == []
    began = [json.loads((each / "trainer_state.json").read_text())["began"] for each in list_checkpoints(whole.root)]
    assert began == [0, 0, 4, 4]


def test_a_run_without_its_teacher_is_refused_in_one_line(whole, runs, words):
    parts = runs / "without"
    shutil.copytree(whole.root, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000008")
    shutil.rmtree(parts / TEACHER)
    program = SmallRun(runs, "name=without", *words)
    assert program.wait() == 2
    assert "teacher cannot be read from" in program.err
    assert "resume=never" in program.err
    assert "Traceback" not in program.err


def test_a_run_with_another_teacher_is_refused_in_one_line(whole, runs, words):
    parts = runs / "another"
    shutil.copytree(whole.root, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000008")
    other = whole.root / "checkpoints" / "step-00000006" / "model.safetensors"
    shutil.copy(other, parts / TEACHER / "model.safetensors")
    program = SmallRun(runs, "name=another", *words)
    assert program.wait() == 2
    assert "its weights are not those that the run was taught by" in program.err
    assert "Traceback" not in program.err


def test_patience_is_the_second_models(runs, words):
    """A rate at which losses rise: the first model runs to its share all the same, and the second one is stopped."""
    rising = ("train.patience=1", "train.eval_every=1", "train.max_steps=12", "optim.lr=3", "optim.warmup_steps=0")
    run = SmallRun(runs, "name=impatient", *words, *rising).finish()
    events = [each["step"] for each in records(run.root) if each.get("event") == "born_again"]
    assert events == [6]
    losses = {each["step"]: each["val_loss"] for each in records(run.root) if "val_loss" in each}
    assert any(losses[step + 1] >= losses[step] for step in range(1, 5))
    assert "stopped early" in run.out
    assert max(losses) > 6
    assert "is finished" in SmallRun(runs, "name=impatient", *words, *rising).finish().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["distill.born_again=1"], "must be a share of the run below 1, for example 0.35"),
        (["distill.born_again=0.4", "distill.teacher=runs/a"], "leave it 0 with distill.teacher"),
        (["distill.born_again=0.4", "init_from=runs/a"], "begins twice with new weights"),
        (["distill.born_again=0.4", "train.qat=q4_0", "train.qat_share=0.6"], "train.qat_share=0.6 must be below 0.6"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig, load_config("train", ["preset=tiny", *words]))
