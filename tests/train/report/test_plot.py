"""The loss plot."""

from slm.train.report.plot import plot_losses, smooth


def test_the_moving_average_of_a_constant_is_that_constant():
    assert max(abs(value - 2.0) for value in smooth([2.0] * 5, 0.9)) < 1e-12
    assert smooth([3.0, 1.0], 0.0) == [3.0, 1.0]


def test_the_plot_is_a_picture_even_for_the_shortest_run(tmp_path):
    one = [{"step": 1, "tokens": 10, "loss": 3.0}]
    plot_losses([*one, {"step": 1, "tokens": 10, "val_loss": 3.1, "val_bits_per_byte": 1.5}], tmp_path / "a.png", "x")
    plot_losses(one, tmp_path / "b.png", "x")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    plot_losses([], tmp_path / "c.png", "x")
    assert not (tmp_path / "c.png").exists()
