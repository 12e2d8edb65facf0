"""The time of an update: a row for each length, parts that add up, and steps made as conversations make them."""

import json
from itertools import islice

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.data.stream import marks
from slm.train.tools import update_time


def test_a_row_for_each_length_in_full_and_with_an_adapter(capfd):
    words = ["--shapes", "tiny", "--tokens", "128,64", "--rank", "4", "--seconds", "1"]
    assert update_time.main([*words, "train.threads=1", "train.workers=0"]) == 0
    out = capfd.readouterr().out
    rows = json.loads(out.splitlines()[-1])["rows"]
    assert [(row["kind"], row["tokens"]) for row in rows] == [
        ("full", 64),
        ("full", 128),
        ("LoRA 4", 64),
        ("LoRA 4", 128),
    ]
    for row in rows:
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"])
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"])
        assert all(seconds >= 0 for seconds in row["parts"].values())
        assert row["parts"]["update"] > 0
        if row["kernels"]:
            assert min(row["parts"].values()) > 0
    assert "ratio: to the fastest length" in out


def test_shapes_are_those_of_smollm2():
    shapes = update_time.SHAPES
    assert (shapes["135m"].n_params, shapes["360m"].n_params) == (134_515_008, 361_821_120)


@pytest.mark.parametrize(("tokens", "rows"), [(64, 1), (128, 1), (320, 5), (384, 2), (1024, 4)])
def test_a_step_has_its_tokens_in_conversations_with_a_quarter_scored(tokens, rows):
    one, two = islice(update_time.blocks(tokens, 500, scored=0.25, seed=1), 2)
    assert one.shape == (rows, tokens // rows + 1)
    assert (marks.ids_of(one) < 500).all()
    assert not np.array_equal(one, two)
    assert marks.is_scored(one[:, 1:]).sum() == tokens // 4
    starts = marks.conversation_starts(one[:, :-1])
    assert starts is not None
    assert len(np.unique(starts)) == tokens // rows // 64
    (plain,) = islice(update_time.blocks(tokens, 500, scored=1, seed=1), 1)
    assert marks.conversation_starts(plain) is None
    assert marks.is_scored(plain).all()


def test_mistakes_are_one_line():
    for words, message in (
        (["--tokens", "100"], "--tokens 100: give multiples of 64"),
        (["--shapes", "13m"], "--shapes 13m: choose from 135m, 360m, tiny"),
        (["--scored", "0"], "give a share"),
        (["--seconds", "0"], "--seconds above 0"),
        (["--shapes", "tiny", "train.sead=1"], "sead"),
    ):
        with pytest.raises(UserError, match=message):
            update_time.main(words)
