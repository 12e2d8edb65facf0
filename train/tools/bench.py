"""``python -m slm.train.tools.bench``: tokens/s of whole training steps, compared with the machine's limit and others.

Each contender runs in its own process, one after the other, on the same seeded random token ids, as frequent as
words by Zipf's law, in the same shapes: forward, backward, clipping and the update. The limit is the rate of one large
bf16 matrix product measured in the same run (f32 where training would choose f32). GFLOP/s count 6 N + causal
attention, without recomputation. The roofline stands next to it: what registers and memory give at most.
"""

from dataclasses import dataclass, field
from typing import Any

from slm import cli
from slm.configuration import load
from slm.data.account.listing import check_files
from slm.data.errors import UserError
from slm.kernels import roofline
from slm.machine.busy import Others, mark
from slm.machine.crashes import DiedError, in_fresh_process
from slm.machine.record import machine_record
from slm.report import final_json, table
from slm.train.config import RunConfig
from slm.train.tools.contenders import CONTENDERS, Task

MOST_MICRO_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How long to measure, and which baselines."""

    steps: int = 8
    """Optimizer steps that are measured; the median counts."""
    warmup: int = 3
    """Optimizer steps before them, compilation included."""
    micro_batches: int | None = None
    """Passes per optimizer step; None: ``train.grad_accum``, at most ``MOST_MICRO_BATCHES``."""
    baselines: list[str] = field(default_factory=lambda: ["eager", "hf_trainer"])
    """Names of ``CONTENDERS`` that are measured after our own step."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup < 1:
            raise UserError("bench.steps and bench.warmup must be at least 1")
        unknown = sorted(set(self.baselines) - set(CONTENDERS))
        if unknown:
            raise UserError(f"bench.baselines: there is no {unknown[0]!r}; choose from: {', '.join(CONTENDERS)}")


@dataclass(frozen=True, kw_only=True)
class BenchConfig(RunConfig):
    """The run with the steps that are measured, and how."""

    bench: BenchOptions = field(default_factory=BenchOptions)


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON line. Returns the exit code."""
    config = load(BenchConfig, "bench_train", argv)
    check_files(config.data)
    bench = config.bench
    grad_accum = bench.micro_batches or min(config.train.grad_accum, MOST_MICRO_BATCHES)
    task = Task(config=config, grad_accum=grad_accum, steps=bench.steps, warmup=bench.warmup)
    results: dict[str, dict[str, Any]] = {}
    others = Others()
    for name in ["ours", *(each for each in bench.baselines if each != "ours")]:
        print(f"measuring {name} ...", flush=True)
        try:
            results[name] = in_fresh_process(CONTENDERS[name], task)
        except DiedError as error:
            raise UserError(f"{name}: {error}; is there memory enough for it?") from None
        if "skipped" in results[name]:
            print(f"  left out: {results[name]['skipped']}", flush=True)
    ours = results["ours"]
    limits = roofline.measure(ours["threads"])
    peak = limits.peak(ours["precision"]) if limits else None
    busy = others.share()
    show(config, results, mark(busy))
    show_roofline(ours, limits, peak)
    record = {
        "preset": config.preset,
        "tokens_per_s": ours["tokens_per_s"],
        "gflops": ours["gflops"],
        "gemm_peak_gflops": ours["gemm_peak_gflops"],
        "gemm_peak_fraction": ours["gflops"] / ours["gemm_peak_gflops"],
        "register_peak_fraction": ours["gflops"] / peak if peak else None,
        "roofline": limits.record() if limits else None,
        "ratio_hf_trainer": ratio(results, "hf_trainer"),
        "ratio_eager": ratio(results, "eager"),
        "peak_rss_gb": ours["peak_rss_gb"],
        "threads": ours["threads"],
        "precision": ours["precision"],
        "backend": ours["backend"],
        "breakdown": ours["breakdown"],
        "first_step_s": ours["first_step_s"],
        "shape": {
            "seq_len": config.train.seq_len,
            "micro_batch": config.train.micro_batch,
            "grad_accum": grad_accum,
        },
        "contenders": results,
        "machine": machine_record(),
        "others_share": busy,
    }
    final_json(record)
    return 0


def ratio(results: dict[str, Any], other: str) -> float | None:
    """Our tokens per second divided by another's; None where the other was not measured."""
    theirs = results.get(other, {}).get("tokens_per_s")
    return results["ours"]["tokens_per_s"] / theirs if theirs else None


def show(config: RunConfig, results: dict[str, Any], busy: str = "") -> None:
    """Print the table, and under it the shares of a step's time. ``busy``: the title's mark of a busy machine."""
    rows = []
    for name, each in results.items():
        if "skipped" in each:
            continue
        rows.append(
            [
                name,
                f"{each['tokens_per_s']:,.0f}",
                f"{each['gflops']:,.0f}",
                f"{each['gflops'] / results['ours']['gemm_peak_gflops']:.2f}",
                f"{results['ours']['tokens_per_s'] / each['tokens_per_s']:.2f}",
                f"{each['first_step_s']:.1f}",
                f"{each['peak_rss_gb']:.2f}",
            ]
        )
    shares = ", ".join(f"{name} {share:.1%}" for name, share in results["ours"]["breakdown"].items())
    columns = ["", "tokens/s", "GFLOP/s", "of GEMM peak", "ours is x", "first step, s", "peak GiB"]
    ours = results["ours"]
    table(
        f"Training steps of {config.preset}: {ours['threads']} thread{'s' * (ours['threads'] > 1)}, "
        f"{ours['precision']}{busy}",
        columns,
        rows,
        caption=f"GFLOP/s: 6N + causal attention; GEMM peak of this run: {ours['gemm_peak_gflops']:,.0f} GFLOP/s",
    )
    print(f"where a step's time goes: {shares}")


def show_roofline(ours: dict[str, Any], limits: roofline.Roofline | None, peak: float | None) -> None:
    """Print what the machine gives at most, and where our step stands."""
    if limits is None:
        print("the roofline was not measured: its loops could not be built or run")
        return
    gemm, precision = ours["gemm_peak_gflops"], ours["precision"]
    rows = [*limits.rows(), [f"best matrix product, {precision}", f"{gemm:,.0f} GFLOP/s"]]
    stands = f"{ours['gflops']:,.0f} GFLOP/s: {ours['gflops'] / gemm:.2f} of the best matrix product"
    if peak:
        rows[-1][1] += f": {gemm / peak:.2f} of the register peak"
        stands += f", {ours['gflops'] / peak:.2f} of the register peak"
        rows.append(
            [
                "balance",
                f"{peak / limits.read_gb_per_s:,.0f} operations for each byte read use registers and memory alike",
            ]
        )
    rows.append(["our step", stands])
    caption = (
        "register peak: multiply-adds (two operations) on registers alone, per second of processor time; "
        f"memory: a read of {limits.read_mib:,} MiB"
    )
    table("The roofline of this machine", ["what", "rate"], rows, caption=caption)


if __name__ == "__main__":
    cli.run(main)
