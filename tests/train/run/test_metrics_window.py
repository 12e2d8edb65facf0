"""Steps are averaged, and a window that was saved in the middle goes on where it was."""

import json

import pytest

from slm.train.run.metrics_window import MetricsWindow

STEPS = (
    {"loss": 3.0, "grad_norm": 1.0, "tokens": 64, "seconds": 0.5, "data_seconds": 0.1},
    {"loss": 2.0, "grad_norm": 2.0, "tokens": 64, "seconds": 0.3, "data_seconds": 0.0},
    {"loss": 2.5, "grad_norm": 0.5, "tokens": 64, "seconds": 0.2, "data_seconds": 0.2},
)


def test_means_and_sums_survive_a_save():
    whole = MetricsWindow()
    for step in STEPS:
        whole.add(**step)
    assert (whole.steps, whole.tokens, whole.loss) == (3, 192, 2.5)
    assert whole.seconds == pytest.approx(1.0)
    assert whole.data_seconds == pytest.approx(0.3)
    assert whole.grad_norm == pytest.approx(3.5 / 3)
    part = MetricsWindow()
    part.add(**STEPS[0])
    resumed = MetricsWindow(json.loads(json.dumps(part.state_dict())))
    for step in STEPS[1:]:
        resumed.add(**step)
    assert resumed.state_dict() == whole.state_dict()
