"""The loss curves of a run as a PNG."""

from pathlib import Path
from typing import Any

from slm.data.storage import atomic_write_bytes


def plot_losses(records: list[dict[str, Any]], path: Path, title: str, unit: str = "nats per token") -> None:
    """Draw training loss, validation loss and validation bits per byte over tokens, as a PNG at ``path``.

    ``records``: of ``metrics.jsonl``, their losses in ``unit``. Without a training record nothing is written.
    """
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    train = [(r["tokens"] / 1e6, r["loss"]) for r in records if "loss" in r]
    val = [(r["tokens"] / 1e6, r["val_loss"], r["val_bits_per_byte"]) for r in records if "val_loss" in r]
    if not train:
        return
    # For labels of this size. matplotlib's own layout draws everything twice, and training waits for the picture.
    margins = {"left": 0.055, "right": 0.99, "bottom": 0.125, "top": 0.92, "wspace": 0.17}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), gridspec_kw=margins)
    tokens, losses = zip(*train, strict=True)
    left.plot(tokens, losses, color="#9ecae1", linewidth=0.8, label="training, each record")
    window = max(1.0, len(losses) / 60)
    left.plot(tokens, smooth(losses, 1 - 1 / window), color="#2171b5", linewidth=1.6, label="training, smoothed")
    if val:
        left.plot([v[0] for v in val], [v[1] for v in val], "o-", color="#d94801", markersize=3, label="validation")
        right.plot([v[0] for v in val], [v[2] for v in val], "o-", color="#d94801", markersize=3)
        right.annotate(f"{val[-1][2]:.3f}", (val[-1][0], val[-1][2]), (0, 8), textcoords="offset points", ha="right")
    left.set(xlabel="training tokens (millions)", ylabel=f"loss ({unit})")
    right.set(xlabel="training tokens (millions)", ylabel="validation (bits per byte)")
    # Without a height matplotlib lays out every label once more, to see whether one is in a title's way.
    left.set_title(title, y=1.0)
    right.set_title("held-out text", y=1.0)
    # A loss falls fast, then slowly for a long time: a logarithmic axis shows both.
    left.set_yscale("log")
    left.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8)))
    left.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    left.yaxis.set_minor_locator(ticker.NullLocator())
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    plt.close(figure)
    atomic_write_bytes(path, buffer.getvalue())


def smooth(values: tuple[float, ...] | list[float], weight: float) -> list[float]:
    """Exponential moving average over about 1 / (1 - ``weight``) values, with the bias of its start corrected."""
    out, mean = [], 0.0
    for index, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        out.append(mean / (1 - weight**index))
    return out
