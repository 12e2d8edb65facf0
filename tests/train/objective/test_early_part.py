"""The first part of a run: what its steps read, and runs that are resumed on either side of the changes."""

import shutil

import numpy as np
import pytest

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.train.config import RunConfig
from slm.train.objective.early_part import cut, of_step
from slm.train.objective.objective import CROSS_ENTROPY
from slm.train.objective.superposition import Superposition
from tests.helpers.small_run import SmallRun, differences, records, write_corpus

OPTIONS = ("preset=tiny", "train.seq_len=32", "train.superposition=4", "train.superposition_share=0.2")
SHORT = (*OPTIONS, "train.short_seq_len=8", "train.short_seq_share=0.6")
BLOCKS = np.arange(2 * 33, dtype=np.int32).reshape(2, 33)


def test_each_token_is_predicted_once_in_a_short_sequence():
    (block,) = cut(iter([BLOCKS]), 8)
    assert block.shape == (8, 9)
    assert sorted(block[:, :-1].flatten()) == sorted(BLOCKS[:, :-1].flatten())
    assert sorted(block[:, 1:].flatten()) == sorted(BLOCKS[:, 1:].flatten())
    assert (np.diff(block) == 1).all()  # neighbours stay neighbours


@pytest.mark.parametrize(
    ("done", "kind", "shape"),
    [
        (0.0, Superposition, (8, 8, 4)),
        (0.3, type(CROSS_ENTROPY), (8, 8)),
        (0.6, type(CROSS_ENTROPY), (2, 32)),
    ],
)
def test_bags_then_short_sequences_then_whole_ones(done, kind, shape):
    train = build(RunConfig, load_config("train", [*SHORT])).train
    objective, batches = of_step(train, 300, done, CROSS_ENTROPY, iter([BLOCKS] * 4))
    assert type(objective) is kind
    batch = objective.split(next(batches))
    assert tuple(batch.ids.shape) == shape
    assert batch.positions == 64


def test_a_run_with_short_sequences_is_resumed_exactly(tmp_path):
    corpus = write_corpus(tmp_path / "documents.jsonl")
    words = [f"data.files=[{corpus}]", "train.short_seq_len=8", "train.max_steps=8", "train.checkpoint_every=2"]
    words += ["train.keep_last=9"]
    whole = SmallRun(tmp_path / "runs", "name=whole", *words).finish()
    assert "step 0: sequences of 8 tokens for the first 50% of the run" in whole.out
    assert "step 4: sequences of 32 tokens from here on" in whole.out
    kept = [each for each in records(whole.root) if "lr" in each]
    assert [each["tokens"] for each in kept] == [128 * step for step in range(1, 9)]
    for step in (2, 4, 6):  # before the change, at it, after it
        parts = tmp_path / "runs" / f"parts{step}"
        shutil.copytree(whole.root, parts)
        for later in range(step + 2, 9, 2):
            shutil.rmtree(parts / "checkpoints" / f"step-{later:08}")
        SmallRun(tmp_path / "runs", f"name=parts{step}", *words).finish()
        assert differences(*(each / "checkpoints" / "step-00000008" for each in (whole.root, parts))) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.short_seq_len=7"], "train.short_seq_len=7 must divide train.seq_len=320, for example 80"),
        (["train.short_seq_len=-8"], "must divide"),
        (["train.short_seq_share=0"], "train.short_seq_share must be above 0 and below 1"),
        (["data=chat", "data.files=[a.jsonl]", "train.short_seq_len=80"], "would cut conversations"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig, load_config("train", ["preset=tiny", *words]))
