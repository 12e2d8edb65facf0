"""Clocks around the kernels. The breakdown of a whole step is part of test_bench.py."""

from types import SimpleNamespace

from slm.kernels.native import SIGNATURES
from train.tools.breakdown import PARTS, ClockedKernels


def test_every_kernel_is_called_and_its_time_goes_to_its_part():
    called: list[tuple] = []
    plain = {name: (lambda *a, name=name: called.append((name, *a)) or name) for name in SIGNATURES}
    seconds: dict[str, float] = {}
    clocked = ClockedKernels(SimpleNamespace(**plain), vocab_size=320, seconds=seconds)
    assert set(PARTS) <= set(SIGNATURES)
    assert set(SIGNATURES) == set(vars(clocked))
    assert clocked.slm_linear(1, 2) == "slm_linear"
    assert called == [("slm_linear", 1, 2)]
    assert set(seconds) == {"projections"}
    clocked.slm_weight_gradient(0, 0, 0, 0, 7, 256, 256)
    assert set(seconds) == {"projections"}
    clocked.slm_weight_gradient(0, 0, 0, 0, 7, 320, 256)
    assert set(seconds) == {"projections", "head and loss"}
    for name in SIGNATURES:
        getattr(clocked, name)(*range(10))
    assert set(seconds) == set(PARTS.values())
    assert all(each >= 0 for each in seconds.values())
