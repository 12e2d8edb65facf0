"""The sweep over quantization types: make, compare and time every file."""

from collections.abc import Callable
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

import torch

from export.bench.config import SweepConfig, variants
from export.bench.reference import FileResult, ReferenceComparison
from export.bench.speed import SpeedPlan, measure_speed, time_left
from export.config import UNQUANTIZED
from export.quantize import size_bound
from export.source import imatrix_record, make_quantized, measure_importance, open_source
from export.staging import Staging, check_room
from export.texts import calibration_text
from slm import runs
from slm.evaluate.text import read_text
from slm.machine.hardware import compute_threads
from slm.machine.record import machine_record


def sweep(config: SweepConfig, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Make, compare and time every file; the record that is printed last. ``UserError`` for what a person can mend."""
    wanted = variants(config)
    run = runs.resolve(config.run)
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    text = read_text(config.eval.text or run.validation_text)
    source = open_source(run, [each.kind for each in wanted])
    out = config.out or run.root
    began = perf_counter()
    with Staging(out) as staging:
        logits_bytes = 4 * config.eval.kl_tokens * source.model.config.vocab_size
        check_room(out, logits_bytes + sum(size_bound(source.n_params, each.kind) for each in wanted))
        log(f"checkpoint {source.checkpoint}: {source.n_params:,} parameters, {len(wanted)} files")
        imatrix = None
        if any(each.imatrix for each in wanted):
            calibration = calibration_text(config.calibration.text, run, log)
            imatrix = measure_importance(source, calibration, config.calibration, log)
        paths = [staging.path(f"{number:02d}-{each.kind}.gguf") for number, each in enumerate(wanted)]
        source.write(paths[0], wanted[0].kind)
        reference = ReferenceComparison(config, paths[0], text, staging.folder, threads)
        files: list[FileResult] = []
        began_files = perf_counter()
        for path, variant in zip(paths, wanted, strict=True):
            if variant.kind not in UNQUANTIZED:
                matrix = imatrix if variant.imatrix else None
                make_quantized(source, paths[0], path, variant.kind, matrix, threads, _only_warnings(log))
            elif files:
                source.write(path, variant.kind)
            files.append(reference.compare(path, variant))
            remaining_s = (perf_counter() - began_files) / len(files) * (len(wanted) - len(files))
            summary = files[-1].summary(is_reference=len(files) == 1)
            log(f"[{len(files)} of {len(wanted)}] {variant.label}: {summary}; {time_left(remaining_s)}")
        plan = None
        if config.speed.rounds:
            plan = SpeedPlan.of(config.speed, reference.n_ctx_train)
            speeds = measure_speed(plan, paths, reference.stream, threads, log)
            files = [replace(each, **asdict(speed)) for each, speed in zip(files, speeds, strict=True)]
    return {
        "run": run.name,
        "checkpoint": source.checkpoint.name,
        "parameters": source.n_params,
        "reference": config.base,
        "text": {"name": text.name, "tokens": reference.n_scored, "definition": f"sliding/{reference.context}"},
        "kl_positions": reference.n_compared,
        "imatrix": imatrix_record(imatrix),
        "speed": plan.record() if plan else None,
        "threads": threads,
        "seconds": perf_counter() - began,
        "files": [asdict(each) for each in files],
        "machine": machine_record(),
    }


def _only_warnings(log: Callable[[str], None]) -> Callable[[str], None]:
    """Logs only warnings: every file gets a line of its own when it is measured."""
    return lambda line: log(line) if line.startswith("warning") else None
