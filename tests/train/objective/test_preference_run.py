"""``make tune ... preference.loss=dpo|orpo``: what is recorded, the exact resume, and what is refused."""

import json
import math
import shutil
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.data.stream.loader import validation_text
from slm.data.tokenizers.make import load_tokenizer
from slm.train.objective.reference import FILE
from slm.train.resolve import resolve
from slm.train.tune.__main__ import tuning
from slm.train.tune.rule import LEAST_UPDATES
from tests.helpers.programs import Program
from tests.helpers.small_run import QUICK, differences, records

SHORT = (
    "train.sample_prompts=[]",
    "train.seq_len=96",
    "train.micro_batch=2",
    "train.grad_accum=2",
    "train.eval_blocks=2",
)
STEPS = ("train.max_steps=6", "train.checkpoint_every=3", "train.eval_every=3", "train.keep_last=9")


@pytest.fixture(scope="module")
def words(base, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("pairs")
    made = [
        {"prompt": f"Say {index}", "chosen": "cat " * (index % 3 + 1), "rejected": "dog " * (index % 4 + 1)}
        for index in range(60)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, made)))
    options = [f"base={base}", f"runs_dir={folder}/runs", "data=chat", f"data.files=[{folder}/pairs.jsonl]"]
    return [*options, *QUICK, *SHORT, *STEPS, "data.val_fraction=0.2"]


def run(words: list[str], *more: str) -> str:
    folder = Path(words[1].removeprefix("runs_dir=")).parent / "logs"
    folder.mkdir(exist_ok=True)
    program = Program("slm.train.tune.__main__", [*words, *more], folder)
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, out + err
    return out


@pytest.fixture(scope="module")
def whole(words) -> tuple[Path, str]:
    out = run(words, "name=whole", "preference.loss=dpo", "optim.lr=2e-3", "optim.warmup_steps=1")
    return Path(words[1].removeprefix("runs_dir=")) / "whole", out


def test_rewards_are_recorded_for_training_and_held_out_pairs(whole):
    root, out = whole
    assert "DPO on pairs: beta 0.1; the reference is the model that the run starts from" in out
    steps = [each for each in records(root) if "lr" in each]
    assert steps[0]["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert steps[0]["reward_margin"] == pytest.approx(0.0, abs=1e-5)
    assert steps[-1]["reward_accuracy"] == 1.0
    assert steps[-1]["reward_margin"] > 0.05
    held_out = [each for each in records(root) if "val_loss" in each]
    assert [each["step"] for each in held_out] == [3, 6]
    assert held_out[1]["val_loss"] < held_out[0]["val_loss"] < math.log(2)
    assert held_out[1]["val_reward_accuracy"] == 1.0
    assert f"{held_out[1]['val_reward_margin']:.3f} nats; the chosen answers have" in out
    assert "pairs right 100%" in out


def test_it_goes_on_where_it_was_stopped_to_the_bit(words, whole):
    root, _ = whole
    parts = root.parent / "parts"
    shutil.copytree(root, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000006")
    out = run(words, "name=parts", "preference.loss=dpo", "optim.lr=2e-3", "optim.warmup_steps=1")
    assert "step-00000003" in out
    assert differences(*(each / "checkpoints" / "step-00000006" for each in (root, parts))) == []
    mine, its = (
        [{k: v for k, v in each.items() if k.startswith(("loss", "reward", "val_"))} for each in records(where)]
        for where in (root, parts)
    )
    assert mine == its
    assert (parts / FILE).read_bytes() == (root / FILE).read_bytes()


def test_the_recipe_is_slower_than_for_conversations(words):
    long = [word for word in words if not word.startswith(("train.max_steps", "train.grad_accum", "train.micro_batch"))]
    long += ["train.micro_batch=1"]
    plain, dpo, orpo = (tuning([*long, *more]) for more in ((), ("preference.loss=dpo",), ("preference.loss=orpo",)))
    assert dpo.optim.lr == pytest.approx(0.02 * plain.optim.lr, rel=1e-2)
    assert orpo.optim.lr == pytest.approx(0.2 * plain.optim.lr, rel=1e-2)
    assert (plain.name, dpo.name, orpo.name) == ("base-chat", "base-dpo", "base-orpo")
    # Few records are read as often as it takes.
    assert min(each.train.max_steps for each in (plain, dpo, orpo)) >= LEAST_UPDATES


def test_what_cannot_be_learned_is_one_line(words, base, tmp_path):
    with pytest.raises(UserError, match=r"learns from pairs of answers: give data=chat"):
        tuning([f"base={base}", "preference.loss=dpo"])
    with pytest.raises(UserError, match="without text"):
        tuning([*words, "preference.loss=dpo", "tune.replay=0.5"])
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"Say {i}", "completion": "cat"}) for i in range(40)))
    config = resolve(["data=chat", f"data.files=[{path}]"], lambda config: config)
    with pytest.raises(UserError, match="there is no preference pair in the files"):
        validation_text(config.data, load_tokenizer(base / "tokenizer"), 64, 2, 1, pairs=True)
