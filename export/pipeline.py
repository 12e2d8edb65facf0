"""The order of an export: read, check, write, prove, measure, quantize, prove, publish."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm import runs
from slm.evaluate.scorers import quick_kernels
from slm.export import modelfile
from slm.export.adapter import open_adapter, write_proven
from slm.export.auto.make import make_chosen
from slm.export.auto.planner import Planner
from slm.export.config import UNQUANTIZED, ExportConfig, resolve_types
from slm.export.imatrix import Begun, ImportanceMatrix
from slm.export.parts import MOST_BYTES, compare_parts, layer_groups
from slm.export.proof import ADAPTER_TYPE, Comparison, Proof
from slm.export.quantize import size_bound
from slm.export.rounding.make import METADATA, round_again
from slm.export.source import Source, imatrix_record, importance_matrix, make_quantized, open_source
from slm.export.staging import Staging, check_room
from slm.export.steps import Steps
from slm.export.target import is_target, parse_target
from slm.export.texts import Text, calibration_text, validation_text
from slm.exported import RECORD_FILE, recorded_sums, sha256
from slm.hub import models
from slm.kernels.column_squares import ColumnSquares
from slm.kernels.native import VARIANTS
from slm.llama.gguf_check import read_header
from slm.llama.quantize import IGNORE_IMATRIX, quant_types
from slm.machine.hardware import compute_threads
from slm.machine.record import machine_record
from slm.report import atomic_write_json
from slm.vocabulary.same_ids import chat_failures

IMATRIX_FILE = "imatrix.gguf"
TEMPORARY_CHUNKS = 1  # of text, in the comparison of a file that is not published


@dataclass(kw_only=True)
class _Making:
    """An export on its way: what it makes files from, and what there is so far."""

    config: ExportConfig
    types: list[str]
    source: Source
    staging: Staging
    proof_text: Text
    calibration: Text
    threads: int
    steps: Steps
    log: Callable[[str], None]
    unquantized: dict[str, Path] = field(default_factory=dict)
    """By type, the temporary base of quantized files among them."""
    compared: dict[str, Comparison] = field(default_factory=dict)
    """By type."""
    finished: list[Path] = field(default_factory=list)
    """What is published if everything passes."""
    imatrix: ImportanceMatrix | None = None
    begun: Begun | None = None
    """The importance matrix of the proof's windows, where these are the first ones of the calibration text."""
    choices: dict[str, Any] = field(default_factory=dict)
    """By file name: what ``quant=auto`` chose."""
    roundings: dict[str, Any] = field(default_factory=dict)
    """By file name: what ``rounding=gptq`` did."""

    @property
    def plain(self) -> list[str]:
        return [kind for kind in UNQUANTIZED if kind in self.types]

    @property
    def quantized(self) -> list[str]:
        return [kind for kind in self.types if kind not in UNQUANTIZED]

    @property
    def base(self) -> str:
        """The type that the quantized files are made from."""
        return self.config.base if self.quantized else self.plain[0]

    @property
    def imatrix_kinds(self) -> list[str]:
        """The types that are quantized with an importance matrix, where one is asked for."""
        kinds = [kind for kind in self.quantized if kind != self.source.trained_for]
        return kinds if self.config.calibration.imatrix else []

    @property
    def passed(self) -> bool:
        return not any(each.failures for each in self.compared.values())

    def path(self, kind: str) -> Path:
        """Where the file of a type is staged."""
        return self.staging.path(self.source.identity.file_name(kind))


def export(
    config: ExportConfig, log: Callable[[str], None] = lambda line: None, steps: Steps | None = None
) -> dict[str, Any]:
    """Write every type asked for, prove each, publish all or none; returns the record saved as ``export.json``.

    ``steps``: measured already, before this function was called. ``UserError`` for what a person can mend. A failed
    proof is not an error here: the record's ``published`` is False and its ``files`` name the failures.
    """
    types, steps = resolve_types(config.quant, quant_types()), steps or Steps()
    run = models.resolve(config.run)
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    with steps.step("reading the checkpoint"):
        source = open_source(
            run,
            (*types, config.base),
            pre=config.pre,
            naming=config.naming(),
            private=config.private,
            # A search for types and another rounding than llama.cpp's change weights in place.
            as_stored=config.rounding == "nearest" and not any(map(is_target, types)),
        )
    quantized = [kind for kind in types if kind not in UNQUANTIZED]
    proof_text, calibration = choose_texts(config, run, bool(quantized) and _uses_imatrix(config, quantized), log)
    with Staging(config.out or run.gguf_dir) as staging:
        making = _Making(
            config=config,
            types=types,
            source=source,
            staging=staging,
            proof_text=proof_text,
            calibration=calibration,
            threads=threads,
            steps=steps,
            log=log,
        )
        room = sum(size_bound(source.n_params, kind) for kind in dict.fromkeys([*types, making.base]))
        in_parts = making.quantized and len(layer_groups(source.model.config)) > 1  # one is written at a time
        check_room(staging.out, room + (MOST_BYTES if in_parts else 0))
        _write_unquantized(making)
        proof = _prove_unquantized(making)
        _add_adapter(making, proof)
        if making.quantized and making.passed:
            _measure_importance(making)
            _add_quantized(making, proof)
        return _publish(making, proof)


def _write_unquantized(making: _Making) -> None:
    source, log = making.source, making.log
    if line := source.run.choice_line():
        log(line)
    log(f"checkpoint {source.checkpoint}: {source.n_params:,} parameters")
    for warning in source.vocab.warnings:
        log(f"warning: {warning}")
    for kind in dict.fromkeys([making.base, *making.plain]):
        making.unquantized[kind] = making.path(kind)
        log(f"writing {kind}" + ("" if kind in making.plain else " (temporary)"))
        with making.steps.step(f"conversion to {kind}"):
            source.write(making.path(kind), kind)


def _beyond_the_proof(source: Source, n_ctx: int) -> str | None:
    """What a proof with windows of ``n_ctx`` tokens does not show of a LongRoPE model."""
    scaling = source.model.config.rope_scaling
    if not scaling or scaling["rope_type"] != "longrope" or n_ctx > scaling["original_max_position_embeddings"]:
        return None
    old = int(scaling["original_max_position_embeddings"])
    return (
        f"note: LongRoPE: the proof compares contexts of up to {old} tokens (the short factors); in a longer context "
        "llama.cpp rotates all tokens by the long factors, also those of a short text"
    )


def _prove_unquantized(making: _Making) -> Proof:
    """Compare what was written. Returns the proof, which other files of the checkpoint are compared by, too."""
    source, options = making.source, making.config.proof
    # Windows of the proof that are no longer than the model's would show nothing of these.
    n_ctx = max(options.n_ctx, 2 * (source.model.config.sliding_window or 0))
    if line := _beyond_the_proof(source, n_ctx):
        making.log(line)
    kernels = quick_kernels(source.model, options.chunks * n_ctx)
    if kernels:
        source.scorer.use(kernels)
    by = f"{VARIANTS[kernels.name].title} kernels" if kernels else "PyTorch"
    making.log(f"comparing with the checkpoint: token ids, logits, perplexity (the checkpoint's side in f32, {by})")
    squares = _squares_to_begin(making)
    watched = squares.watched(source.scorer.fused) if squares else nullcontext()
    with making.steps.step("proof: the checkpoint's side"), watched:
        proof = _begin_proof(making, source, n_ctx, options.chunks)
    if squares:
        making.begun = Begun(squares=squares, inputs=np.stack([each.inputs(proof.stream) for each in proof.windows]))
    for kind, path in making.unquantized.items():
        with making.steps.step(f"proof: {kind}"):
            if kind in making.plain:
                making.compared[kind] = proof.compare(path, kind)
            # The files made from a temporary one are compared at full length themselves.
            elif kind == "f32" and len(groups := layer_groups(source.model.config)) > 1:
                making.log(f"comparing the f32 file in {len(groups)} parts of its layers, for less memory")
                begin = partial(_begin_proof, making, n_ctx=n_ctx, chunks=TEMPORARY_CHUNKS)
                making.compared[kind] = compare_parts(source, groups, path, begin)
            else:
                making.compared[kind] = proof.compare(path, kind, chunks=TEMPORARY_CHUNKS)
    making.finished += [making.unquantized[kind] for kind in making.plain]
    return proof


def _begin_proof(making: _Making, source: Source, n_ctx: int, chunks: int) -> Proof:
    """The side of ``source``, the checkpoint or a part of it, in comparisons."""
    nfc, unlike, tokenizer = source.vocab.nfc, source.vocab.unmarked, source.tokenizer
    return Proof(
        source.scorer,
        tokenizer.encode_document,
        making.proof_text.content,
        n_ctx=n_ctx,
        chunks=chunks,
        kl_tokens=making.config.proof.kl_tokens,
        nfc=nfc,
        unlike=unlike,
        n_threads=making.threads,
        more=partial(chat_failures, tokenizer=tokenizer, nfc=nfc, unlike=unlike),
    )


def _squares_to_begin(making: _Making) -> ColumnSquares | None:
    """The importance matrix's sums, to which the proof's pass adds, where both read the same text; else None."""
    options = making.config.calibration
    measured = (not options.files or options.text) and not options.output
    same = making.proof_text.content == making.calibration.content
    if not (measured and same and making.imatrix_kinds and _uses_imatrix(making.config, making.imatrix_kinds)):
        return None
    return ColumnSquares(making.source.model)


def _add_adapter(making: _Making, proof: Proof) -> None:
    """Write and compare the adapter of a checkpoint that has one."""
    adapter = open_adapter(making.source, making.log)
    if adapter is None or not making.passed:
        return
    with making.steps.step("adapter: conversion and proof"):
        path, compared = write_proven(making.source, adapter, making.staging, proof, making.log)
    making.compared[ADAPTER_TYPE] = compared
    making.finished.append(path)


def _measure_importance(making: _Making) -> None:
    """Make the importance matrix, where one is asked for and some file is quantized with it."""
    options, kinds = making.config.calibration, making.imatrix_kinds
    if not kinds:
        return
    if not _uses_imatrix(making.config, kinds):
        making.log(f"importance matrix: left out, {', '.join(kinds)} does not use one")
        return
    header, path = read_header(making.unquantized[making.base]), making.staging.path(IMATRIX_FILE)
    with making.steps.step("importance matrix"):
        making.imatrix = importance_matrix(
            making.source, making.calibration, options, header.tensors, making.log, making.begun
        )
        making.imatrix.write(path)
    making.finished.append(path)


def _uses_imatrix(config: ExportConfig, kinds: Sequence[str]) -> bool:
    """Whether any of these types depends on an importance matrix."""
    return config.rounding != "nearest" or any(kind not in IGNORE_IMATRIX for kind in kinds)


def _add_quantized(making: _Making, proof: Proof) -> None:
    """Make and compare the files of all quantized types and goals."""
    source, base, imatrix, log = making.source, making.unquantized[making.base], making.imatrix, making.log
    calibration, threads, step = making.calibration, making.threads, making.steps.step
    planner = None
    for kind in making.quantized:
        path = making.path(kind)
        again = making.config.rounding == "gptq" and kind != source.trained_for
        more = METADATA if again else None
        if is_target(kind):
            planner = planner or Planner(source, read_header(base), calibration, imatrix, threads=threads, log=log)
            with step(f"choice, quantization and proof: {kind}"):
                target = parse_target(kind)
                making.compared[kind], choice = make_chosen(planner, base, path, target, proof.compare, log, more)
            making.choices[path.name] = choice.record() | {"groups": planner.options.checks}
        else:
            with step(f"quantization: {kind}"):
                make_quantized(source, base, path, kind, imatrix, threads, log, more)
        if again:
            with step(f"rounding (gptq): {kind}"):
                options = making.config.calibration
                making.roundings[path.name] = round_again(source, path, calibration, options, imatrix, threads, log)
        if again or kind not in making.compared:
            with step(f"proof: {kind}"):
                making.compared[kind] = proof.compare(path, kind)
        making.finished.append(path)


def _publish(making: _Making, proof: Proof) -> dict[str, Any]:
    """Give the files their names, if all passed; returns the record."""
    published, out, finished = making.passed, making.staging.out, making.finished
    with making.steps.step("check sums and publishing"):
        sums = {path.name: sha256(path) for path in finished} if published else {}
    record = make_record(making, proof)
    record["sha256"] = forget_sums(out, sums) | sums
    if published:
        with making.steps.step("check sums and publishing"):
            making.staging.publish(finished)
    record |= making.steps.record()
    if published:
        atomic_write_json(out / RECORD_FILE, record | {"files": [*_rows_before(out, record), *record["files"]]})
        models_written = [out / each["file"] for each in record["files"] if each["type"] != ADAPTER_TYPE]
        modelfile.write(out, making.source.tokenizer, models_written)
    return record


def _rows_before(out: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of the folder's other files that an earlier export has compared with the same checkpoint's, on the
    same text."""
    try:
        before = json.loads((out / RECORD_FILE).read_text(encoding="utf-8"))
        if any(before[key] != record[key] for key in ("run", "checkpoint", "text", "n_ctx", "tokens")):
            return []
        # Other weights under the same name.
        if not math.isclose(before["checkpoint_perplexity"], record["checkpoint_perplexity"], rel_tol=1e-4):
            return []
        new = {each["file"] for each in record["files"]}
        return [each for each in before["files"] if each["file"] not in new and each["file"] in record["sha256"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def forget_sums(out: Path, names: Collection[str]) -> dict[str, str]:
    """Drop what the folder's record says about files that are replaced now; returns the sums of the other files.

    So an export that is killed between its files and its record leaves no sum that a whole file does not have.
    """
    before = recorded_sums(out)
    kept = {name: value for name, value in before.items() if name not in names and (out / name).is_file()}
    if not before.keys().isdisjoint(names):
        record = json.loads((out / RECORD_FILE).read_text(encoding="utf-8"))
        atomic_write_json(out / RECORD_FILE, record | {"sha256": kept})
    return kept


def choose_texts(config: ExportConfig, run: runs.Run, quantizes: bool, log: Callable[[str], None]) -> tuple[Text, Text]:
    """The texts of the proof and of the importance matrix. Each stands in for the other where it is not there or not
    needed."""
    proof_text = validation_text(config.proof.text, run)
    reads = any(map(is_target, config.quant)) or (quantizes and config.rounding != "nearest")
    if proof_text is None or reads or (quantizes and config.calibration.imatrix):
        calibration = calibration_text(config.calibration.text, run, log)
        return proof_text or calibration, calibration
    return proof_text, proof_text


def make_record(making: _Making, proof: Proof) -> dict[str, Any]:
    """What is printed as the last line and saved next to the files, as far as it does not depend on their names."""
    config, source = making.config, making.source
    shown = [each for kind, each in making.compared.items() if kind in (*making.types, ADAPTER_TYPE) or each.failures]
    return {
        "run": source.run.name,
        "checkpoint": source.checkpoint.name,
        "out": str(making.staging.out),
        "published": making.passed,
        "parameters": source.n_params,
        "text": making.proof_text.origin,
        "n_ctx": proof.n_ctx,
        "tokens": proof.score.tokens,
        "predictions": len(proof.nll_N),
        "checkpoint_perplexity": proof.score.perplexity,
        "checkpoint_stderr": proof.score.stderr,
        "trained_for": source.trained_for,
        "tokenizer": {"model": source.vocab.model, "pre": source.vocab.pre},
        "base": config.base,
        "imatrix": imatrix_record(making.imatrix),
        "files": [each.record() for each in shown],
        "machine": machine_record(),
        "choices": making.choices,
        "rounding": making.roundings,
    }
