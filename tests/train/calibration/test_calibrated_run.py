"""A run whose head is calibrated at its end: what is validated and saved, and from where it goes on."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy, linear

from slm.configuration import build, load_config
from slm.data.sources.documents import iter_documents, make_plans, open_documents
from slm.data.stream.loader import calibration_blocks, validation_text
from slm.data.tokenizers.make import load_tokenizer
from slm.model.checkpoint import load_model
from slm.runs import list_checkpoints
from slm.train.components.head_calibration import COUNTS, POSITIONS, TRAINED, blocks_needed
from slm.train.config import RunConfig
from tests.helpers.documents import take
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


def test_it_is_fitted_to_training_text_that_is_not_trained_on(whole):
    """Validation text is what heads are compared on: fitted to it, a calibrated one would be flattered."""
    config = build(RunConfig, load_config("train", whole.argv))
    tokenizer = load_tokenizer(whole.root / "tokenizer")
    blocks = calibration_blocks(config.data, tokenizer, 32, blocks_needed(32), config.train.seed)
    (event,) = [each for each in records(whole.root) if each.get("event") == "calibrated"]
    assert event["tokens"] == min(POSITIONS, blocks[:, 1:].size)
    pieces = [piece for row in blocks for piece in tokenizer.decode(row).split("<|endoftext|>") if len(piece) > 30]
    assert len(pieces) > 10
    trained = take(open_documents(make_plans(config.data, "train", calibrates=True), seed=1))
    validation = list(iter_documents(config.data, "validation", 1))
    for piece in pieces:
        assert not any(piece in document for document in (*trained, *validation))


def test_the_calibrated_head_is_what_is_validated_and_saved(whole):
    assert "step 40: the head is calibrated (train.calibrate_head): " in whole.out
    validated = {each["step"]: each["val_loss"] for each in records(whole.root) if "val_loss" in each}
    assert list(validated) == [20, 40]
    config = build(RunConfig, load_config("train", whole.argv))
    tokenizer = load_tokenizer(whole.root / "tokenizer")
    blocks = torch.from_numpy(validation_text(config.data, tokenizer, 32, 24, config.train.seed).blocks).long()
    state = load_file(whole.root / "checkpoints" / LAST / "optimizer.safetensors")
    model = load_model(whole.root / "checkpoints" / LAST)
    saved = model.lm_head.weight.detach().clone()

    @torch.no_grad()
    def loss() -> float:
        states = model.hidden_states(blocks[:, :-1])
        return cross_entropy(linear(states, model.lm_head.weight).flatten(0, 1), blocks[:, 1:].flatten()).item()

    assert loss() == pytest.approx(validated[40], rel=1e-4)
    model.lm_head.weight.data = state[TRAINED]
    assert loss() > validated[40] * 1.001
    assert state[COUNTS].sum() == 40 * 4 * 32
    never = state[COUNTS] == 0
    assert 100 < never.sum() < 290
    # They have the same row: nothing tells one word that never came from another.
    assert torch.equal(saved[: len(never)][never], saved[never.nonzero()[0]].expand(int(never.sum()), -1))


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
    trained = state[TRAINED][never]
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
