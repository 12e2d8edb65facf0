"""Clocks around the kernels. The breakdown of a whole step is part of test_bench.py."""

from types import SimpleNamespace

from slm.kernels.native import SIGNATURES
from slm.train.tools.breakdown import PARTS, ClockedKernels


def test_every_kernel_is_called_and_its_time_goes_to_its_part():
    called: list[tuple] = []
    plain = {name: (lambda *a, name=name: called.append((name, *a)) or name) for name in SIGNATURES}
    seconds: dict[str, float] = {}
    kernels = SimpleNamespace(**plain)
    kernels.head = kernels
    clocked = ClockedKernels(kernels, seconds)
    assert set(PARTS) <= set(SIGNATURES)
    assert set(SIGNATURES) | {"head"} == set(vars(clocked))
    assert clocked.head is clocked
    assert clocked.slm_linear(1, 2) == "slm_linear"
    assert called == [("slm_linear", 1, 2)]
    assert set(seconds) == {"projections"}
    clocked.slm_weight_gradient()
    assert set(seconds) == {"projections"}
    clocked.slm_head_backward_part()
    of_the_head = seconds["head and loss"]
    clocked.slm_weight_gradient_scratch()
    clocked.slm_weight_gradient()
    assert seconds["head and loss"] > of_the_head
    of_the_head = seconds["head and loss"]
    clocked.slm_weight_gradient()  # of further rows of the head
    assert seconds["head and loss"] > of_the_head
    clocked.slm_rmsnorm_backward()
    of_the_head, of_layers = seconds["head and loss"], seconds["projections"]
    clocked.slm_weight_gradient()
    assert seconds["head and loss"] == of_the_head
    assert seconds["projections"] > of_layers
    for name in SIGNATURES:
        getattr(clocked, name)(*range(10))
    assert set(seconds) == set(PARTS.values())
    assert all(each >= 0 for each in seconds.values())


def test_kernels_of_the_head_have_clocks_too():
    """A weight gradient after the head's backward pass is the head's, also where other kernels compute it."""
    head = SimpleNamespace(**{name: lambda *a: "head" for name in SIGNATURES})
    head.head = head
    layers = SimpleNamespace(**{name: lambda *a: "layers" for name in SIGNATURES}, head=head)
    seconds: dict[str, float] = {}
    clocked = ClockedKernels(layers, seconds)
    assert (clocked.slm_linear(), clocked.head.slm_linear()) == ("layers", "head")
    assert set(seconds) == {"projections"}
    before = seconds["projections"]
    assert clocked.head.slm_head_backward() == clocked.head.slm_weight_gradient() == "head"
    assert set(seconds) == {"projections", "head and loss"}
    assert seconds["projections"] == before
