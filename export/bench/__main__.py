"""``python -m slm.export.bench run=RUN``: what each quantization type costs and gains, in one table.

Every type is made from one checkpoint, with an importance matrix and, where few bits are left, without; each file is
compared with the unquantized one in the same engine, on the same text, and timed. The files lie in a temporary folder
inside the run's directory that goes away with the command; nothing exported before is touched. The rows and a page with
plots stay in the run's ``quantization`` folder, and a stopped sweep goes on from them.
The last line printed is a JSON object.
"""

import textwrap
from pathlib import Path
from typing import Any

from slm import cli, report
from slm.configuration import load
from slm.export.bench.config import SweepConfig
from slm.export.bench.front import recommended
from slm.export.bench.page import PAGE, write_page
from slm.export.config import UNQUANTIZED
from slm.export.staging import exit_on_sigterm
from slm.llama.verdict import crash_advice, require_working_build
from slm.machine.busy import mark
from slm.machine.crash_guard import guarded
from slm.machine.hardware import share_cores


def main(argv: list[str]) -> int:
    """Measure every type, print the table and the JSON line. Returns the exit status."""
    config = load(SweepConfig, "bench_quant", argv, literal=("run",))
    share_cores()
    require_working_build()
    from slm.export.bench.sweep import sweep  # loads torch: mistakes in the options are reported before

    with exit_on_sigterm():
        record = sweep(config, log=lambda line: print(line, flush=True))
    show(record)
    index = recommended(record["files"])
    kind = "q4_k_m" if index is None else record["files"][index]["type"]
    print(f"next: {cli.spelled('export', run=config.run, quant=kind)}    (or other types of the table)")
    report.final_json(record)
    return 0


def show(record: dict[str, Any]) -> None:
    """The table that a person reads, the recommendation, and the page with both and the plots."""
    speed, text = record["speed"], record["text"]
    rows = []
    for number, each in enumerate(record["files"]):
        rows.append(
            [
                each["type"] + _rounding(each),
                "" if each["type"] in UNQUANTIZED else "yes" if each["imatrix"] else "no",
                f"{each['size_mib']:.2f}",
                f"{each['bits_per_weight']:.2f}",
                f"{each['bits_per_byte']:.4f}",
                report.perplexity_text(each["perplexity"]),
                report.change_text(each["perplexity_change"], each["perplexity_change_stderr"]) if number else "",
                f"{each['kl']:.2g}" if number else "",
                f"{each['same_top']:.1%}" if number else "",
                *(
                    [
                        f"{each[key]:,.0f}" if each[key] else ""
                        for key in ("prefill_tok_s", "decode_tok_s", "decode_bound_tok_s")
                    ]
                    if speed
                    else []
                ),
                each["front"],
            ]
        )
    columns = ["type", "imatrix", "MiB", "bits/weight", "bits/byte", "perplexity", "change", "KL (nats)", "same top"]
    columns += ["prefill tok/s", "decode tok/s", "bound tok/s"] if speed else []
    columns.append("best by")
    caption = (
        f"perplexity per token and bits per byte: {text['definition']} (stride half of it, every token scored "
        f"once), {text['tokens']:,} tokens of {text['name']}\n"
        f"change, KL, same top (first choices that agree): against {record['reference']} in llama.cpp, "
        f"KL and same top on {record['kl_positions']:,} positions\n"
        + (
            "gptq: rounding that makes up for its errors (not kept: llama.cpp's own was measured better, and stays)\n"
            if any(each["rounding"] == "gptq" for each in record["files"])
            else ""
        )
        + "best by: no other row has a smaller KL and is smaller (size) or faster (decode, prefill)"
        + (
            f"\nspeed: one sequence, a prompt of {speed['prefill']} tokens in one batch, then {speed['decode']} "
            f"tokens one at a time; {record['threads']} threads; medians of {speed['rounds']}; bound: the measured "
            "rate of reading memory over the bytes of weights that a token reads (a model in the caches may be faster)"
            if speed
            else ""
        )
    )
    title = f"Quantization of {record['run']} / {record['checkpoint']}"
    title += mark(record["others_share"]) if speed else ""
    index = recommended(record["files"])
    # One type may have two rows, with the importance matrix and without.
    report.table(title, columns, rows, caption=caption, key=2, chosen=() if index is None else (index,))
    print("\n".join(textwrap.wrap(record["recommendation"], report.screen_width(), break_on_hyphens=False)))
    page = Path(record["report"]) / PAGE
    write_page(page, title, columns, rows, caption, record)
    print(f"written: {page}")


def _rounding(row: dict[str, Any]) -> str:
    if row["rounding"] == "nearest":
        return ""
    return " gptq" if row["rounding_kept"] else " gptq (not kept)"


if __name__ == "__main__":
    cli.run(lambda argv: guarded(lambda: main(argv), advice=crash_advice))
