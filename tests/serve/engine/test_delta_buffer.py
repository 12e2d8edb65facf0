from serve.engine.delta_buffer import Outbox
from serve.engine.messages import Delta, Failure, Prompted


def delta(name, text, n, finish=None):
    return Delta(id=name, text=text, completion_tokens=n, finish=finish)


def test_text_waits_and_is_joined():
    outbox = Outbox(0.015)
    outbox.add([Prompted(id="a", prompt_tokens=3), delta("a", "x", 1)])
    assert [type(each) for each in outbox.due(1.0)] == [Prompted, Delta], "the first text goes out at once"
    outbox.add([delta("a", "y", 2), delta("b", "1", 5)])
    assert outbox.due(1.005) == []
    outbox.add([delta("b", "2", 6), delta("a", "z", 3)])
    assert outbox.due(1.016) == [delta("a", "yz", 3), delta("b", "12", 6)]
    assert outbox.due(9.0) == []


def test_ends_and_failures_do_not_wait_and_keep_their_order():
    outbox = Outbox(60)
    outbox.due(0.0)
    outbox.add([delta("a", "x", 1), delta("b", "y", 1)])
    outbox.due(0.0)  # nothing was told before: this is due
    outbox.add([delta("a", "x", 2), delta("b", "y", 2)])
    assert outbox.due(1.0) == []
    outbox.add([delta("a", "!", 3, finish="stop")])
    assert outbox.due(1.0) == [delta("a", "x!", 3, finish="stop"), delta("b", "y", 2)]
    outbox.add([delta("b", "y", 3)])
    failure = Failure(id="b", code="engine_error", message="no")
    outbox.add([failure])
    assert outbox.due(1.0) == [delta("b", "y", 3), failure]


def test_an_interval_of_nothing_tells_every_step():
    outbox = Outbox(0.0)
    for n in (1, 2):
        outbox.add([delta("a", "x", n)])
        assert outbox.due(1.0) == [delta("a", "x", n)]
