"""``python -m train.tools.plan``: what a run costs before it is started, or what a given time would give."""

from dataclasses import dataclass, field

from data.errors import UserError
from slm import cli
from slm.configuration import load
from slm.durations import seconds_of
from slm.report import duration, final_json, table
from train.config import RunConfig
from train.model_shape import model_shape
from train.resolve import AUTO, given_value

SPEEDS = (500, 2_000, 10_000)
"""Tokens per second for which times are shown, if none are given."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Prices, and what is written."""

    price_per_hour: float = 0.10
    """What this machine costs in an hour, in any currency. About what two cores of a cloud machine cost, in USD."""
    api_price: float = 0.60
    """What an API takes for a million tokens that it writes, in the same currency; that of a small hosted model."""
    plot: str = "runs/plan.png"
    """With a budget: the picture of the sizes and their predicted losses; empty: none is drawn."""
    add: list[str] = field(default_factory=list)
    """Finished runs that are added to the records of the loss law on this machine, before anything else."""

    def __post_init__(self) -> None:
        for name in ("price_per_hour", "api_price"):
            if getattr(self, name) < 0:
                raise UserError(f"plan.{name} must not be negative, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class PlanConfig(RunConfig):
    """A run, and the speed to expect of it."""

    tokens_per_s: float | None = None
    plan: PlanOptions = field(default_factory=PlanOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens_per_s is not None and self.tokens_per_s <= 0:
            raise UserError(f"tokens_per_s must be a positive number, not {self.tokens_per_s}")


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
        from train.tools.run_records import add

        for record in add(config.plan.add):
            print(f"added {record.name}: {record.bits_per_byte:.4f} bits per byte after {record.tokens:,} tokens")
    if automatic and budget is not None:
        from train.tools.menu import show_menu

        own = [word for word in argv if not word.startswith(("plan.", "tokens_per_s="))]
        return show_menu(own, seconds_of(budget), config.plan)
    return _costs(config)


def _costs(config: PlanConfig) -> int:
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
    from train.tools.preset_plan import predicted

    more, more_rows = predicted(config, shape, tokens)
    table(f"{config.preset}: what it costs", ["quantity", "value"], rows + more_rows)
    final_json(record | more)
    return 0


if __name__ == "__main__":
    cli.run(main)
