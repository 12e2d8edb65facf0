"""``python -m slm.train.tools.plan``: what a run costs before it is started, or what a given time would give."""

from slm import cli
from slm.configuration import load
from slm.data.account.listing import check_files
from slm.data.errors import UserError
from slm.durations import seconds_of
from slm.report import duration, final_json, table
from slm.train.resolve import AUTO, given_value, model_shape
from slm.train.tools.menu import show_menu
from slm.train.tools.plan_config import PlanConfig
from slm.train.tools.preset_plan import predicted
from slm.train.tools.run_records import add

SPEEDS = (500, 2_000, 10_000)
"""Tokens per second for which times are shown, if none are given."""


def main(argv: list[str]) -> int:
    """Print parameters, FLOPs, memory and time of a run with any of training's options. Returns the exit code.

    With a budget and no preset: every size that it could train, with predictions, and the one it would choose.
    """
    budget, preset = given_value(argv, "budget"), given_value(argv, "preset")
    if preset == AUTO and budget is None:
        raise UserError(f"preset=auto needs the time that the run may take: {cli.spelled('plan', budget='8h')}")
    automatic = budget is not None and preset in (None, AUTO)
    config = load(PlanConfig, "plan", [word for word in argv if word != f"preset={AUTO}"])
    if config.plan.add:
        for record in add(config.plan.add):
            print(f"added {record.name}: {record.bits_per_byte:.4f} bits per byte after {record.tokens:,} tokens")
    if automatic and budget is not None:
        own = [word for word in argv if not word.startswith(("plan.", "tokens_per_s="))]
        return show_menu(own, seconds_of(budget), config.plan)
    return _costs(config)


def _costs(config: PlanConfig) -> int:
    check_files(config.data)
    speeds = [config.tokens_per_s] if config.tokens_per_s else list(SPEEDS)
    shape = model_shape(config)
    tokens = config.train.max_steps * config.train.tokens_per_step
    flops_per_token = config.train.flops_per_token(shape)
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
    more, more_rows = predicted(config, shape, tokens)
    table(f"{config.preset}: what it costs", ["quantity", "value"], rows + more_rows)
    final_json(record | more)
    return 0


if __name__ == "__main__":
    cli.run(main)
