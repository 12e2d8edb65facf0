"""A machine that is not at hand: its speed agrees with measured ones, and what cannot be a machine is refused."""

import pytest

from slm.data.errors import UserError
from slm.model.config import ModelConfig
from slm.train.budget.named_machine import named_machine

SHAPE_10M = ModelConfig(
    vocab_size=4096, n_layers=4, d_model=512, n_heads=8, n_kv_heads=4, head_dim=64, ffn_dim=1024, seq_len=512
)


def speed(name: str) -> float:
    return named_machine(name).tokens_per_s(SHAPE_10M, 16_384, 512)


def test_two_cores_are_about_as_fast_as_the_measured_ones():
    """docs/results/training-speed.md, AdamW: 4,837 tokens/s of the 10m preset on Zen 4, 9,707 on Zen 5."""
    flops = SHAPE_10M.flops_per_token(512)
    for name, gflops in (("2xzen4", 365), ("2xzen5", 733), ("2xsapphire-rapids", 926)):
        assert speed(name) * flops / 1e9 == pytest.approx(gflops, rel=0.25)
        assert speed(name) * flops / 1e9 < gflops  # Muon's update comes on top


def test_more_cores_help_less_and_less():
    assert speed("1xzen4") < speed("2xzen4") < speed("16xzen4") < 8 * speed("2xzen4")
    assert speed("16xsapphire-rapids") / speed("2xsapphire-rapids") == pytest.approx(4.75, rel=0.1)
    assert speed("16xgenoa") == speed("16xZen4") == speed("16 x zen4")


def test_a_rate_that_is_given_is_taken_as_it_is():
    assert named_machine("4x100").at(512).layer_flops == 4e11


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zen4", "write cores and processor, as 16xzen4"),
        ("0xzen4", "write cores and processor"),
        ("16xzen9", "no speed of zen9 is known; did you mean 'zen"),
        ("16xm1", "one of: zen3"),
        ("2x0", "is no speed of a processor"),
    ],
)
def test_what_is_no_machine_is_one_line(text, says):
    with pytest.raises(UserError, match=says):
        named_machine(text)
