"""The sweep over quantization types: make, compare and time every file."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from slm.data.errors import UserError
from slm.evaluate.text import read_text
from slm.export.auto.make import make_file, quantize_choice
from slm.export.auto.planner import GoalError, Planner
from slm.export.bench.config import SweepConfig, Variant, variants
from slm.export.bench.front import fronts, recommendation
from slm.export.bench.kept import FOLDER, KeptRows, fingerprint
from slm.export.bench.reference import ReferenceComparison
from slm.export.bench.speed import Speed, SpeedPlan, measure_speed, time_left
from slm.export.config import UNQUANTIZED
from slm.export.imatrix import ImportanceMatrix
from slm.export.quantize import size_bound
from slm.export.rounding.make import round_again
from slm.export.source import Source, imatrix_record, importance_matrix, make_quantized, open_source
from slm.export.staging import Staging, check_room
from slm.export.target import is_target, parse_target
from slm.export.texts import Text, calibration_text
from slm.exported import sha256
from slm.hub import models
from slm.kernels import roofline
from slm.llama.gguf_check import read_header
from slm.llama.speed.workload import Workload
from slm.machine.busy import Others
from slm.machine.hardware import compute_threads
from slm.machine.record import machine_record

Log = Callable[[str], None]


def sweep(config: SweepConfig, log: Log = lambda line: None) -> dict[str, Any]:
    """Make, compare and time every file; the record that is printed last. ``UserError`` for what a person can mend.

    Rows that an earlier sweep measured for the same question are taken from the run's ``quantization/rows.json``.
    """
    wanted = variants(config)
    others = Others()
    run = models.resolve(config.run)
    run.checkpoint()  # its absence is reported before anything is read
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    text = read_text(config.eval.text or run.validation_text)
    source = open_source(run, [each.kind for each in wanted])
    out = config.out or run.root
    began = perf_counter()
    needs_text = any(each.imatrix or each.rounding != "nearest" or is_target(each.kind) for each in wanted)
    calibration = calibration_text(config.calibration.text, run, log) if needs_text else None
    more = (*config.calibration.files, *config.calibration.more_texts)
    question = {
        "checkpoint": [str(source.checkpoint), fingerprint(source.checkpoint)],
        "text": [text.name, text.content],
        "calibration": [calibration.content if calibration else None, asdict(config.calibration)],
        "calibration files": [_digest(path) for path in more] if needs_text else [],
        "eval": asdict(config.eval),
        "speed": asdict(config.speed),
        "base": config.base,
        "threads": threads,
        "speed of goals": "measured",
    }
    kept = KeptRows(out / FOLDER, question)
    wanted = _possible(wanted, kept, log)
    known = [each for each in wanted if each.label in kept.rows]

    def all_timed() -> bool:
        rows = [kept.rows.get(each.label) for each in wanted]
        return not config.speed.rounds or all(row is not None and row.bytes_per_token for row in rows)

    if known:
        log(f"{len(known)} of {len(wanted)} rows were measured before ({kept.path})")
    limits = None
    with Staging(out) as staging:
        logits_bytes = 4 * config.eval.kl_tokens * source.model.config.vocab_size
        check_room(out, logits_bytes + sum(size_bound(source.n_params, each.kind) for each in wanted))
        if line := run.choice_line():
            log(line)
        log(f"checkpoint {source.checkpoint}: {source.n_params:,} parameters, {len(wanted)} files")
        paths = [staging.path(f"{number:02d}-{each.file}.gguf") for number, each in enumerate(wanted)]
        source.write(paths[0], wanted[0].kind)
        timed_as = SpeedPlan.of(config.speed, source.model.config.seq_len)
        makers = _Makers(source, paths[0], calibration, config, threads, log, timed_as.workload, kept.choices)
        reference = ReferenceComparison(config, paths[0], text, staging.folder, threads)
        if len(known) < len(wanted):
            _compare_all(wanted, paths, makers, reference, kept, log, remake=not all_timed())
            paths = [path for path, each in zip(paths, wanted, strict=True) if each.label not in kept.unmet]
            wanted = _possible(wanted, kept, log)
        plan = timed_as if config.speed.rounds else None
        if plan and not all_timed():
            for path, variant in zip(paths, wanted, strict=True):
                if not path.is_file():
                    makers.make(variant, path)
            speeds = measure_speed(plan, paths, reference.stream, threads, log)
            limits = roofline.measure(threads)
            for path, variant, speed in zip(paths, wanted, speeds, strict=True):
                n_bytes = read_header(path).decode_bytes
                bound = limits.decode_bound(n_bytes) if limits else None
                row = replace(kept.rows[variant.label], bytes_per_token=n_bytes, decode_bound_tok_s=bound)
                kept.add(variant.label, replace(row, **asdict(speed)))
                _note_missed(variant, speed, log)
        imatrix = makers.used
    files = [asdict(kept.rows[each.label]) | {"label": each.label} for each in wanted]
    for shown, names in zip(files, fronts(files), strict=True):
        shown["front"] = names
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
        "memory_read_gb_per_s": limits.read_gb_per_s if limits else None,
        "seconds": perf_counter() - began,
        "files": files,
        "choices": {each.label: kept.choices[each.label] for each in wanted if each.label in kept.choices},
        "recommendation": recommendation(files),
        "report": str(out / FOLDER),
        "machine": machine_record(),
        "others_share": others.share(),
    }


class _Makers:
    """What files are made with, each measured when it is first needed."""

    def __init__(
        self,
        source: Source,
        base: Path,
        calibration: Text | None,
        config: SweepConfig,
        threads: int,
        log: Log,
        workload: Workload,
        kept_choices: Mapping[str, dict[str, Any]],
    ) -> None:
        """``workload``: what the table's decode speeds and those of goals are the speeds of. ``kept_choices``: records
        of choices by label, for files that have to be made again."""
        self.workload, self.kept_choices = workload, kept_choices
        self.source, self.base, self.calibration = source, base, calibration
        self.config, self.threads, self.log = config, threads, log
        self.used: ImportanceMatrix | None = None
        self.choices: dict[str, dict[str, Any]] = {}
        self.rounding_kept: dict[str, bool] = {}

    def make(self, variant: Variant, path: Path) -> None:
        """Make the file of a variant that is not the reference."""
        if variant.kind in UNQUANTIZED:
            self.source.write(path, variant.kind)
        elif is_target(variant.kind):
            target = parse_target(variant.kind)
            if known := self.kept_choices.get(variant.label):
                again = self.planner.again(target, known["types"])
                quantize_choice(self.planner, self.base, path, again, _only_warnings(self.log))
            else:
                choice = make_file(self.planner, self.base, path, target, self.log, refuse=False)
                self.choices[variant.label] = choice.record()
        else:
            matrix = self.imatrix if variant.imatrix else None
            make_quantized(self.source, self.base, path, variant.kind, matrix, self.threads, _only_warnings(self.log))
        if variant.rounding == "gptq":
            self._round_again(variant, path)

    def _round_again(self, variant: Variant, path: Path) -> None:
        if variant.kind == self.source.trained_for:
            self.rounding_kept[variant.label] = False  # its blocks are those that it was trained with
            return
        assert self.calibration is not None
        matrix = self.imatrix if variant.imatrix else None
        options = self.config.calibration
        record = round_again(self.source, path, self.calibration, options, matrix, self.threads, self.log)
        self.rounding_kept[variant.label] = record["kept"]

    @cached_property
    def imatrix(self) -> ImportanceMatrix:
        assert self.calibration is not None
        tensors = read_header(self.base).tensors
        self.used = importance_matrix(self.source, self.calibration, self.config.calibration, tensors, self.log)
        return self.used

    @cached_property
    def planner(self) -> Planner:
        assert self.calibration is not None
        header = read_header(self.base)
        imatrix = self.imatrix if self.config.calibration.imatrix else None
        return Planner(
            self.source,
            header,
            self.calibration,
            imatrix,
            threads=self.threads,
            log=self.log,
            workload=self.workload,
        )


def _compare_all(
    wanted: list[Variant],
    paths: list[Path],
    makers: _Makers,
    reference: ReferenceComparison,
    kept: KeptRows,
    log: Log,
    *,
    remake: bool,
) -> None:
    """Make and compare the files without a known row. The reference always runs: the others need its predictions."""
    todo = [0] + [i for i, each in enumerate(wanted) if i and each.label not in kept.rows]
    began = perf_counter()
    for done, i in enumerate(todo, start=1):
        if i:
            try:
                makers.make(wanted[i], paths[i])
            except GoalError as error:
                kept.leave_out(wanted[i].label, str(error))
                continue
        row = reference.compare(paths[i], wanted[i])
        row = replace(row, rounding_kept=makers.rounding_kept.get(wanted[i].label))
        kept.add(wanted[i].label, row, makers.choices.get(wanted[i].label))
        remaining_s = (perf_counter() - began) / done * (len(todo) - done)
        summary = row.summary(is_reference=i == 0)
        log(f"[{done} of {len(todo)}] {wanted[i].label}: {summary}; {time_left(remaining_s)}")
        if i and not remake:
            paths[i].unlink()


def _digest(path: Path) -> str:
    """What a file of calibration holds. UserError where it cannot be read."""
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _possible(wanted: list[Variant], kept: KeptRows, log: Log) -> list[Variant]:
    """Those that are not known to have a goal that no file meets; a line for each of the others."""
    for each in wanted:
        if why := kept.unmet.get(each.label):
            log(f"{each.label} is left out: {why}")
    return [each for each in wanted if each.label not in kept.unmet]


def _note_missed(variant: Variant, speed: Speed, log: Log) -> None:
    """Says where a file that was fast enough when it was chosen is slower in the table, in turn with the others."""
    target = parse_target(variant.kind) if is_target(variant.kind) else None
    if target and target.goal == "decode" and speed.decode_tok_s < target.value:
        log(f"note: {variant.label}: {speed.decode_tok_s:,.0f} tokens/s in the table's rounds")


def _only_warnings(log: Log) -> Log:
    """Logs only warnings: every file gets its own line when it is measured."""
    return lambda line: log(line) if line.startswith("warning") else None
