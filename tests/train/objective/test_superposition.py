"""Bags of tokens: gradients against the definition, runs that are resumed on either side of the change."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.model.transformer import rope_tables
from slm.train.config import RunConfig
from slm.train.objective.superposition import Superposition, joined
from tests.helpers.small_run import SmallRun, differences, records, write_corpus
from tests.train.objective.test_preference import backend_of, model_of

BAG = 4
BLOCKS = np.random.default_rng(5).integers(1, 12, (3, 33)).astype(np.int32)
"""Few different ids, so that a bag holds some of them twice."""


def definition(model) -> torch.Tensor:
    """The mean over all targets of bags, position by position."""
    bags_BPS = torch.from_numpy(BLOCKS[:, :-1].astype(np.int64)).reshape(3, 8, BAG)
    x_BPD = torch.stack([model.model.embed_tokens(bags_BPS[:, :, i]) for i in range(BAG)]).sum(0) / BAG
    for layer in model.model.layers:
        x_BPD = layer(x_BPD, *rope_tables(model.config, 0, 8))
    logits_BPV = F.linear(model.model.norm(x_BPD), model.head_weight_VD)
    each = [F.cross_entropy(logits_BPV[:, :-1].flatten(0, 1), bags_BPS[:, 1:, i].flatten()) for i in range(BAG)]
    return torch.stack(each).mean()


def assert_gradients(objective, model, kind: str, blocks: np.ndarray, loss: torch.Tensor, *, count: int) -> None:
    """The objective's loss and gradients, by one kind of backend, equal those of ``loss``, a mean over ``count``."""
    loss.backward()
    expected = {name: each.grad for name, each in model.named_parameters()}
    model.zero_grad()
    part = objective.gradients(backend_of(kind, model), objective.split(blocks), 1 / count)
    assert part.count == count
    tolerance = 0.03 if kind == "avx512bf16" else 1e-4
    assert part.loss / part.count == pytest.approx(loss.item(), rel=tolerance)
    for name, each in model.named_parameters():
        off = (each.grad - expected[name]).norm() / expected[name].norm()
        assert off < tolerance, name


@pytest.mark.parametrize("kind", ["autograd", "avx2", "avx512bf16"])
@pytest.mark.parametrize("tie", [False, True])
def test_gradients_are_those_of_the_definition(kind, tie):
    model = model_of(1, tie)
    assert Superposition(BAG).split(BLOCKS).positions == 24
    # The last bag of a sequence has none to predict.
    assert_gradients(Superposition(BAG), model, kind, BLOCKS, definition(model), count=21)


def test_batches_are_joined_in_their_order():
    batches = joined(iter([BLOCKS[:1], BLOCKS[1:2], BLOCKS[2:], BLOCKS[:1]]), 2)
    assert np.array_equal(next(batches), BLOCKS[:2])
    assert np.array_equal(next(batches), BLOCKS[[2, 0]])


def test_a_run_changes_from_bags_to_tokens_and_is_resumed_exactly(tmp_path):
    corpus = write_corpus(tmp_path / "documents.jsonl")
    words = [f"data.files=[{corpus}]", "train.phases=[{bags:4,until:0.5}]", "train.max_steps=8"]
    words += ["train.checkpoint_every=2", "train.keep_last=9"]
    whole = SmallRun(tmp_path / "runs", "name=whole", *words).finish()
    assert "step 0: bags of 4 tokens for the first 50% of the run" in whole.out
    assert "step 4: from here on single tokens" in whole.out
    kept = [each for each in records(whole.root) if "lr" in each]
    assert [each.get("bag") for each in kept] == [4] * 4 + [None] * 4
    assert [each["tokens"] for each in kept] == [128 * step for step in range(1, 9)]  # positions
    for step in (2, 4, 6):  # within the bags, at the change, after it
        parts = tmp_path / "runs" / f"parts{step}"
        shutil.copytree(whole.root, parts)
        for later in range(step + 2, 9, 2):
            shutil.rmtree(parts / "checkpoints" / f"step-{later:08}")
        resumed = SmallRun(tmp_path / "runs", f"name=parts{step}", *words).finish()
        assert ("step 4: from here on single tokens" in resumed.out) == (step <= 4)
        assert differences(*(each / "checkpoints" / "step-00000008" for each in (whole.root, parts))) == []
    state = json.loads((whole.root / "checkpoints" / "step-00000004" / "trainer_state.json").read_text())
    assert state["phases"]["bag"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.phases=[{bags:3,until:0.1}]"], "bags=3 must divide train.seq_len=320"),
        (["train.phases=[{bags:320,until:0.1}]"], "into at least two bags"),
        (["train.phases=[{bags:4,until:0.1}]", "init_from=runs/mine"], "for a new model on plain text"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig, load_config("train", ["preset=tiny", *words]))
