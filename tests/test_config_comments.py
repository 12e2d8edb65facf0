"""What the comments of configs/ advise to write on the command line exists."""

import re

import pytest
import yaml

from tests.helpers.options import CONFIGS, known_options

FILES = sorted(CONFIGS.rglob("*.yaml"))
ADVISED = re.compile(r"(?<![\w.])([a-z][a-z_0-9.]*)=")


def comments(path):
    return [line.partition("#")[2] for line in path.read_text().splitlines() if "#" in line]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_the_options_that_comments_name_exist(path):
    sections = ["", *(f"{key}." for key in yaml.safe_load(path.read_text()) or {})]
    names = known_options()
    for comment in comments(path):
        for key in ADVISED.findall(comment):
            assert any(section + key in names for section in sections), f"there is no option {key}: {comment.strip()}"


def test_advice_is_found():
    advised = {key for path in FILES for comment in comments(path) for key in ADVISED.findall(comment)}
    assert {"train.max_steps", "tokenizer.path", "optim", "speculate"} <= advised
    assert ADVISED.findall("make CONFIG=x serve.KEY=1 a.b=2 ['c=3']") == ["a.b", "c"]
