"""``make plan BUDGET=8h``: every size that the time could train, as a table, a picture and one JSON line.

Tested in tests/train/tools/test_plan.py.
"""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slm.cli import spelled
from slm.data.storage import atomic_write_bytes
from slm.durations import seconds_of
from slm.report import duration, final_json, table
from slm.train.budget import choice
from slm.train.budget.choice import Candidate
from slm.train.budget.choose import READING, Basis, basis_of, candidates, compose, reading, reason
from slm.train.budget.costs import Costs, costs, q4_k_m_bytes
from slm.train.budget.machine import machine_name
from slm.train.budget.named_machine import named_machine
from slm.train.predict import wikitext
from slm.train.predict.law import text_factor
from slm.train.tools.plan_config import PlanOptions


def show_menu(argv: list[str], seconds: float, options: PlanOptions) -> int:
    """Print the menu of a run of ``seconds`` with the words ``argv``. Returns the exit code."""
    base = compose(argv)
    machine = named_machine(options.machine) if options.machine else None
    basis = basis_of(base, argv, seconds, machine)
    found = candidates(basis, seconds)
    chosen = choice.best(found)
    # The menu has one row per shape; that of the chosen one is the choice itself, with its own rates and batch.
    others = [each for each in choice.menu(found) if each.shape != chosen.shape]
    sizes = sorted([*others, chosen], key=lambda each: each.model.n_params)
    rows = []
    for each in sizes:
        size = q4_k_m_bytes(each.model)
        rows.append(
            [
                f"{each.shape.n_layers} x {each.shape.d_model}",
                f"{each.model.n_params / 1e6:,.1f}M",
                f"{each.vocab_size:,}",
                *reading(each),
                f"{each.memory_bytes / 2**30:.1f}",
                f"{each.bits_per_byte:.3f}",
                f"{each.low:.3f} to {each.high:.3f}",
                f"{size / 1e6:,.1f}",
                f"{basis.machine.decode_tokens_per_s(size, each.shape.n_layers):,.0f}",
            ]
        )
    columns = ["layers x width", "parameters", "vocabulary", *READING]
    columns += ["GiB", "bits per byte", "two of three", "Q4_K_M, MB", "written/s"]
    caption = (
        "bits per byte: predicted for the validation text at the end of the run. two of three: that share of runs "
        "should end there. GiB: memory of the run. written/s: tokens that llama.cpp writes for one reader (Q4_K_M)."
    )
    where = f"{options.machine} (estimated)" if options.machine else machine_name(basis.machine)
    table(
        f"{duration(seconds)} on {where}",
        columns,
        rows,
        caption=caption,
        chosen=[i for i, each in enumerate(sizes) if each is chosen],
    )
    print("  " + reason(chosen, sizes, basis))
    if wikitext.can_say(base.data):
        # The level of the articles: the mixture holds stories, too.
        articles, mixture = wikitext.LEVELS[base.data.name], basis.corpus.level
        level = text_factor(articles, chosen.bytes)[0] / text_factor(mixture, chosen.bytes)[0]
        ends = [level * each for each in (chosen.low, chosen.bits_per_byte, chosen.high)]
        low, at, high = wikitext.of_run(base.data, ends)
        print(f"  WikiText-103 perplexity per word: {at:,.0f} ({low:,.0f} to {high:,.0f}: two runs of three)")
    money = costs_of(chosen, basis, options)
    show_costs(money)
    record: dict[str, Any] = {
        "budget_s": seconds,
        "chosen": entry(chosen, basis),
        "menu": [entry(each, basis) for each in sizes],
        "costs": money.record(),
        "curve": [_at(seconds_of(each, "plan.times"), basis) for each in options.times],
        "corpus": asdict(basis.corpus),
        "law": asdict(basis.law),
        "machine": asdict(basis.machine),
        "plot": options.plot or None,
    }
    if options.plot:
        plot(sizes, chosen, duration(seconds), Path(options.plot))
        print(f"sizes and losses: {options.plot}")
    budget = next(word.partition("=")[2] for word in argv if word.startswith("budget="))
    print(f"next: {spelled('train', budget=budget)} with the same options")
    final_json(record)
    return 0


def _at(seconds: float, basis: Basis) -> dict[str, Any]:
    """The best size for another time, as the JSON line has it."""
    return {"budget_s": seconds} | entry(choice.best(candidates(basis, seconds)), basis)


def costs_of(candidate: Candidate, basis: Basis, options: PlanOptions) -> Costs:
    """The money of one size."""
    speed = basis.machine.decode_tokens_per_s(q4_k_m_bytes(candidate.model), candidate.shape.n_layers)
    return costs(
        seconds=candidate.seconds,
        tokens=candidate.tokens,
        decode_tokens_per_s=speed,
        price_per_hour=options.price_per_hour,
        api_price=options.api_price,
    )


def cost_rows(money: Costs) -> list[list[str]]:
    """The lines of a table."""
    rows = [
        ["cost of training (in the currency of plan.price_per_hour)", f"{money.training:.4g}"],
        ["cost of training, per million tokens", f"{money.training_per_million_tokens:.4g}"],
        ["cost of a million written tokens, an API (plan.api_price)", f"{money.api_per_million_tokens:.4g}"],
    ]
    if money.serving_per_million_tokens is not None:
        serving = f"{money.serving_per_million_tokens:.4g}"
        rows.insert(2, ["cost of a million written tokens here, for one reader", serving])
    if money.tokens_until_paid is not None:
        rows.append(["tokens until the difference has paid for the training", f"{money.tokens_until_paid:,.0f}"])
    return rows


def show_costs(money: Costs) -> None:
    """Print the money of the choice."""
    table("What it costs", ["quantity", "value"], cost_rows(money))


def entry(each: Candidate, basis: Basis) -> dict[str, Any]:
    """One size for the JSON line."""
    size = q4_k_m_bytes(each.model)
    return {
        "n_layers": each.shape.n_layers,
        "d_model": each.shape.d_model,
        "ffn_dim": each.shape.ffn_dim,
        "vocab_size": each.vocab_size,
        "n_params": each.model.n_params,
        "tokens_per_step": each.sequences * each.seq_len,
        "steps": each.steps,
        "tokens": each.tokens,
        "epochs": each.epochs,
        "born_again": each.born_again,
        "tokens_per_s": each.tokens_per_s,
        "seconds": each.seconds,
        "memory_bytes": each.memory_bytes,
        "bits_per_byte": each.bits_per_byte,
        "bits_per_byte_low": each.low,
        "bits_per_byte_high": each.high,
        "q4_k_m_bytes": size,
        "decode_tokens_per_s": basis.machine.decode_tokens_per_s(size, each.shape.n_layers),
    }


def plot(sizes: list[Candidate], chosen: Candidate, title: str, path: Path) -> None:
    """Draw predicted bits per byte with their interval over parameters; PNG at ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    x = [each.model.n_params / 1e6 for each in sizes]
    axis.fill_between(
        x, [each.low for each in sizes], [each.high for each in sizes], color="#deebf7", label="two of three"
    )
    axis.plot(x, [each.bits_per_byte for each in sizes], "o-", color="#2171b5", markersize=4, label="predicted")
    axis.plot(chosen.model.n_params / 1e6, chosen.bits_per_byte, "o", color="#d94801", markersize=8, label="chosen")
    axis.set(xscale="log", xlabel="parameters (millions)", ylabel="validation, bits per byte", title=f"after {title}")
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(path, buffer.getvalue())
