import mmap

import pytest

from slm.export.steps import Steps, show_steps
from slm.machine import hardware

LARGE = 40_000_000  # bytes


def test_a_steps_memory_is_its_own(capsys):
    """The peak of one step is not that of the step before it; time adds up, and steps of one name are one."""
    steps = Steps()
    with steps.step("large"):
        before = hardware.rss_bytes()
        with mmap.mmap(-1, LARGE) as memory:  # new pages, whatever the process holds free
            memory.write(b"1" * LARGE)
    with steps.step("small"):
        pass
    with steps.step("large"):
        pass
    record = steps.record()
    large, small = record["steps"]
    assert (large["step"], small["step"]) == ("large", "small")
    assert large["peak_rss_mb"] * 1e6 > before + LARGE - 1e6
    if small["peak_rss_mb"] > large["peak_rss_mb"] - 30:
        pytest.skip("this system cannot reset a process's peak")
    assert record["seconds"] == pytest.approx(large["seconds"] + small["seconds"])
    assert record["peak_rss_mb"] == large["peak_rss_mb"]
    show_steps(record)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("large", "peak MB", "all"))
