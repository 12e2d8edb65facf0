"""Predictions that are kept in a folder are those that were computed, and the teacher is asked for each text once."""

import json

import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.train.objective.batch import split
from slm.train.objective.soft_targets import SparseTargets
from slm.train.objective.teacher_cache import ENTRY, FACTS, CachedTeacher
from tests.train.objective.test_distillation import N_IDS, blocks, teacher_of
from tests.train.objective.test_preference import model_of


class Counted:
    """A teacher that counts how often it is loaded and asked."""

    def __init__(self) -> None:
        self.model, self.loaded, self.asked = model_of(2), 0, 0

    def load(self):
        self.loaded += 1
        teacher = teacher_of(self.model)
        true = teacher.targets

        def targets(batch):
            self.asked += 1
            return true(batch)

        teacher.targets = targets
        return teacher


def open_cache(folder, counted: Counted, **changes) -> CachedTeacher:
    facts = {"teacher": "a", "cache_top": 5}
    return CachedTeacher(folder, facts | changes, counted.load, n_ids=N_IDS, top=5, samples=4, eot_id=None)


def same(one: SparseTargets, two: SparseTargets) -> bool:
    pairs = zip((one.ids, one.weights, one.entropy), (two.ids, two.weights, two.entropy), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_each_text_is_computed_once_and_found_wherever_it_comes_next(tmp_path):
    counted = Counted()
    cache, batch = open_cache(tmp_path / "kept", counted), split(blocks())
    first = cache.targets(batch)
    scored = (batch.targets != -100).flatten()
    torch.testing.assert_close(first.weights.sum(1), scored.float())
    log_q = teacher_of(counted.model).targets(batch).probabilities(slice(0, len(scored)))
    assert torch.equal(first.ids[scored][:, :5], log_q[scored].topk(5).indices)
    torch.testing.assert_close(first.weights[scored][:, :5], log_q[scored].exp().topk(5).values)
    assert same(first, cache.targets(batch))
    assert (counted.loaded, counted.asked) == (1, 1)

    again = open_cache(tmp_path / "kept", counted)
    turned = again.targets(split(blocks()[::-1].copy()))
    rows = np.arange(len(scored)).reshape(batch.ids.shape)[::-1].reshape(-1).copy()
    assert same(turned, SparseTargets(first.ids[rows], first.weights[rows], first.entropy[rows]))
    assert counted.loaded == 1  # it is not even loaded

    # What was not written as a whole is computed again, and drawn as before.
    (index,) = (tmp_path / "kept").glob("*.index")
    content = index.read_bytes()
    assert len(content) % ENTRY.size == 0
    index.write_bytes(content[: -ENTRY.size - 3])
    damaged = index.with_suffix(".rows")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    part = open_cache(tmp_path / "kept", counted)
    assert same(part.targets(batch), first)
    assert counted.loaded == 2
    assert same(open_cache(tmp_path / "kept", counted).targets(batch), first)
    assert counted.loaded == 2


def test_another_teachers_predictions_are_not_taken(tmp_path):
    counted = Counted()
    open_cache(tmp_path, counted)
    with pytest.raises(UserError, match=r"holds other predictions \(teacher was a, is b\)"):
        open_cache(tmp_path, counted, teacher="b")
    assert json.loads((tmp_path / FACTS).read_text())["teacher"] == "a"
    (tmp_path / FACTS).write_text("{")
    with pytest.raises(UserError, match="cannot be used"):
        open_cache(tmp_path, counted)
