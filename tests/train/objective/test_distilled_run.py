"""Runs with a teacher: from a cache and alive, resumed exactly, and on quantized weights with ``self`` as teacher."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.model.quantized import load_quantized
from slm.runs import list_checkpoints
from slm.train.objective.teacher_cache import FACTS
from slm.train.predict.forecast import make_forecast
from slm.train.resolve import resolve
from slm.train.tune.qat import continuing
from tests.helpers.programs import Program
from tests.helpers.small_run import OPTIONS, QUICK, SmallRun, differences, records


@pytest.fixture(scope="module")
def words(base) -> list[str]:
    """A new model that learns from the base."""
    options = [f"data.files=[{base.parent.parent}/documents.jsonl]", f"distill.teacher={base}", "tokenizer=file"]
    steps = ["train.max_steps=6", "train.checkpoint_every=3", "train.keep_last=9"]
    return [*options, f"tokenizer.path={base}/tokenizer", *steps]


def figures(root: Path) -> list[dict]:
    kept = ("loss", "teacher_kl", "val_loss")
    return [{key: each[key] for key in kept if key in each} for each in records(root) if "event" not in each]


def test_it_goes_on_where_it_was_stopped_to_the_bit(base, words, tmp_path):
    runs, more = base.parent, (f"distill.cache={tmp_path}/cache",)
    whole = SmallRun(runs, "name=kept", *words, *more).finish()
    assert (tmp_path / "cache" / FACTS).is_file()
    shutil.rmtree(tmp_path / "cache")  # the second run computes everything that it needs again
    parts = runs / "kept-parts"
    shutil.copytree(whole.root, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000006")
    resumed = SmallRun(runs, "name=kept-parts", *words, *more).finish()
    assert "step-00000003" in resumed.out
    assert differences(*(each / "checkpoints" / "step-00000006" for each in (whole.root, parts))) == []
    assert figures(whole.root) == figures(parts)
    assert f"from {base}; its predictions are kept in" in whole.out
    assert all(each["teacher_kl"] > 0 for each in figures(parts) if "teacher_kl" in each)


def test_quantized_weights_learn_from_the_model_that_they_came_from(base, tmp_path):
    """``make qat ... distill.teacher=self``: rounded from the first step on, with the unquantized model as teacher."""
    more = ("train.qat=tq2_0", "train.max_steps=3", "train.precision=f32")
    argv = [
        f"base={base}",
        f"runs_dir={tmp_path}/runs",
        *QUICK,
        "train.sample_prompts=[]",
        *more,
        "distill.teacher=self",
        "distill.alpha=1",
    ]
    config = continuing(argv)
    assert (config.distill.teacher, config.init_from) == ("self", str(list_checkpoints(base)[-1]))
    program = Program("slm.train.tune.qat", argv, tmp_path)
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, err
    assert "from the model that the run starts from" in out
    root = tmp_path / "runs" / "base-tq2_0"
    first, *_ = (each for each in records(root) if "teacher_kl" in each)
    assert first["loss"] == pytest.approx(first["teacher_kl"], rel=1e-6)
    assert first["teacher_kl"] > 1e-5
    assert load_quantized(list_checkpoints(root)[-1]).file_type == "tq2_0"


def test_a_loss_with_a_teacher_is_no_point_of_the_loss_law():
    """It is no cross-entropy, so nothing is predicted from it."""
    plain, taught = (resolve(["preset=tiny", *more], lambda c: c) for more in ((), ("distill.teacher=a",)))
    assert make_forecast(plain) is not None
    assert make_forecast(taught) is None
    predicted = {"bits_per_byte": 1.9, "low": 1.8, "high": 2.0}
    planned = make_forecast(replace(taught, facts={"predicted": predicted}))
    assert planned is not None
    planned.training(10, 1.0, 3.0)
    planned.validation(10, 3.0, 2.0)
    outlook = planned.at_end(100)  # what the plan said: the curve of the first model says nothing of the second's end
    assert outlook is not None
    assert outlook.text() == "1.900 ± 0.100 bits per byte"


def test_what_does_not_fit_is_one_line(base):
    options = [*OPTIONS, f"data.files=[{base.parent.parent}/documents.jsonl]"]
    with pytest.raises(UserError, match=r"distill.teacher=self is the model that the run starts from: name it"):
        resolve([*options, "distill.teacher=self"], lambda config: config)
    with pytest.raises(UserError, match="are two losses"):
        resolve([*options, "distill.teacher=a", "preference.loss=orpo"], lambda config: config)
