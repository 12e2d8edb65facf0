"""A trained run is continued for a quantized type: what it takes from its base, and what comes of it."""

import shutil

import pytest

from slm.data.errors import UserError
from slm.model.quantized import load_quantized
from slm.runs import list_checkpoints
from slm.train.tune.qat import continuing
from tests.helpers.programs import Program
from tests.helpers.small_run import SmallRun, losses, records, write_corpus


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    corpus = write_corpus(folder / "documents.jsonl")
    words = (f"data.files=[{corpus}]", "train.max_steps=60", "optim=muon", "train.eval_every=60")
    return SmallRun(folder / "runs", "name=base", *words).finish().root


def test_its_options_follow_from_the_base(base):
    config = continuing([f"base={base}", "runs_dir=there"])
    assert (config.name, config.runs_dir) == ("base-q4_0", "there")
    assert (config.train.qat, config.components["quantization"]["share"], config.train.max_steps) == ("q4_0", 1.0, 20)
    assert (config.train.seq_len, config.train.micro_batch, config.train.seed) == (32, 4, 1235)
    assert (config.optim.name, config.optim.schedule, config.optim.lr) == ("muon", "linear", pytest.approx(0.006))
    assert config.init_from == str(base / "checkpoints" / "step-00000060")
    assert config.data.files[0].endswith("documents.jsonl")
    own = continuing([f"base={base}", "train.qat=tq2_0", "train.max_steps=7", "optim.lr=0.5", "train.seq_len=16"])
    assert (own.name, own.train.max_steps, own.optim.lr, own.train.seq_len) == ("base-tq2_0", 7, 0.5, 16)
    assert continuing([f"base={base}", "qat.steps_share=0.5", "qat.lr_scale=1"]).train.max_steps == 30
    other = continuing([f"base={base}", "data.max_epochs=2"]).data
    assert (other.files, other.max_epochs) == (config.data.files, 2)  # its own text all the same


def test_what_cannot_be_continued_is_one_line(base, tmp_path):
    with pytest.raises(UserError, match="no model to continue is named"):
        continuing([])
    elsewhere = tmp_path / "model"
    shutil.copytree(list_checkpoints(base)[-1], elsewhere)
    with pytest.raises(UserError, match=r"is not a run of slm, so its text is not known: name some"):
        continuing([f"base={elsewhere}"])
    (elsewhere / "trainer_state.json").unlink()
    known = continuing([f"base={elsewhere}", "data=local", f"data.files=[{base}/validation.txt]"])
    assert (known.optim.name, known.train.max_steps) == ("adamw", 200)


def test_it_computes_with_quantized_weights_from_its_first_step(base, tmp_path):
    quick = (
        "train.kernels=eager",
        "train.threads=1",
        "train.workers=0",
        "train.sample_prompts=[]",
    )
    words = ("train.qat=tq2_0", "train.max_steps=6", "train.precision=f32")
    program = Program("slm.train.tune.qat", [f"base={base}", f"runs_dir={tmp_path}/runs", *quick, *words], tmp_path)
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, err
    assert "continuing " in out
    root = tmp_path / "runs" / "base-tq2_0"
    (began,) = (each for each in records(root) if each.get("event") == "quantized")
    assert (began["step"], began["file_type"]) == (0, "tq2_0")
    assert max(losses(root)) == 6
    assert load_quantized(list_checkpoints(root)[-1]).file_type == "tq2_0"
