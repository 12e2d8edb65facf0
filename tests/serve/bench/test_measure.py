import pytest

from slm.serve.bench.limit import Rates
from slm.serve.bench.load import Outcome, Report
from slm.serve.bench.measure import median_figures, quantile, summary


def test_figures():
    outcomes = [Outcome(first_wave=i == 0, sent_at=0.0, ttft_s=0.1 * (i + 1), tokens=10, total_s=1.0) for i in range(3)]
    outcomes.append(Outcome(first_wave=False, sent_at=0.0, error="gone"))
    figures = summary(Report(outcomes=outcomes, wall_s=2.0, cpu_s=0.5))
    assert figures["tokens_per_s"] == 15
    assert figures["ttft_p50_s"] == pytest.approx(0.2)
    assert figures["wave_ttft_p50_s"] == pytest.approx(0.1)
    assert (figures["failed"], figures["error"], figures["cpu_client"]) == (1, "gone", 0.25)
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0], 0.95) == pytest.approx(2.9)
    assert Rates(batch=4, prefill=1000, decode=100).workload(100, 10) == pytest.approx(10 / (0.1 + 0.1))


def test_medians_of_repetitions():
    repeats = [{"ttft": 1.0, "failed": 1, "error": None}, {"ttft": None, "failed": 2, "error": "gone"}]
    assert median_figures([*repeats, {"ttft": 4.0, "failed": 0, "error": None}]) == {
        "ttft": 2.5,
        "failed": 3,
        "error": "gone",
    }
