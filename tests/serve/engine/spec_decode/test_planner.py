"""Draft tokens are verified where that pays."""

from slm.serve.engine.spec_decode.planner import Acceptance, Candidate, Planner, StepCost, passes


def test_passes_are_as_llama_cpp_splits():
    assert passes({0: 1, 1: 1, 2: 1}, shared=False) == [3]
    assert passes({0: 4, 1: 4}, shared=False) == [8]
    assert passes({0: 1, 1: 4, 2: 4}, shared=False) == [3, 6]
    assert passes({0: 4, 1: 1, 2: 4}, shared=False) == [3, 3, 3]
    assert passes({0: 2, 2: 2}, shared=False) == [2, 2]
    assert passes({0: 2, 2: 3}, shared=True) == [5]


def test_drafts_are_verified_where_that_pays():
    flat, steep = StepCost((1, 32), (1.0, 2.0)), StepCost((1, 32), (1.0, 32.0))
    sure, doubtful = Candidate(0, 0.95, 31), Candidate(0, 0.3, 31)
    assert Planner(flat, shared=False).choose([0], [sure], 512)[0] > 7
    assert 0 < Planner(flat, shared=False).choose([0], [doubtful], 512)[0] <= 3
    assert Planner(steep, shared=False).choose([0], [sure], 512) == {}
    # Never more than there is room for, or than are wanted.
    assert Planner(flat, shared=False).choose([0], [sure], 5)[0] <= 4
    assert Planner(flat, shared=False).choose([0], [Candidate(0, 0.95, 2)], 512)[0] == 2
    # The time that the draft itself takes counts, too.
    assert Planner(flat, shared=False, draft_cost=lambda sequences, n: 1.0 * n).choose([0], [sure], 512) == {}


def test_many_sequences_get_fewer():
    cost = StepCost((1, 8, 64), (1.0, 1.5, 12.0))
    planner = Planner(cost, shared=True)
    alone = planner.choose([0], [Candidate(0, 0.8, 31)], 512)
    crowd = planner.choose(list(range(16)), [Candidate(slot, 0.8, 31) for slot in range(16)], 512)
    assert sum(alone.values()) > max(crowd.values(), default=0)


def test_acceptance_follows_what_happens_and_recovers():
    acceptance = Acceptance()
    before = acceptance.rate(10)
    for _ in range(10):
        acceptance.observe(10, 7, 0)
    low = acceptance.rate(10)
    assert low < 0.1 < before
    for _ in range(300):
        acceptance.relax(10)
    assert acceptance.rate(10) > 0.5
    for _ in range(10):
        acceptance.observe(10, 7, 7)
    assert acceptance.rate(10) > 0.95


def test_the_cost_between_and_beyond_what_was_measured():
    cost = StepCost((1, 5, 9), (1.0, 2.0, 6.0))
    assert [cost(n) for n in (1, 3, 5, 7, 9, 18)] == [1.0, 1.5, 2.0, 4.0, 6.0, 12.0]
