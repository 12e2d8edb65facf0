"""The table that says which matrices got which types, and what the next smaller and larger types would change.

Tested in tests/export/auto/test_planner.py.
"""

from typing import Any

from slm import report
from slm.llama.speed.workload import Workload


def show_choice(file: str, choice: dict[str, Any], measured_kl: float | None) -> None:
    """Print a choice's record (``Choice.record``)."""
    rows = []
    for role in choice["roles"]:
        types = ", ".join(kind + _layers(entry["layers"]) for kind, entry in role["types"].items())
        rows.append(
            [
                role["role"],
                types,
                f"{8 * role['bytes'] / role['weights']:.2f}",
                f"{role['bytes'] / 1e6:.3f}",
                f"{role['kl']:.2g}",
                _change(role["smaller"]),
                _change(role["larger"]),
            ]
        )
    predicted = f"KL predicted {choice['predicted_kl']:.3g}"
    if measured_kl is not None:
        predicted += f", measured {measured_kl:.3g} nats"
    speed, measured_speed = choice["predicted_decode_tok_s"], choice["measured_decode_tok_s"]
    report.table(
        f"{choice['goal']}: the types in {file}",
        ["matrices", "types (layers)", "bits/weight", "MB", "KL (nats)", "one type smaller", "one type larger"],
        rows,
        caption=(
            f"KL: what the rounding of these matrices adds to the loss, nats per token, predicted; of the file, "
            f"{predicted}. Next types: bytes and nats that all matrices of the row together would change"
            + (f". Decoding: about {speed:,.0f} tokens/s on this machine, by its speed in each type" if speed else "")
            + (f"; measured {measured_speed:,.0f}" if measured_speed else "")
            + (f" ({_spelled(choice['decode_workload'])})" if speed else "")
        ),
    )


def _spelled(workload: dict[str, int]) -> str:
    """What the speeds are the speeds of."""
    return Workload(prompt=workload["prompt"], tokens=workload["tokens"]).spelled(workload["threads"])


def _layers(layers: list[int]) -> str:
    """`` (0-2, 5)``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    listed = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f" ({listed})" if listed else ""


def _change(change: dict[str, float]) -> str:
    return f"{change['bytes'] / 1e6:+.3f} MB, {change['kl']:+.2g}" if change["bytes"] else "none"
