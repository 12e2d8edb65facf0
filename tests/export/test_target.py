import math
from pathlib import Path

import pytest

from slm.configuration import load
from slm.data.errors import UserError
from slm.export.config import ExportConfig, resolve_types
from slm.export.target import parse_target
from slm.exported import quant_of
from slm.llama.quantize import quant_types


@pytest.mark.parametrize(
    ("word", "goal", "value", "encoding"),
    [
        ("auto", "speed", math.log(1.01), "auto"),
        ("AUTO:4.50", "bits", 4.5, "auto-4.5bpw"),
        ("auto:4.5bpw", "bits", 4.5, "auto-4.5bpw"),
        ("auto:60mb", "size", 60e6, "auto-60MB"),
        ("auto:1.5GiB", "size", 1.5 * 2**30, "auto-1.5GiB"),
        ("auto:1%", "loss", math.log(1.01), "auto-1pct"),
        ("auto:0.02nats", "loss", 0.02, "auto-0.02nats"),
        ("auto:400tok/s", "decode", 400, "auto-400tps"),
        ("auto:62.5 tokens/s", "decode", 62.5, "auto-62.5tps"),
    ],
)
def test_goals(word, goal, value, encoding):
    target = parse_target(word)
    assert (target.goal, target.encoding) == (goal, encoding)
    assert target.value == pytest.approx(value)
    assert parse_target(target.spelled) == target
    # The file's name leads back to what made it.
    assert quant_of(Path(f"mine-3.4M-v1.0-{encoding}.gguf")) == target.spelled


@pytest.mark.parametrize(
    "word",
    [
        "auto:",
        "auto:x",
        "auto:0",
        "auto:-1",
        "auto:99",
        "auto:5parsecs",
        "auto:200%",
        "auto:4.5.1",
        "auto:4000000tok/s",
    ],
)
def test_what_is_no_goal_is_one_line_with_examples(word):
    with pytest.raises(UserError, match=r"auto:1%|60MB") as error:
        load(ExportConfig, "export", [f"quant={word}"], literal=("run",))
    assert "\n" not in str(error.value)


def test_goals_stand_among_types_each_once():
    config = load(
        ExportConfig, "export", ["quant=q4_k,auto:4.5,auto:4.50,auto,auto:1%,auto:400tok/s"], literal=("run",)
    )
    assert resolve_types(config.quant, quant_types()) == ["q4_k_m", "auto:4.5", "auto", "auto:1%", "auto:400tok/s"]
    assert quant_of(Path("a-1M-v1.0-Q4_K_M.gguf")) == "q4_k_m"
    assert quant_of(Path("automatic.gguf")) is None


@pytest.mark.parametrize("word", ["auto:0.00005nats", "auto:2000000kB", "auto:1234.5678MB", "auto:400tok/s"])
def test_what_is_shown_is_the_same_goal_again(word):
    target = parse_target(word)
    assert parse_target(target.spelled) == target
