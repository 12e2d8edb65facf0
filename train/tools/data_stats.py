"""``python -m train.tools.data_stats``: what a run's text is made of, before it is trained on."""

import io
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data import statistics
from data.config import DataConfig
from data.errors import UserError
from data.sources.documents import sample_documents
from data.sources.duplicates import Finder
from data.sources.plan import plan_sources
from data.statistics import Statistics
from data.tokenizers.fast_encode import make_encode
from data.tokenizers.make import make_tokenizer
from data.tokenizers.tokenizer import Tokenizer
from slm import cli
from slm.configuration import build, load_config
from slm.files import atomic_write_bytes
from slm.report import final_json, table
from train.config import RunConfig


@dataclass(kw_only=True)
class StatsConfig:
    """What is counted, and how much of it."""

    max_docs: int = 100_000
    """Most documents read of each source, from its beginning."""
    duplicates: Literal["near", "exact", "none"] = "near"
    """Which duplicates are looked for, over all sources together, whether or not ``data.dedup`` leaves them out."""
    plot: str = "runs/data-stats.png"
    """Where the histogram of document lengths goes; empty: none is drawn."""

    def __post_init__(self) -> None:
        if self.max_docs < 1:
            raise UserError(f"stats.max_docs must be at least 1, not {self.max_docs}")


def main(argv: list[str]) -> int:
    """Count, print the table and the JSON line, draw the histogram."""
    resolved = load_config("data_stats", argv)
    stats = build(StatsConfig, resolved.pop("stats"), where="stats")
    config = build(RunConfig, resolved)
    seed = config.train.seed
    tokenizer = make_tokenizer(
        config.tokenizer, lambda: iter(sample_documents(config.data, "train", config.tokenizer.sample_bytes, seed))
    )
    counted = count(config.data, tokenizer, stats, seed=seed)
    show(counted, config.data, tokenizer)
    record: dict[str, Any] = {
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "sources": {name: each.record() | {"complete": whole} for name, (each, whole) in counted.items()},
        "plot": None,
    }
    if stats.plot and any(each.lengths for each, _ in counted.values()):
        plot({name: each.lengths for name, (each, _) in counted.items() if each.lengths}, Path(stats.plot))
        record["plot"] = stats.plot
        print(f"document lengths: {stats.plot}")
    final_json(record)
    return 0


def count(
    config: DataConfig, tokenizer: Tokenizer, stats: StatsConfig, *, seed: int
) -> dict[str, tuple[Statistics, bool]]:
    """For each source by name its statistics, and whether all of it was read."""
    finder = None if stats.duplicates == "none" else Finder(stats.duplicates, config.dedup_threshold)
    encode = make_encode(tokenizer)
    counted: dict[str, tuple[Statistics, bool]] = {}
    for each in plan_sources(config, "train"):
        found = Statistics(encode=encode, plan=each, finder=finder)
        whole = statistics.read(found, each, seed=seed, max_docs=stats.max_docs)
        name = each.source.label
        while name in counted:
            name += "'"
        counted[name] = (found, whole)
    return counted


def show(counted: dict[str, tuple[Statistics, bool]], config: DataConfig, tokenizer: Tokenizer) -> None:
    """The table for a person."""
    rows = []
    for name, (each, whole) in counted.items():
        r = each.record()
        left_out = ", ".join(f"{reason} {n:,}" for reason, n in r["left_out"].items())
        rows.append(
            [
                name,
                f"{r['documents']:,}" + ("" if whole else "+"),
                left_out or "-",
                f"{r['exact_duplicates']:,}",
                f"{r['near_duplicates']:,}",
                f"{r['bytes'] / 1e6:,.2f}",
                f"{r['tokens']:,}",
                f"{r['bytes_per_token']:.2f}",
                f"{r['held_out_tokens'] / max(1, r['tokens']):.2%}",
                f"{r['document_tokens']['median']:,}",
            ]
        )
    columns = ["source", "documents", "filtered", "exact duplicates", "near duplicates", "MB", "tokens"]
    columns += ["bytes/token", "held out", "median length"]
    caption = (
        f"Tokens of {tokenizer.name} ({tokenizer.vocab_size:,} ids). MB, tokens and lengths are of what remains "
        f"without filtered and repeated documents (data.dedup={config.dedup}). +: there are more (stats.max_docs)."
    )
    table("The text", columns, rows, caption=caption)


def plot(lengths: dict[str, array], path: Path) -> None:
    """Draw how the tokens of each source are spread over documents of different lengths; PNG at ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    span = min(map(min, lengths.values())), max(map(max, lengths.values()))
    for name, each in lengths.items():
        edges, tokens = statistics.histogram(each, span)
        axis.stairs(tokens / max(1, tokens.sum()), edges, label=f"{name} ({len(each):,} documents)", linewidth=1.6)
    axis.set(xscale="log", xlabel="document length (tokens)", ylabel="share of the source's tokens")
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.set_title("Where the tokens are")
    axis.grid(alpha=0.3)
    axis.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(path, buffer.getvalue())


if __name__ == "__main__":
    cli.run(main)
