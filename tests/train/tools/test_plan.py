"""The plan of a run agrees with the preset's own statement."""

import json

import pytest

from data.errors import UserError
from train.tools import plan


def test_the_last_line_is_the_plan_as_json(capsys):
    assert plan.main(["preset=10m", "tokens_per_s=1000", "train.max_steps=10"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["tokens"] == 10 * 8 * 4 * 512
    assert record["seconds"] == {"1000": 163.84}
    assert record["n_params"] == 13_636_608
    assert record["total_flops"] == record["tokens"] * record["flops_per_token"]


def test_a_speed_that_is_none_is_refused():
    for given, message in (("fast", "must be a number"), ("0", "positive number"), ("-5", "positive number")):
        with pytest.raises(UserError, match=message):
            plan.main([f"tokens_per_s={given}"])
