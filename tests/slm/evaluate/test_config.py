from dataclasses import FrozenInstanceError

import pytest

from slm.configuration import load
from slm.data.errors import UserError
from slm.evaluate.config import EvalConfig, EvaluateConfig
from slm.export.bench.config import SweepEvalConfig


def test_the_file_has_the_same_defaults():
    assert load(EvaluateConfig, "evaluate", []).eval == EvalConfig()


def test_a_configuration_never_changes():
    with pytest.raises(FrozenInstanceError):
        EvalConfig().n_ctx = 64


@pytest.mark.parametrize("kind", [EvalConfig, SweepEvalConfig])
@pytest.mark.parametrize(
    ("options", "message"), [({"context": 7}, r"eval\.context=7 .*at least 8"), ({"max_tokens": 15}, "at least 16")]
)
def test_both_commands_check_their_text_alike(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(**options)
