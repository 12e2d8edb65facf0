"""``python -m slm.train.tools.data_stats``: counts over a run's text, before a model is trained on it."""

import io
import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slm import cli
from slm.configuration import load
from slm.data import statistics
from slm.data.account.account import account, count_tokens
from slm.data.account.listing import show_files
from slm.data.config import DataConfig
from slm.data.errors import UserError, one_line
from slm.data.quality.repeats.in_memory import Finder
from slm.data.sources.corpus import SMALL_CORPUS
from slm.data.sources.documents import make_plans, sample_documents
from slm.data.sources.plan import plan_sources
from slm.data.statistics import Statistics
from slm.data.storage import atomic_write_bytes
from slm.data.stream.chat_setup import chat_setup
from slm.data.tokenizers.fast_encode import make_encode
from slm.data.tokenizers.from_tiktoken import cached
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.report import final_json, table
from slm.train.config import RunConfig
from slm.train.tools import chat_stats
from slm.train.tools.prepare import show_prepared
from slm.train.tune import rule

COMPARED_BYTES = 1_000_000
"""Text that is encoded for the comparison with GPT-2's tokenizer."""
GPT2 = "gpt2"
MOST_NEAR = 100_000
"""Documents of all sources together that are compared for near duplicates: 0.2 GB of memory."""
LANGUAGES = 12
"""This many of a source are named."""
EXAMPLE_CHARS = 200
"""Characters shown of a document that a filter rejects."""


@dataclass(frozen=True, kw_only=True)
class StatsOptions:
    """What is counted, and in how many documents."""

    max_docs: int = 100_000
    """Most documents read of each source, from its beginning."""
    max_mb: float | None = None
    """Most megabytes of text counted of each source, from its beginning; null: no limit."""
    duplicates: Literal["near", "exact", "none"] = "near"
    """Which duplicates are counted, over all sources together. This does not depend on ``data.dedup``."""
    plot: str = "runs/data-stats.png"
    """The file for the histogram of document lengths; empty: none is drawn."""

    def __post_init__(self) -> None:
        if self.max_docs < 1:
            raise UserError(f"stats.max_docs must be at least 1, not {self.max_docs}")
        if self.max_mb is not None and not self.max_mb > 0:
            raise UserError(f"stats.max_mb must be above 0, or null for no limit, not {self.max_mb}")


@dataclass(frozen=True, kw_only=True)
class DataStatsConfig(RunConfig):
    """A run with text that is counted."""

    stats: StatsOptions = field(default_factory=StatsOptions)


def main(argv: list[str]) -> int:
    """Count, draw the histogram, print the table and the JSON line. Returns the exit code."""
    config = load(DataStatsConfig, "data_stats", argv)
    if config.data.prepared:
        return show_prepared(config.data.prepared)
    stats, seed = config.stats, config.train.seed
    show_files(config.data, print)
    tokenizer = make_tokenizer(
        config.tokenizer, lambda: sample_documents(config.data, "train", config.tokenizer.sample_bytes, seed)
    )
    if config.data.has_chat:
        made, lines = chat_setup(tokenizer, config.data)
        for line in lines:
            print(line)
        return _chat(config, made)
    text = show_accounts(config, tokenizer)
    counted = count(config.data, tokenizer, stats, seed=seed)
    show(counted, config.data, tokenizer)
    known = {(each["source"], why) for each in text for why in each["examples"]}
    languages = {name: each.languages() for name, (each, _) in counted.items() if each.plan.source.from_hub}
    for name, (each, _) in counted.items():
        source = each.plan.source.label
        show_left_out(name, {why: texts for why, texts in each.rejected.items() if (source, why) not in known})
        show_languages(name, languages.get(name, {}))
    next_to = next_to_gpt2(config, tokenizer)
    record: dict[str, Any] = {
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "sources": {
            name: each.record() | {"complete": whole, "languages": languages.get(name, {})}
            for name, (each, whole) in counted.items()
        },
        "text": text,
        "bytes_per_token": next_to,
        "plot": None,
    }
    if stats.plot and any(each.lengths for each, _ in counted.values()):
        plot({name: each.lengths for name, (each, _) in counted.items() if each.lengths}, Path(stats.plot))
        record["plot"] = stats.plot
        print(f"document lengths: {stats.plot}")
        print(f"next: {cli.spelled('train', budget='1h')} with the same text")
    final_json(record)
    return 0


def _chat(config: DataStatsConfig, tokenizer: Tokenizer) -> int:
    """The statistics of conversations."""
    text = show_accounts(config, tokenizer)
    found = chat_stats.count(
        config.data,
        tokenizer,
        seq_len=config.train.seq_len,
        max_docs=config.stats.max_docs,
        max_mb=math.inf if config.stats.max_mb is None else config.stats.max_mb,
        seed=config.train.seed,
    )
    chat_stats.show(found, f"{tokenizer.name} ({tokenizer.vocab_size:,} ids)")
    final_json(
        {
            "tokenizer": tokenizer.name,
            "vocab_size": tokenizer.vocab_size,
            "sources": {name: each.record() for name, each in found.items()},
            "text": text,
            "tune_holds_out": rule.held_out(_conversations(found, text)),
        }
    )
    return 0


def _conversations(found: dict[str, chat_stats.ChatStatistics], text: list[dict[str, Any]]) -> int:
    """How many there are in all, about where not all were counted."""
    if all(each.complete for each in found.values()):
        return sum(len(each.lengths) for each in found.values())
    return sum(each["taken"] for each in text)


def show_accounts(config: DataStatsConfig, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Print what is read of each source, taken and left out, and why, with examples; the counts as plain values."""
    plans = make_plans(config.data, "train") if _all_here(config.data) else plan_sources(config.data, "train")
    most = math.inf if config.stats.max_mb is None else 1e6 * config.stats.max_mb
    limit = round(min(SMALL_CORPUS, most))
    accounts = [each for plan in plans if (each := account(plan, limit=limit)) is not None]
    rows: list[list[str]] = []
    for each in accounts:
        count_tokens(each, tokenizer, seq_len=config.train.seq_len, pairs=config.preference.on)
        about = "" if each.exact else "about "
        tokens = f"{'' if each.exact_tokens else 'about '}{each.tokens or 0:,} tokens"
        rows.append([each.source, "read", f"{about}{each.read:,} records"])
        rows.append(["", "taken", f"{about}{each.taken:,} ({tokens})"])
        if each.passages:
            rows.append(["", "taken without a passage, which is held out", f"{about}{each.passages:,}"])
        rows += [["", f"left out: {why}", f"{about}{count:,}"] for why, count in each.left_out.most_common()]
        rows += [["", f"masked or cut out: {kind}", f"about {n:,}"] for kind, n in each.changed.most_common()]
        files = each.listing.left_out if each.listing else {}
        rows += [["", f"files left out: {why}", f"{len(paths):,}"] for why, paths in files.items()]
    if rows:
        table("What is taken for training", ["source", "what", "how many"], rows)
    for each in accounts:
        show_left_out(each.source, each.examples)
        each.find_languages()
        show_languages(each.source, each.languages)
        for kind, stood in each.changes:
            print(f"{each.source}: masked or cut out as {kind}: {one_line(stood, EXAMPLE_CHARS)}")
    return [each.record() | {"examples": each.examples, "languages": each.languages} for each in accounts]


def show_left_out(source: str, examples: dict[str, list[str]]) -> None:
    """Print examples of what is left out, by reason."""
    for why, texts in examples.items():
        for text in texts:
            print(f"{source}: left out by {why}: {one_line(text, EXAMPLE_CHARS)}")


def show_languages(source: str, counts: dict[str, int]) -> None:
    """Print which languages were found in a sample."""
    n = sum(counts.values())
    if n:
        shares = ", ".join(f"{code} {each / n:.1%}" for code, each in list(counts.items())[:LANGUAGES])
        others = sum(list(counts.values())[LANGUAGES:])
        print(f"{source}: languages of {n:,} documents: {shares}" + (f", others {others / n:.1%}" if others else ""))


def _all_here(data: DataConfig) -> bool:
    """Whether looking for duplicates downloads nothing."""
    return not any(source.from_hub for source in data.all_sources())


def count(
    config: DataConfig, tokenizer: Tokenizer, stats: StatsOptions, *, seed: int
) -> dict[str, tuple[Statistics, bool]]:
    """For each source, by name, its statistics and whether all of it was read."""
    finder = None
    if stats.duplicates != "none":
        finder = Finder(stats.duplicates, config.dedup_threshold, most_near=MOST_NEAR)
    encode = make_encode(tokenizer)
    counted: dict[str, tuple[Statistics, bool]] = {}
    for each in plan_sources(config, "train"):
        found = Statistics(encode=encode, plan=each, finder=finder)
        most = math.inf if stats.max_mb is None else stats.max_mb
        whole = statistics.read(found, each, seed=seed, max_docs=stats.max_docs, max_mb=most)
        name = each.source.label
        while name in counted:
            name += "'"
        counted[name] = (found, whole)
    if finder is not None and finder.is_full:
        print(f"near duplicates are those among the first {MOST_NEAR:,} documents (data.dedup=near compares all)")
    return counted


def show(counted: dict[str, tuple[Statistics, bool]], config: DataConfig, tokenizer: Tokenizer) -> None:
    """Print the table."""
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
        f"Tokens of {tokenizer.name} ({tokenizer.vocab_size:,} ids). MB, tokens and lengths leave out filtered and "
        f"repeated documents (data.dedup={config.dedup}). +: the source has more documents "
        "(stats.max_docs, stats.max_mb)."
    )
    table("The text", columns, rows, caption=caption)


def next_to_gpt2(config: DataStatsConfig, tokenizer: Tokenizer) -> dict[str, float]:
    """Print how many bytes of the text a token spells, next to GPT-2's; by the tokenizers' names.

    GPT-2's is left out, and nothing downloaded, where tiktoken has it not in its cache.
    """
    sample = list(sample_documents(config.data, "train", COMPARED_BYTES, config.train.seed))
    size = sum(len(each.encode("utf-8")) for each in sample)
    counts = {tokenizer.name: (sum(map(len, map(make_encode(tokenizer), sample))), tokenizer.vocab_size)}
    if tokenizer.name != GPT2 and (gpt2 := cached(GPT2)) is not None:
        counts[GPT2] = sum(len(gpt2.encode_ordinary(each)) for each in sample), gpt2.n_vocab
    found = {name: size / max(1, count) for name, (count, _) in counts.items()}
    shown = ", ".join(f"{found[name]:.2f} of {name} ({ids:,} ids)" for name, (_, ids) in counts.items())
    print(f"bytes per token of {size / 1e6:.1f} MB of the text: {shown}")
    return {name: round(value, 4) for name, value in found.items()}


def plot(lengths: dict[str, array], path: Path) -> None:
    """Draw the share of each source's tokens by the length of their document; PNG at ``path``."""
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
