"""A machine whose training speed is given, so that a choice does not depend on where the tests run."""

from slm.train.budget.machine import Machine, Rates

MACHINE = Machine(
    tuple(
        Rates(width, 4e10 * speed, 5e10 * speed, 1e-9, 2e-9) for width, speed in ((256, 1.0), (512, 1.3), (1024, 1.5))
    ),
    memory_gb_per_s=20.0,
    precision="f32",
    seconds=1.0,
    limit=45.0,
)
