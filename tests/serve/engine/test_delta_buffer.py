from slm.serve.engine.process import DeltaBuffer
from slm.serve.engine.protocol import Delta, Failure, PrefillDone


def delta(name, text, n, finish=None):
    return Delta(id=name, text=text, completion_tokens=n, finish=finish)


def test_text_waits_and_is_joined():
    buffer = DeltaBuffer(0.015)
    buffer.add([PrefillDone(id="a", prompt_tokens=3), delta("a", "x", 1)])
    assert [type(each) for each in buffer.take_due(1.0)] == [PrefillDone, Delta], "the first text goes out at once"
    buffer.add([delta("a", "y", 2), delta("b", "1", 5)])
    assert buffer.take_due(1.005) == []
    buffer.add([delta("b", "2", 6), delta("a", "z", 3)])
    assert buffer.take_due(1.016) == [delta("a", "yz", 3), delta("b", "12", 6)]
    assert buffer.take_due(9.0) == []


def test_ends_and_failures_do_not_wait_and_keep_their_order():
    buffer = DeltaBuffer(60)
    buffer.take_due(0.0)
    buffer.add([delta("a", "x", 1), delta("b", "y", 1)])
    buffer.take_due(0.0)  # nothing was sent before, so this is due
    buffer.add([delta("a", "x", 2), delta("b", "y", 2)])
    assert buffer.take_due(1.0) == []
    buffer.add([delta("a", "!", 3, finish="stop")])
    assert buffer.take_due(1.0) == [delta("a", "x!", 3, finish="stop"), delta("b", "y", 2)]
    buffer.add([delta("b", "y", 3)])
    failure = Failure(id="b", code="engine_error", message="no")
    buffer.add([failure])
    assert buffer.take_due(1.0) == [delta("b", "y", 3), failure]


def test_without_an_interval_every_step_is_due():
    buffer = DeltaBuffer(0.0)
    for n in (1, 2):
        buffer.add([delta("a", "x", n)])
        assert buffer.take_due(1.0) == [delta("a", "x", n)]
