"""``python -m slm.export run=RUN quant=q4_k_m,q8_0``: checkpoint in, proven GGUF files out; or with ``format=onnx`` and
``format=pt2`` an ONNX model or a program of torch.export."""

import sys
from pathlib import Path
from typing import Any

from slm import cli, report
from slm.configuration import load
from slm.export.auto.show import show_choice
from slm.export.config import ExportConfig
from slm.export.staging import exit_on_sigterm
from slm.export.steps import Steps, show_steps
from slm.exported import shown
from slm.llama.verdict import crash_advice, require_working_build
from slm.machine.crash_guard import guarded
from slm.machine.hardware import share_cores
from slm.runs import QUESTIONS

EXIT_NOT_PROVEN = 3
"""A file failed its proof; nothing was published."""


def main(argv: list[str]) -> int:
    """Parse, export, report. Returns the exit status."""
    config = load(ExportConfig, "export", argv, literal=("run",))
    share_cores()
    if config.format != "gguf":
        return export_interchange(config)
    require_working_build()
    steps = Steps()
    with steps.step("loading PyTorch"):  # mistakes in the options are reported before
        from slm.export.pipeline import export

    with exit_on_sigterm():
        record = export(config, log=lambda line: print(line, flush=True), steps=steps)
    show(record)
    show_steps(record)
    if record["published"]:
        print(next_line(Path(record["out"])))
    report.final_json(record)
    return 0 if record["published"] else EXIT_NOT_PROVEN


def export_interchange(config: ExportConfig) -> int:
    """ONNX or torch.export. Returns the exit status."""
    from slm.export.interchange.make import export_program

    with exit_on_sigterm():
        record = export_program(config, log=lambda line: print(line, flush=True))
    report.table(
        f"{record['run']} / {record['checkpoint']}",
        ["file", "MB", "engine", "prompt", "decode", "allowed", "same top token"],
        [
            [
                record["file"],
                f"{record['size_mb']:.2f}",
                record["engine"],
                *(f"{record[key]:.2g}" for key in ("max_abs_prompt", "max_abs_decode", "allowed")),
                f"{record['same_top']:.1%}",
            ]
        ],
        caption=(
            f"prompt, decode: largest difference of a logit from the checkpoint's on {record['tokens']} tokens of "
            f"{record['text']}; allowed: 1e-4 of the root-mean-square logit (at least 1)"
        ),
    )
    if record["published"]:
        print(f"wrote {record['file']} to {record['out']}")
    else:
        print("error: the file failed its proof; nothing was written to " + record["out"], file=sys.stderr)
    report.final_json(record)
    return 0 if record["published"] else EXIT_NOT_PROVEN


def next_line(out: Path) -> str:
    """What can be done with files that have been exported to ``out``."""
    folder = shown(out.parent if out.name == "gguf" else out)
    text = f"next: {cli.spelled('serve', model=folder)}    or: {cli.spelled('chat', model=folder)}"
    if out.name == "gguf" and (asked := out.parent / QUESTIONS).is_file():
        text += f"\nthe run's questions, asked of each file: {cli.spelled('exam', model=folder, data=shown(asked))}"
    return text


def show(record: dict[str, Any]) -> None:
    """The table a person reads."""
    rows = [
        [
            "checkpoint",
            "",
            "",
            f"{report.perplexity_text(record['checkpoint_perplexity'])} ± {record['checkpoint_stderr']:.4f}",
            "",
            "",
            "",
        ]
    ]
    for each in record["files"]:
        rows.append(
            [
                each["file"],
                f"{each['size_mb']:.2f}",
                f"{each['bits_per_weight']:.2f}",
                f"{report.perplexity_text(each['perplexity'])} ± {each['stderr']:.4f}",
                report.change_text(each["perplexity_change"], each["perplexity_change_stderr"]),
                f"{each['kl']:.2g}",
                f"{each['same_top']:.1%}",
            ]
        )
    columns = ["file", "MB", "bits", "perplexity", "change", "KL", "same top"]
    report.table(
        f"{record['run']} / {record['checkpoint']}",
        columns,
        rows,
        caption=(
            f"bits: of a weight; perplexity: llama.cpp's definition, n_ctx {record['n_ctx']}, {record['tokens']} "
            f"tokens of {record['text']}; change: over all {record['predictions']} predictions of its windows, "
            "with its standard error, or where that may be all of it two of them; KL: mean divergence of the file's "
            "predictions from the checkpoint's, nats; same top: positions at which both predict the same token as "
            "likeliest"
        ),
    )
    for each in record["files"]:
        if each["file"] in record["choices"]:
            show_choice(each["file"], record["choices"][each["file"]], each["kl"])
    for each in record["files"]:
        for failure in each["failures"]:
            print(f"FAILED {each['file']}: {failure}", file=sys.stderr)
    if record["published"]:
        n = len(record["files"])
        print(f"wrote {n} {'file' if n == 1 else 'files'} to {shown(Path(record['out']))}")
    else:
        print("error: a file failed its proof; nothing was written to " + record["out"], file=sys.stderr)


if __name__ == "__main__":
    cli.run(lambda argv: guarded(lambda: main(argv), advice=crash_advice))
