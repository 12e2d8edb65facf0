"""``python -m train.tools.plan``: what a run costs before it is started."""

from dataclasses import dataclass

from data.errors import UserError
from slm import cli
from slm.configuration import load
from slm.report import duration, final_json, table
from train.config import RunConfig
from train.model_shape import model_shape

SPEEDS = (500, 2_000, 10_000)
"""Tokens per second for which times are shown, if none are given."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig(RunConfig):
    """A run, and the speed to expect of it."""

    tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens_per_s is not None and self.tokens_per_s <= 0:
            raise UserError(f"tokens_per_s must be a positive number, not {self.tokens_per_s}")


def main(argv: list[str]) -> int:
    """Print parameters, FLOPs, memory and time of a run with any of training's options. Returns the exit code."""
    config = load(PlanConfig, "plan", argv)
    speeds = [config.tokens_per_s] if config.tokens_per_s else list(SPEEDS)
    shape = model_shape(config)
    tokens = config.train.max_steps * config.train.tokens_per_step
    flops_per_token = shape.flops_per_token(config.train.seq_len)
    record = {
        "preset": config.preset,
        "n_params": shape.n_params,
        "flops_per_token": flops_per_token,
        "training_state_bytes": shape.training_state_bytes,
        "tokens": tokens,
        "total_flops": tokens * flops_per_token,
        "seconds": {str(round(speed)): tokens / speed for speed in speeds},
    }
    rows = [
        ["parameters", f"{shape.n_params:,}"],
        ["FLOPs per token, forward and backward (6N + causal attention)", f"{flops_per_token:,}"],
        ["memory for weights, gradients and AdamW (16 bytes a parameter), GiB", f"{16 * shape.n_params / 2**30:.2f}"],
        ["training tokens (max_steps x tokens per step)", f"{tokens:,}"],
        ["total FLOPs", f"{tokens * flops_per_token:.3g}"],
    ]
    rows += [[f"time at {speed:,.0f} tokens/s", duration(tokens / speed)] for speed in speeds]
    table(f"{config.preset}: what it costs", ["quantity", "value"], rows)
    final_json(record)
    return 0


if __name__ == "__main__":
    cli.run(main)
