"""Reading a growing file, and curves that go back."""

from slm.train.report.curves import Curves, Tail, records
from tests.helpers.run_files import training


def test_a_tail_reads_what_was_added_and_notices_another_file(tmp_path):
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.read() == ([], False)
    path.write_text("a\nb\nhal")
    assert tail.read() == (["a", "b"], False)
    assert tail.read() == ([], False)
    with path.open("a") as file:
        file.write("f\n")
    assert tail.read() == (["half"], False)
    other = tmp_path / "other"
    other.write_text("a much longer line than before\n")
    other.rename(path)
    assert tail.read() == (["a much longer line than before"], True)
    path.write_text("another line of the same length\n"[-31:])  # the same inode, other content
    assert tail.read()[1] is True
    path.write_text("x\n")
    assert tail.read() == (["x"], True)


def test_curves_that_go_back_are_drawn_from_there():
    curves = Curves()
    curves.extend([training(step) for step in range(1, 11)])
    curves.extend([training(step, loss=9.0) for step in (6, 7, 4, 5)])
    assert curves["step"].tolist() == [1, 2, 3, 4, 5]
    assert curves["loss"].tolist()[3:] == [9.0, 9.0]
    points = curves.points(2)
    assert points.stride == 3
    assert points.mean("step").tolist() == [2.0, 4.5]
    assert points.high("loss").tolist() == [6.0, 9.0]
    assert list(records(['{"step": true}', '{"step": 1}'])) == [{"step": 1}]
