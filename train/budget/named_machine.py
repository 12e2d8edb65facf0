"""Machines that are not at hand: their training speed by cores and processor (``plan.machine=16xzen4``), or by cores
and what each gives (``plan.machine=16x120``, GFLOP/s).

The rates are whole training steps that were measured on two cores (docs/results/training-speed.md). More cores than
two are taken to help as on the one machine with sixteen that was measured. So a plan for such a machine is an estimate;
one for the machine at hand is measured.
"""

import re

from slm.data.errors import UserError, nearest
from slm.train.budget.machine import Machine, Rates

WIDTHS = (256, 512, 768)
GFLOPS: dict[str, tuple[float, float, float]] = {
    "zen3": (100, 100, 100),
    "zen4": (154, 183, 195),
    "zen5": (343, 366, 399),
    "ice-lake": (138, 166, 187),
    "sapphire-rapids": (271, 463, 588),
}
"""GFLOP/s of a core in whole steps on two cores, by ``WIDTHS``: products of 16-bit integers on zen3 and ice-lake, bf16
on the others (AMX on sapphire-rapids)."""
SAME = {
    "milan": "zen3",
    "genoa": "zen4",
    "bergamo": "zen4",
    "turin": "zen5",
    "cascade-lake": "ice-lake",
    "emerald-rapids": "sapphire-rapids",
    "granite-rapids": "sapphire-rapids",
}
"""Processors with the instructions of one that was measured."""
SCALING = 0.75
"""Twice as many cores are 2 to this power as fast, from two on: sixteen with AMX made 4.5 to 5.0 times two's."""
MEMORY_GB_PER_S, MOST_MEMORY = 15.0, 170.0
"""What memory copies for each core, and for all: two cores read 30 to 37 GB/s, sixteen 162 to 186."""
UPDATE_FLOPS = 30.0
"""Muon's FLOPs for each parameter of a matrix and unit of its width: three Newton-Schulz iterations, at half the rate
of a step's products."""
UPDATE_BYTES = 28.0
"""Read and written for each parameter by an update: weight, gradient and two moments."""
SAMPLING = 1e-5
"""Seconds of a core for each token where words are sampled."""
_FORM = re.compile(r"(\d+)\s*x\s*([\w.-]+)", re.IGNORECASE)


def named_machine(text: str) -> Machine:
    """The machine of ``16xzen4`` or ``16x120``. ``UserError`` for what is neither."""
    found = _FORM.fullmatch(text.strip())
    names = [*GFLOPS, *SAME]
    if found is None or not 1 <= int(found[1]) <= 1024:
        raise UserError(
            f"plan.machine={text}: write cores and processor, as 16xzen4 (one of: {', '.join(names)}), or cores and "
            "the GFLOP/s that each gives in training, as 16x120"
        )
    cores, kind = int(found[1]), found[2].lower()
    try:
        per_core = (float(kind),) * len(WIDTHS)
        together = float(cores)  # a rate that a person gives is taken as it is
    except ValueError:
        rates = GFLOPS.get(SAME.get(kind, kind))
        if rates is None:
            hint = nearest(kind, names) or f"one of: {', '.join(names)}"
            raise UserError(
                f"plan.machine={text}: no speed of {kind} is known; {hint}, or give GFLOP/s a core, as {cores}x120"
            ) from None
        per_core = rates
        together = cores if cores <= 2 else 2 * (cores / 2) ** SCALING
    if not all(0 < each < 1e5 for each in per_core):
        raise UserError(f"plan.machine={text}: {kind} GFLOP/s a core is no speed of a processor")
    memory = min(MEMORY_GB_PER_S * cores, MOST_MEMORY)
    return Machine(
        rates=tuple(
            _rates(width, 1e9 * rate * together, memory, together) for width, rate in zip(WIDTHS, per_core, strict=True)
        ),
        memory_gb_per_s=memory,
        precision="named",
        seconds=0.0,
        limit=0.0,
    )


def _rates(width: int, flops: float, memory: float, cores: float) -> Rates:
    table = UPDATE_BYTES / (memory * 1e9)
    return Rates(
        d_model=width,
        layer_flops=flops,
        head_flops=flops,
        matrix_update=UPDATE_FLOPS * width / flops + table,
        table_update=table,
        sampling=SAMPLING / cores,
    )
