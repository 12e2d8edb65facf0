"""``python -m train.tools.plan``: what a run costs before it is started."""

from data.errors import UserError
from slm import cli
from slm.configuration import build, load_config
from slm.report import duration, final_json, table
from train.config import RunConfig
from train.model_shape import model_shape

SPEEDS = (500, 2_000, 10_000)
"""Tokens per second to show times for, where none is given."""


def main(argv: list[str]) -> int:
    """Print parameters, FLOPs, memory and time of a run with any of training's options, and ``tokens_per_s=N``."""
    resolved = load_config("plan", argv)
    given = resolved.pop("tokens_per_s")
    if given is not None and not (isinstance(given, int | float) and given > 0):
        raise UserError(f"tokens_per_s must be a positive number, not {given!r}")
    speeds = [float(given)] if given else list(SPEEDS)
    config = build(RunConfig, resolved)
    shape = model_shape(config)
    tokens = config.train.max_steps * config.train.tokens_per_step
    record = {
        "preset": config.preset,
        "n_params": shape.n_params,
        "flops_per_token": shape.flops_per_token(config.train.seq_len),
        "training_state_bytes": shape.training_state_bytes,
        "tokens": tokens,
        "total_flops": tokens * shape.flops_per_token(config.train.seq_len),
        "seconds": {str(round(speed)): tokens / speed for speed in speeds},
    }
    rows = [
        ["parameters", f"{record['n_params']:,}"],
        ["FLOPs per token, forward and backward (6N + causal attention)", f"{record['flops_per_token']:,}"],
        ["memory for weights, gradients and AdamW (16 bytes a parameter), GiB", f"{16 * shape.n_params / 2**30:.2f}"],
        ["training tokens (max_steps x tokens per step)", f"{tokens:,}"],
        ["total FLOPs", f"{record['total_flops']:.3g}"],
    ]
    rows += [[f"time at {speed:,.0f} tokens/s", duration(tokens / speed)] for speed in speeds]
    table(f"{config.preset}: what it costs", ["quantity", "value"], rows)
    final_json(record)
    return 0


if __name__ == "__main__":
    cli.run(main)
