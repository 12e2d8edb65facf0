"""The grid of a sweep as it is typed."""

import pytest

from slm.data.errors import UserError
from slm.train.sweep.grid import MOST_RUNS, read_grid


def test_values_span_a_grid_and_the_rest_is_everybodys():
    words = ["preset=tiny", "optim.lr=0.01,2e-2", "optim.betas=[0.8,0.9],[0.9,0.95]", "data.files=a.txt,b.txt"]
    grid = read_grid(words, {"data.files", "optim.betas"})
    assert grid.fixed == ("preset=tiny", "data.files=a.txt,b.txt")
    points = grid.points()
    assert [point.words for point in points][:2] == [
        ["optim.lr=0.01", "optim.betas=[0.8,0.9]"],
        ["optim.lr=0.01", "optim.betas=[0.9,0.95]"],
    ]
    assert [point.label for point in points] == [
        *("lr_0.01-betas_0.8_0.9", "lr_0.01-betas_0.9_0.95", "lr_0.02-betas_0.8_0.9", "lr_0.02-betas_0.9_0.95")
    ]


def test_seeds_are_one_setting_and_ranges_are_values():
    points = read_grid(["train.seed=1,2", "train.micro_batch=range(1,4)"], set()).points()
    assert len(points) == 6
    assert {point.setting for point in points} == {(("train.micro_batch", str(n)),) for n in (1, 2, 3)}


def test_names_are_distinct():
    points = read_grid(["model.arch=a,b", "data.name='x/y','x.y','x_y'", "tokenizer.name=q,r"], set()).points()
    labels = [point.label for point in points]
    assert len(set(labels)) == len(labels) == 12
    assert all("/" not in label and "'" not in label for label in labels)
    assert "data.name_" in labels[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.lr=0.1,0.1"], "optim.lr=0.1,0.1 has a value twice"),
        (["optim.lr=0.1,"], "a value is missing next to a comma"),
        (["optim.lr=0.1,0.2", "optim.lr=0.3,0.4"], "optim.lr is given twice"),
        (["name=a,b"], "name can have one value only in a sweep"),
        (["sweep.keep=0.5,0.7"], "sweep.keep can have one value only"),
        (["optim.lr=interval(0,1)"], "a sweep takes values"),
        ([f"train.seed=range({MOST_RUNS + 1})"], "the grid has 501 runs, and 500 are the most"),
    ],
)
def test_a_bad_grid_is_one_line(words, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        read_grid(words, set())
