"""The phases of a run: what their steps read, and runs that are resumed on either side of the changes."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.train.components.component import Step
from slm.train.components.phases import Phases, cut
from slm.train.config import RunConfig
from slm.train.objective.objective import CROSS_ENTROPY
from slm.train.objective.superposition import Superposition
from slm.train.phases import Phase
from tests.helpers.small_run import SmallRun, differences, records, write_corpus

PHASES = (Phase(bags=4, until=0.2), Phase(seq_len=8, until=0.6))
BLOCKS = np.arange(2 * 33, dtype=np.int32).reshape(2, 33)


class Silent:
    """A log that nobody reads."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def phases_of(*phases: Phase) -> Phases:
    """The component of a run with these phases."""
    config = build(RunConfig, load_config("train", ["preset=tiny", "train.seq_len=32"]))
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=300))
    state = SimpleNamespace(step=0, window=None)
    made = Phases(phases)
    made.attach(SimpleNamespace(config=config, model=model, state=state, log=Silent(), forget_losses=lambda: None))
    return made


def step_at(made: Phases, done: float) -> Step:
    step = Step(fraction_done=done, number=0, objective=CROSS_ENTROPY, batches=iter([BLOCKS] * 4), grad_accum=1)
    made.before_step(step)
    return step


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
    step = step_at(phases_of(*PHASES), done)
    assert type(step.objective) is kind
    batch = step.objective.split(next(step.batches))
    assert tuple(batch.ids.shape) == shape
    assert batch.positions == 64


def test_a_phase_that_is_over_does_not_come_back():
    """Until the first validation the end of a run is an estimate, so that the share that is done can fall; and a run
    that goes on may get more time."""
    made = phases_of(*PHASES)
    lengths = []
    for done in (0.19, 0.21, 0.18, 0.61, 0.3):
        step = step_at(made, done)
        lengths.append(step.objective.split(next(step.batches)).ids.shape[1:])
    assert lengths == [(8, 4), (8,), (8,), (32,), (32,)]
    resumed = phases_of(*PHASES)
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    step = step_at(resumed, 0.1)
    assert step.objective.split(next(step.batches)).ids.shape == (2, 32)


def test_a_run_with_short_sequences_is_resumed_exactly(tmp_path):
    corpus = write_corpus(tmp_path / "documents.jsonl")
    words = [
        f"data.files=[{corpus}]",
        "train.phases=[{seq_len:8,until:0.5}]",
        "train.max_steps=8",
        "train.checkpoint_every=2",
    ]
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
        (["train.phases=[{seq_len:7,until:0.5}]"], "seq_len=7 must divide train.seq_len=320, for example 80"),
        (["train.phases=[{seq_len:-8,until:0.5}]"], "must divide"),
        (["train.phases=[{seq_len:80,until:0}]"], "until=0 must be below 1 and above 0"),
        (["train.phases=[{bags:4,until:0.5},{seq_len:80,until:0.5}]"], "above 0.5, where the phase before ends"),
        (["train.phases=[{bags:4,seq_len:80,until:0.5}]"], "bags or seq_len, not both"),
        (["train.phases=[{bag:4,until:0.5}]"], r"no option train\.phases\[0\]\.bag; did you mean 'bags'"),
        (["data=chat", "data.files=[a.jsonl]", "train.phases=[{seq_len:80,until:0.5}]"], "would cut conversations"),
        (["train.superposition=4"], r"no option 'train\.superposition' any more: .*train\.phases=\[\{bags: 4"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig, load_config("train", ["preset=tiny", *words]))
